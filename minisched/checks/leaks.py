"""Leaks: memory without an owner, memory of an ended request, and frees by the wrong owner.

Everything is read from a trace, at every step and at the end. Its marks feed one ledger for each
scheduler; its program shows the ops without a wait. A leak has one of these kinds:

- ``lost``: it has no owner, and it is not free;
- ``held``: its owner has ended, and no step in flight refers to it;
- ``freed``: it was freed twice, or by a request that did not hold it;
- ``given``: it was allocated although a request held it;
- ``used``: a step refers to it, although its request does not own it;
- ``pending``: it was launched, begun or committed, and no lane waited for its end.

A leak's slices are those of the allocation and of the missing release, if they are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..trace import Mark, Trace
from ..trace.cells import LARGEST, spans_of
from ..trace.events import is_host, lane_words
from .history import MarkMoment, Offence, heard, kept, order_of, plural

AT_ONCE = ("freed", "given", "used")  # kinds that no later event can repair

# -- Leases: a row of the request table with its pages and locks -----------------------------------


@dataclass(eq=False)
class HeldLease:
    """A row of the request table, with its pages and locks.

    It is *closed* when its request ends or is retracted, and *released* when its row is freed. Both
    ``closed`` and ``released`` are None before. ``overdue`` is the first moment at which it was
    closed and neither a step in flight nor a transfer referred to it.
    """

    rid: str
    row: int
    opened: MarkMoment
    pages: dict[int, MarkMoment] = field(default_factory=dict)  # own pages, by position
    locks: Counter[int] = field(default_factory=Counter)  # by node of the prefix cache
    locked: dict[int, MarkMoment] = field(default_factory=dict)  # moment of the lock, by node
    num_transfers: int = 0
    last_step: int = 0  # the newest step that refers to it
    step_before: int = 0  # the step before ``last_step``
    closed: MarkMoment | None = None
    why: str = ""  # reason of its close: stop, length, abort, error, retraction
    released: MarkMoment | None = None
    overdue: MarkMoment | None = None

    @property
    def history(self) -> str:
        """Return its allocation and end in words: ``r1 in step 2 (..); r1 ended (stop) ..``."""
        taken = min([*self.pages.values(), self.opened], key=lambda moment: moment.time)
        return f"{self.rid} {taken}; {self.end}"

    @property
    def end(self) -> str:
        """Return the end of its request, and its own, in words."""
        if self.closed is None:
            return f"{self.rid} has not ended"
        verb = f"ended ({self.why})"
        if self.why in ("retraction", "last launch"):
            verb = "was retracted" if self.why == "retraction" else "let go of its memory"
        return f"{self.rid} {verb} {self.closed}"

    @property
    def slices(self) -> tuple[int, ...]:
        """Return the slices of its allocation and of its close."""
        closed = self.closed.slices if self.closed else ()
        return tuple(dict.fromkeys([*self.opened.slices, *closed]))


# -- One scheduler's ledger: the owner of each row, page and slot, mark by mark --------------------
#
# A kind in ``AT_ONCE`` is recorded with its mark; the others are looked for between two steps.

ROOT = 0  # of the radix tree: it has no pages, and a lock on it protects none
ROW, PAGE = "row", "page"
Thing = tuple[str, int]  # a row or a page, by number
Taker = tuple[int, HeldLease | None]  # owner of a future slot: a step, for a lease


class Ledger:
    """The owner of each row, page and slot after the marks so far; ``leaks`` found so far.

    A page belongs to a lease or to the prefix cache, is in transfer between the two, or is free.
    The cache's nodes have numbers; in a block pool each page is a node of its own. A future slot
    belongs to a step until another step gets it; no mark releases one.
    """

    def __init__(self) -> None:
        self.leaks: list[Offence] = []
        self.held: dict[Thing, HeldLease] = {}
        # Of each free row or page: its last owner, the moment of the free, and its slices.
        self.freed: dict[Thing, tuple[str, MarkMoment, tuple[int, ...]]] = {}
        self.cached: dict[int, int] = {}  # page -> node
        self.nodes: dict[int, list[int]] = {}  # node -> pages
        self.disowned: dict[int, tuple[HeldLease, MarkMoment]] = {}  # neither free nor cached yet
        self.knows_all = False  # no request held a page before the first mark
        self.knows_rows = False  # the same of rows
        self.admitted: dict[str, int] = {}  # since the last commit: tokens to compute, by request
        self.has_blocks = False  # the prefix cache is one of blocks, each with one page
        self.num_pages, self.page_size = 0, 1  # of the pool; 0: not known
        self.writes: dict[int, list[tuple[str, str]]] = {}  # by step: request and KV slots
        self.newest: dict[str, HeldLease] = {}  # by request
        self.ending: dict[HeldLease, None] = {}  # closed or released, not known to be empty
        self.whose: HeldLease | None = None  # the lease of the next lock marks
        self.commits: dict[int, list[HeldLease | None]] = {}  # by step, in row order
        self.chunks: dict[int, list[int]] = {}  # by step, the rows without a sampled token
        self.in_flight: dict[int, MarkMoment] = {}  # moment of commit, by step
        self.waited: set[int] = set()  # steps with inputs that the host waited for
        self.slots: dict[int, Taker] = {}  # future slot -> its newest owner
        self.given: dict[Taker, int] = {}  # owner -> future slot, of all owners so far
        self.stale: set[tuple[str, int]] = set()  # request and step of delivered stale outputs
        self.misread: list[tuple[int, Offence]] = []  # with the step
        self.misdelivered: list[tuple[int, Offence]] = []

    def hear(self, mark: Mark, now: MarkMoment) -> None:
        """Apply a mark."""
        of, pages = mark.attrs, mark.attrs.get("pages", ())
        match mark.name:
            case "admit":
                self.admitted[str(of["rid"])] = int(of.get("extend_len", 0))
            case "row alloc":
                self.knows_rows = self.knows_all
                self._open(str(of["rid"]), int(of["row"]), now)
            case "row free" | "row hold" | "row let go":
                self._on_row(mark.name, int(of["row"]), now)
            case "kv pool":
                self.knows_all = True
                self.num_pages = int(of.get("pages", 0))
                self.page_size = int(of.get("page_size", 1))
            case "page alloc":
                lease = self.held.get((ROW, int(of["row"])))
                if lease is None and self.knows_rows:
                    story = f"{of['rid']} got pages for row {of['row']} {now}, which has no owner"
                    self._wrong("used", story, now, str(of["rid"]))
                lease = lease or self._open(str(of["rid"]), int(of["row"]), now)
                for page in pages:
                    self._take((PAGE, page), lease, now, page in self.cached)
                    lease.pages[page] = now
                    if self.num_pages and not 0 < page <= self.num_pages:
                        story = f"page {page} was handed out to {lease.rid} {now}, but the pool "
                        story += f"has pages 1 to {self.num_pages}"
                        self._wrong("given", story, now, lease.rid)
            case "page disown":  # the pages leave their lease
                for page in pages:
                    if holder := self.held.pop((PAGE, page), None):
                        holder.pages.pop(page, None)
                        if page not in self.cached:
                            self.disowned[page] = holder, now
            case "page free":
                for page in pages:
                    self._free(page, now)
            case "radix add":
                self._cache(int(of["node"]), of["page_ids"], now)
            case "block add":
                self.has_blocks = True
                for page in pages:
                    self._cache(page, [page], now)
            case "radix split":  # a new node takes the first pages of another one
                node, child, count = int(of["node"]), int(of["child"]), int(of["pages"])
                both = self.nodes.get(child, [])
                self.nodes[node], self.nodes[child] = both[:count], both[count:]
                self.cached |= dict.fromkeys(both[:count], node)
            case "radix evict" | "block evict":  # the pages are freed next
                owner = HeldLease("", 0, now)
                for node in pages if mark.name == "block evict" else [int(of["node"])]:
                    for page in self.nodes.pop(node, []):
                        self.cached.pop(page, None)
                        self.disowned[page] = owner, now
            case "insert":
                self.whose = self.newest.get(str(of["rid"]))
            case "radix lock" | "block lock":  # a lease takes or releases a lock
                delta, lease = int(of["delta"]), self.whose
                for node in pages if mark.name == "block lock" else [int(of["node"])]:
                    if lease is not None and (node != ROOT or mark.name == "block lock"):
                        lease.locks[node] += delta
                        lease.locked |= {node: now} if delta > 0 else {}
            case "finish" | "retraction" | "last launch":
                lease = self.newest.get(str(of["rid"]))
                if lease is not None and lease.closed is None and lease.released is None:
                    why = str(of["reason"]) if mark.name == "finish" else mark.name
                    lease.closed, lease.why = now, why
                    self.ending[lease] = None
            case "commit":
                self.chunks[int(of["step"])] = of.get("chunks", ())
                self._commit(int(of["step"]), of["rows"], now)
            case "future slots":
                self._bind(int(of["step"]), of["slots"], of["reads"], now)
            case "stale output":
                self.stale.add((str(of["rid"]), int(of["step"])))
            case "tokens":
                self._deliver(int(of["step"]), {*of["rids"]}, now)
                self.in_flight.pop(int(of["step"]), None)
            case "wait":
                if (of.get("reason"), of.get("op")) == ("speculation", "forward"):
                    self.waited.add(int(of["step"]))

    def _wrong(
        self, kind: str, sentence: str, now: MarkMoment, rid: str = "",
        slices: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Record a leak of this moment; ``slices`` precede those of ``now``."""
        self.leaks.append(Offence(sentence, (*slices, *now.slices), kind, rid, now.time))

    # -- rows and pages ----------------------------------------------------------------------------

    def _take(self, thing: Thing, lease: HeldLease, now: MarkMoment, is_cached: bool) -> None:
        """Record the allocation of a row or page."""
        before = self.held.get(thing)
        if before or is_cached:
            whose = f"{before.rid}'s, allocated to {before.history}" if before else ""
            story = f"{thing[0]} {thing[1]} was handed out to {lease.rid} {now} while it was still "
            story += whose or "the prefix cache's"
            rid, slices = (before.rid, before.slices) if before else ("", ())
            self._wrong("given", story, now, rid, slices)
        self.held[thing] = lease
        self.freed.pop(thing, None)

    def _free_again(self, thing: Thing, now: MarkMoment) -> None:
        """Record the free of a row or page without an owner."""
        what = f"{thing[0]} {thing[1]} was freed"
        if thing not in self.freed:
            self._wrong("freed", f"{what} {now}, although it had no owner", now)
            return
        rid, when, slices = self.freed[thing]
        whose = f"when it was {rid}'s" if rid else "when the prefix cache evicted it"
        story = f"{what} twice: {when}, {whose}, and again {now}"
        self._wrong("freed", story, now, rid, slices)

    def _open(self, rid: str, row: int, now: MarkMoment) -> HeldLease:
        lease = HeldLease(rid, row, now)
        if before := self.held.get((ROW, row)):
            self.ending[before] = None
        self._take((ROW, row), lease, now, is_cached=False)
        self.newest[rid] = self.whose = lease
        return lease

    def _on_row(self, name: str, row: int, now: MarkMoment) -> None:
        lease = self.held.get((ROW, row))
        if lease is None:
            self._free_again((ROW, row), now)
        elif name == "row free":
            del self.held[ROW, row]
            self.freed[ROW, row] = lease.rid, now, lease.slices
            lease.released, self.whose = now, lease
            self.ending[lease] = None
        else:
            lease.num_transfers += 1 if name == "row hold" else -1
            if lease.num_transfers < 0:
                story = f"row {row} of {lease.rid} was let go {now}, but no transfer held it"
                self._wrong("freed", story, now, lease.rid)

    def _free(self, page: int, now: MarkMoment) -> None:
        thing, freed = (PAGE, page), f"page {page} was freed {now}, although"
        if lease := self.held.pop(thing, None):
            if lease.closed is None:
                story = f"{freed} it was allocated to {lease.history}"
                self._wrong("freed", story, now, lease.rid, lease.slices)
            lease.pages.pop(page, None)
        elif page in self.disowned:
            lease, _ = self.disowned.pop(page)
        elif thing in self.freed or self.knows_all:
            self._free_again(thing, now)
        if page in self.cached:
            self._wrong("freed", f"{freed} node {self.cached[page]} still has it", now)
        self.freed[thing] = lease.rid if lease else "", now, now.slices

    def _cache(self, node: int, pages: Sequence[int], now: MarkMoment) -> None:
        """Record that a node of the prefix cache has these pages."""
        self.nodes[node] = list(pages)
        for page in pages:
            is_owned = (PAGE, page) in self.held or page in self.disowned or page in self.cached
            if self.knows_all and not is_owned:
                story = f"page {page} went into the prefix cache {now}, although no request held it"
                self._wrong("given", story, now)
            self.cached[page] = node
            self.disowned.pop(page, None)

    # -- steps, and the tokens that they read and sample -------------------------------------------

    def _commit(self, step: int, rows: list[int], now: MarkMoment) -> None:
        leases = self.commits[step] = [self.held.get((ROW, row)) for row in rows]
        for row, lease in zip(rows, leases, strict=True):
            if lease is not None:
                lease.step_before, lease.last_step = lease.last_step, step
            else:
                self._wrong("used", f"step {step} names row {row}, which has no owner {now}", now)
        self.in_flight[step] = now
        admitted, self.admitted = self.admitted, {}
        for rid, at in self.writes.get(step, ()):
            slots = sum(last + 1 - first for first, last in spans_of(at))
            if (count := admitted.get(rid, 0)) and count != slots:
                story = f"{rid} was admitted to step {step} with {count} tokens, but that step "
                story += f"writes {slots} KV slots for it"
                self._wrong("used", story, now, rid)
            lease = next((one for one in leases if one is not None and one.rid == rid), None)
            for first, last in spans_of(at):
                pages = range(first // self.page_size, last // self.page_size + 1)
                # a block pool caches a page before its step computes it: a lock keeps it
                own = {*lease.pages, *(+lease.locks if self.has_blocks else ())} if lease else ()
                if lost := [page for page in pages if page not in own]:
                    story = f"step {step} writes KV of {rid} to {plural('page', lost)}, which "
                    story += f"{rid} did not own when the step was committed"
                    self._wrong("used", story, now, rid)

    def _must_read(self, lease: HeldLease | None) -> bool:
        """Return whether a lease's newest step must read the sample of the step before.

        It need not if the host knows that token. The host knows results that came back and results
        that it waited for (``worker/verify.py``).
        """
        if lease is None or lease.last_step in self.waited:
            return False
        step = lease.step_before
        return step in self.in_flight and lease.row not in self.chunks.get(step, [])

    def _bind(self, step: int, slots: Sequence[int], reads: Sequence[int], now: MarkMoment) -> None:
        """Assign ``slots`` to a step, row by row, and check its ``reads`` of earlier slots.

        If the result of a row's step before has come back, the host may know the token: the row may
        read its slot, but need not.
        """
        rows, left = self.commits.get(step, []), list(reads)
        asks = [((lease.step_before if lease else 0, lease), self._must_read(lease))
                for lease in rows]  # fmt: skip
        must = sum(is_asked for _, is_asked in asks)
        for taker, is_asked in asks:
            should = self.given.get(taker)
            may = should is not None and left[:1] == [should] and len(left) > must
            if is_asked or may:
                self._read(step, taker, left.pop(0) if left else None, should, now)
            must -= is_asked
        for slot in left if rows else ():
            self._read(step, (0, None), slot, None, now)
        for lease, slot in zip(rows, slots, strict=True) if len(rows) == len(slots) else ():
            self.slots[slot], self.given[step, lease] = (step, lease), slot

    def _read(
        self, step: int, taker: Taker, slot: int | None, should: int | None, now: MarkMoment
    ) -> None:
        """Check the slot that a step reads for a lease (or for none) against its taker's slot."""
        giver, lease = taker
        whose = f" for {lease.rid}" if lease else ""
        right = f"future slot {should} of step {giver}{whose}"
        if slot is None and should is not None:
            story = f"step {step} reads no future slot{whose}; it should have read {right}"
        elif slot is not None and self.slots.get(slot) != taker:
            owner, theirs = self.slots.get(slot, (0, None))
            given = f"belongs to step {owner}" + (f" for {theirs.rid}" if theirs else "")
            story = f"step {step} reads future slot {slot}{whose}, which "
            story += given if owner else "belongs to no step"
            if slot == should:
                story += f": the token of step {giver}{whose} is lost"
            elif should is not None:
                story += f"; it should have read {right}"
        else:
            return
        rid = lease.rid if lease else ""
        self.misread.append((step, Offence(story, now.slices, "relay", rid, now.time)))

    def _deliver(self, step: int, rids: set[str], now: MarkMoment) -> None:
        """Check the delivered tokens of a step against the state when it was committed.

        A chunk that is not the last of its prompt samples no token. A token counts if its request
        still has the lease of the commit; a stale output counts without it.
        """
        for lease in filter(None, self.commits.get(step, [])):
            rid, is_chunk = lease.rid, lease.row in self.chunks[step]
            is_open = lease.closed is None or lease.closed.step == step
            counts, story = is_open or (rid, step) in self.stale, ""
            if rid in rids and is_chunk:
                story = (
                    f"what step {step} sampled for {rid} was delivered, although that step "
                    "computed a chunk that is not the last of its prompt: such a sample is no token"
                )
            elif rid in rids and not counts:
                story = f"the token of step {step} was delivered to {rid}, although "
                story += (
                    f"{rid} had lost the lease that the step was committed under ({lease.why}): it "
                    "is computed once more"
                    if lease.why == "retraction"
                    else f"{lease.end}: no output may follow that"
                )
            elif rid not in rids and counts and not (is_chunk or lease.why in ("error", "abort")):
                story = (
                    f"step {step} sampled a token for {rid}, which was not delivered, although "
                    f"{rid} still had its lease and all of its prompt was computed"
                )
            if story:
                found = Offence(story, now.slices, "identity", rid, now.time)
                self.misdelivered.append((step, found))

    # -- leaks that only time shows ----------------------------------------------------------------

    def settle(self, now: MarkMoment) -> None:
        """Check between two steps: no page is in transfer, and an ended lease is empty.

        A lease that a step in flight or a transfer refers to is left for later.
        """
        by_owner: defaultdict[tuple[HeldLease, MarkMoment], list[int]] = defaultdict(list)
        for page, owner in self.disowned.items():
            by_owner[owner].append(page)
        self.disowned.clear()
        for (lease, when), pages in by_owner.items():
            what = plural("page", pages)
            giver = f"{lease.rid} gave up" if lease.rid else "the prefix cache evicted"
            story = (
                f"{giver} {what} {when}, but the free list does not contain it: it is neither "
                "free, nor cached, nor a lease's"
            )
            self.leaks.append(Offence(story, when.slices, "lost", lease.rid, now.time))
        for lease in list(self.ending):
            if lease.last_step in self.in_flight or lease.num_transfers > 0:
                continue
            if lease.released is None:
                lease.overdue = lease.overdue or now
                continue
            del self.ending[lease]
            if lease.overdue is not None:
                fate = f"and no step referred to it, but it was released only {lease.released}"
                self._held(lease, f"row {lease.row}", fate)
            self._report(lease)

    def close(self, now: MarkMoment, sees_steps: bool) -> None:
        """Record what is left at the end of the trace.

        ``sees_steps`` is whether the trace shows which steps came back.
        """
        self.settle(now)
        rows = [lease for (name, _), lease in self.held.items() if name == ROW]
        for lease in dict.fromkeys([*self.ending, *rows]):
            lease.overdue = lease.overdue or now
            self._report(lease)
        for step, committed in self.in_flight.items() if sees_steps else ():
            slots = [slot for slot, (owner, _) in self.slots.items() if owner == step]
            story = f"step {step} was committed {MarkMoment(committed.time)} and never came back"
            story += f", and so {plural('future slot', slots)} has no token" if slots else ""
            self.leaks.append(Offence(story, committed.slices, "pending", time=now.time))

    def _report(self, lease: HeldLease) -> None:
        """Record a leak for each row, page and lock that a lease still holds."""
        fate, duty = "and its lease was never released" if lease.closed else "", ""
        if lease.released is not None:
            fate = f"and its row was freed {lease.released}, but this was not"
            duty = ": it should have been unlocked then"
        fate = fate or "and the trace is over"
        if lease.pages:
            self._held(lease, plural("page", lease.pages), fate)
        if lease.released is None:
            self._held(lease, f"row {lease.row}", fate)
        if locked := [node for node, count in lease.locks.items() if count]:
            taken = [str(lease.locked[node]) for node in locked if node in lease.locked]
            taker = f"{lease.rid} {' and '.join(dict.fromkeys(taken))}; {lease.end}"
            what = f"a lock on {plural('node', locked)}"
            self._held(lease, what, fate + duty, f"was taken for {taker}")

    def _held(self, lease: HeldLease, what: str, fate: str, story: str = "") -> None:
        verb = "were allocated to" if what.startswith("pages") else "was allocated to"
        story = f"{what} {story or f'{verb} {lease.history}'}, {fate}"
        seen = lease.overdue or lease.released or lease.opened
        self.leaks.append(Offence(story, lease.slices, "held", lease.rid, seen.time))


def is_kv(resource: str, side: str) -> bool:
    """Return whether a resource is the target model's KV on one side."""
    name = resource.removeprefix(f"{side} ") if side else resource
    return name == "kv" or (name.startswith("stage ") and name.endswith(" kv"))


def writes_of(trace: Trace, side: str) -> dict[int, list[tuple[str, str]]]:
    """Return the KV that the forward pass of each step writes: request and slots, by step."""
    found: dict[int, list[tuple[str, str]]] = {}
    steps = {item.id: item.step for item in trace.slices if item.name == "forward"}
    for act in trace.program:
        is_write = act.kind == "write" and act.rid and is_kv(act.resource, side)
        if is_write and (step := steps.get(act.op, 0)):
            found.setdefault(step, []).append((act.rid, act.at))
    return found


@kept
def ledgers(trace: Trace) -> dict[str, Ledger]:
    """Return each scheduler's ledger at the end of its trace, by side."""
    found = dict[str, Ledger]()
    sees_steps = {"commit", "tokens"} <= {mark.name for mark in trace.marks}
    for side, marks in heard(trace).items():
        ledger, now = found.setdefault(side, Ledger()), MarkMoment(0)
        ledger.writes = writes_of(trace, side)
        for mark, now in marks:
            ledger.hear(mark, now)
            if sees_steps and mark.name in ("commit", "tokens"):
                ledger.settle(now)
        ledger.close(MarkMoment(trace.end, 0, now.after), sees_steps)
    return found


# -- Ops without a wait, and threads that are still in a call, from a trace's program --------------


def find_pending(trace: Trace) -> Iterator[Offence]:
    """Yield ops that never ended, or ended without a lane that can know it.

    A lane knows an op's end if it waited for the op, or for a later op of the same lane. At the
    end the schedulers must know every end. A call that a thread has begun must end. A trace that
    stops before its requests end yields nothing: its ops were in flight. Nor does a trace with a
    lane that waits for ever (``races.py``), because the ops after that wait never come.
    """
    order = order_of(trace)
    if order.stuck or not is_complete(trace):
        return
    slices = {item.id: item for item in trace.slices}
    begun = {act.op: act for act in trace.program if act.kind == "begin"}
    hosts = [done for lane, done in order.last.items() if is_scheduler(lane)]
    for launch in (act for act in trace.program if act.kind == "launch"):
        begin, end = begun.get(launch.op), order.ended.get(launch.op)
        ran, launcher = slices.get(launch.op), slices.get(launch.during)
        if begin and end and any(map(end.is_before, hosts)):
            continue
        shown, rid = [launcher, ran], ran.rids[0] if ran and len(ran.rids) == 1 else ""
        if begin and not end:
            story = f"{begin.lane} began a call (slice {begin.op}), which never ended"
            shown, rid = [ran], ""
        else:
            name = f"the {ran.name} of step {ran.step}" if ran and ran.step else f"op {launch.op}"
            story = f"{launch.lane} launched {name}"
            if launcher and launcher.step:
                story += f" in its {launcher.name} of step {launcher.step}"
            story += f" on the {lane_words(begin.lane)}" if begin else ""
            story += ", and no thread has waited for it" if begin else ", and it never ran"
        ids = tuple(item.id for item in shown if item)
        yield Offence(story, ids, "pending", rid, trace.end)


def is_complete(trace: Trace) -> bool:
    """Return whether the run is over: each request of a slice has a mark ``finish``."""
    ended = {mark.attrs.get("rid") for mark in trace.marks if mark.name == "finish"}
    return bool(ended) and all(rid in ended for item in trace.slices for rid in item.rids)


def is_scheduler(lane: str) -> bool:
    """Return whether a lane is a scheduler's own, not a thread's."""
    return is_host(lane) and not lane.endswith("thread")


# -- All leaks, and what the trace can't show ------------------------------------------------------

NEEDED = {
    "row alloc": "rows of the request table, and their owners",
    "page alloc": "pages",
    "radix lock": "locks on the prefix cache (there may be none)",
    "finish": "memory that an ended request holds, and ops that no thread waited for",
    "commit": "memory that is held between two steps, and which steps returned",
    "tokens": "memory that is held between two steps, and which steps returned",
}
"""By mark, what is unknown without it."""


def find_leaks(trace: Trace) -> list[Offence]:
    """Return all leaks in order of time; ``not_checked`` names what could not be seen."""
    found = [leak for ledger in ledgers(trace).values() for leak in ledger.leaks]
    return sorted([*found, *find_pending(trace)], key=lambda leak: leak.time)


def not_checked(trace: Trace) -> list[str]:
    """Return what a trace does not show, one sentence for all marks; empty if it shows all."""
    names = {mark.name for mark in trace.marks}
    absent = {name: what for name, what in NEEDED.items() if name not in names}
    said = []
    if absent:
        marks, about = " or ".join(map(repr, absent)), "; ".join(dict.fromkeys(absent.values()))
        said.append(f"The trace has no mark {marks}, so nothing is known about {about}.")
    if not trace.program:
        said.append(
            "The trace has no program, so nothing is known about ops that no thread waited for, "
            "or about threads that are still in a call."
        )
    elif order_of(trace).stuck:
        said.append(
            "A lane waits for ever, so nothing is known about ops that no thread waited for: a "
            "later wait of that lane may be for them."
        )
    elif "finish" in names and not is_complete(trace):
        said.append(
            "Not every request ends in the trace, so nothing is known about ops that no thread "
            "waited for: they may be in flight."
        )
    return said


# -- Positions that a step computes, although their request holds no page for them -----------------
#
# A step finds the KV slot of a position in its row of the page table. If no page was ever listed
# there, the step writes to the cell's old target, which may belong to any request.

TABLE = "page table"


def find_unlisted(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each step and request that uses cells of the table without a page.

    A row is listed from its beginning, so its length determines the listed cells. After a release
    only steps that were committed before it may read the old ones; an op that failed has no step.
    Each stage of a pipeline and each side of ``pd`` has its own table.
    """
    max_len = next((int(m.attrs[TABLE]) for m in trace.marks if m.name == "row length"), 0)
    steps = {item.id: item.step for item in trace.slices}
    listed: dict[tuple[str, int], int] = {}  # number of listed cells, by table and row
    released: dict[tuple[str, int], int] = {}  # the last step that may use a row, by the same
    for act in trace.program if max_len else ():
        for first, last in spans_of(act.at) if act.resource.endswith(TABLE) else ():
            row, (start, end) = first // max_len, (first % max_len, last % max_len + 1)
            key, step = (act.resource, row), steps.get(act.op, 0)
            if act.kind == "release":
                released[key] = act.step
                continue
            is_new = step > released.get(key, LARGEST) or (not step and act.kind == "write")
            if key in released and is_new:
                del released[key]
                listed[key] = 0
            length = listed.get(key, 0)
            if act.kind == "free":
                listed[key] = 0
            elif act.kind == "write" and start <= length:
                listed[key] = max(length, end)
            elif act.kind == "read" and end > length:
                yield (
                    f"step {step} computes {act.rid}'s position {end - 1}, but "
                    f"{act.rid} holds pages for {length} positions only"
                )
