"""The story of a wrong token: from where it was heard back to the first thing that was wrong.

It walks backwards through a trace's program: the step that sampled the token, what its ops read,
who wrote that last, the steps these writers belong to, what they read, and so on.
"""

from __future__ import annotations

import pickle
import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..trace import Act, Mark, Slice, Trace
from ..trace.cells import cells_of, is_in, spans_of
from ..trace.events import is_host
from .history import Done, MarkMoment, Offence, Words, heard, numbers, order_of
from .identity import Difference, tokens_heard
from .leaks import HeldLease, Ledger, SlotRead, ledgers

RELAYS = ("future map", "token pool", "prev sampled", "last tokens")


class ChainLink(NamedTuple):
    """One thing that happened on the way to a wrong token, or that is not as it should be.

    ``slices`` are those that did it, and ``missing`` is the edge that lacks, from slice to slice.
    """

    sentence: str
    slices: tuple[int, ...] = ()
    missing: tuple[int, int] | None = None


class ReadFrom(NamedTuple):
    """A step whose work for a request was read, and where, in words."""

    step: int
    rid: str
    where: str
    is_token: bool = False  # and not KV


# -- What one step of one request read, and whom it has it from ------------------------------------


EVERY = 256  # marks


class Past:
    """Who touched what in a run, and who changed it; ``side``: the scheduler that clients hear."""

    def __init__(self, trace: Trace, side: str = "") -> None:
        self.trace, self.side, self.order, self.words = trace, side, order_of(trace), Words(trace)
        self.of_op: defaultdict[int, list[Done]] = defaultdict(list)
        self.changes: defaultdict[str, list[Done]] = defaultdict(list)  # of each resource
        for done in self.order.done:
            if done.act.at:
                self.of_op[done.act.op].append(done)
            if done.act.kind in ("write", "free"):
                self.changes[done.act.resource].append(done)
        self.of_step: defaultdict[int, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            self.of_step[item.step].append(item)
        sizes = (mark.attrs["page_size"] for mark in trace.marks if mark.name == "kv pool")
        self.page_size = int(next(sizes, 1))

    @cached_property
    def heard(self) -> list[tuple[Mark, MarkMoment]]:
        """Every mark of the scheduler, with when it was."""
        return heard(self.trace)[self.side]

    @cached_property
    def commit_at(self) -> dict[int, int]:
        """Where in ``heard`` a step was committed."""
        commits = [(at, mark) for at, (mark, _) in enumerate(self.heard) if mark.name == "commit"]
        return {int(mark.attrs["step"]): at for at, mark in reversed(commits)}

    @cached_property
    def books(self) -> list[bytes]:
        """The ledger before every ``EVERY``-th mark: nobody has to go through all of them again."""
        ledger, found = Ledger(), [pickle.dumps(Ledger())]
        for at, (mark, now) in enumerate(self.heard, 1):
            ledger.hear(mark, now)
            if at % EVERY == 0:
                found.append(pickle.dumps(ledger))
        return found

    def ledger_at(self, step: int) -> Ledger:
        """The books when a step had just been committed; if it never was, those at the end."""
        end = self.commit_at.get(step, len(self.heard) - 1) + 1
        before = end // EVERY
        ledger: Ledger = pickle.loads(self.books[before])
        for mark, now in self.heard[before * EVERY : end]:
            ledger.hear(mark, now)
        return ledger

    def newest(self, read: Done, cells: Iterable[int]) -> dict[int, Done]:
        """By cell, the last write or free before it is read; of who was never written, nothing."""
        changes = self.changes[read.act.resource]
        wanted, found = set(cells), dict[int, Done]()
        for at in range(bisect_left(changes, read.when, key=lambda it: it.when) - 1, -1, -1):
            if not wanted:
                break
            for first, last in spans_of(changes[at].act.at):
                here = {cell for cell in wanted if first <= cell <= last}
                found |= dict.fromkeys(here, changes[at])
                wanted -= here
        return found

    def meanwhile(self, read: Done, cells: Iterable[int]) -> Iterator[tuple[int, Done]]:
        """Who changes what is read, in no order with that; with the first cell."""
        cells = sorted(cells)
        for change in self.changes[read.act.resource]:
            if change.act.lane != read.act.lane and read.is_unordered(change):
                shared = next((cell for cell in cells if is_in(cell, change.act.at)), None)
                if shared is not None:
                    yield shared, change

    def ops(self, step: int, name: str = "") -> list[Slice]:
        """What the devices ran of a step; all, or those of one name."""
        before = f"{self.side} " if self.side else ""
        return [
            item
            for item in self.of_step[step]
            if not is_host(item.lane) and item.lane.startswith(before) and name in ("", item.name)
        ]

    def ids(self, step: int, name: str) -> tuple[int, ...]:
        """The same by their ids."""
        return tuple(item.id for item in self.ops(step, name))

    def mark(self, name: str, step: int) -> Mark | None:
        """What a relay said of a step."""
        marks = (mark for mark in self.trace.marks if mark.name == name)
        return next((mark for mark in marks if mark.attrs["step"] == step), None)

    def who(self, act: Act) -> str:
        """Who did it: ``the forward of step 3``."""
        name, step = self.words.name(act.op), self.words.step(act.op)
        return f"the {name} of step {step}" if step else act.lane

    def name_of(self, resource: str, cell: int) -> str:
        """A cell in words."""
        if resource.endswith("kv"):
            return f"{resource[:-2]}KV slot {cell}"
        if resource == "future map":
            return f"future slot {cell}"
        if row_len := self.words.row_lens.get(resource):
            row, position = divmod(cell, row_len)
            return f"position {position} of row {row} of the {resource}"
        if buffer := re.fullmatch(r"(.*?)(host )?(output \d+)", resource):
            where, kind, name = buffer.groups()
            return f"cell {cell} of {where}{kind or 'device '}{name.replace(' ', ' buffer ')}"
        return f"cell {cell} of {resource}"


@dataclass
class StepReads:
    """Everything that step ``step`` read for ``rid``.

    Whoever looks at a read adds to ``sources`` what it was built upon.
    """

    past: Past
    step: int
    rid: str
    sources: list[ReadFrom] = field(default_factory=list)

    @cached_property
    def ledger(self) -> Ledger:
        """The books as they were when the step had just been committed."""
        return self.past.ledger_at(self.step)

    def leases_of(self, step: int) -> list[HeldLease]:
        """Those that a step names, as far as it was committed."""
        return [lease for lease in self.ledger.commits.get(step, []) if lease]

    @cached_property
    def lease(self) -> HeldLease | None:
        """The request's lease in this step."""
        return next((it for it in self.leases_of(self.step) if it.rid == self.rid), None)

    @cached_property
    def steps_before(self) -> list[int]:
        """Earlier steps that named the same lease."""
        commits = self.ledger.commits.items()
        return [step for step, named in commits if step < self.step and self.lease in named]

    @cached_property
    def slot_reads(self) -> list[SlotRead]:
        """Which future slot the step reads for whom; nothing where the relay has none."""
        if (mark := self.past.mark("future slots", self.step)) is None:
            return []
        ledger = self.ledger  # as it is before the mark
        asks = [ledger.ask(lease) for lease in ledger.commits[self.step]]
        now = ledger.in_flight[self.step]
        return ledger.slots.reads_of(self.step, asks, numbers(mark.attrs["reads"]), now)

    def of(self, *resources: str) -> Iterator[Done]:
        """What this step reads for ``rid`` whose resource begins or ends in one of these."""
        for item in self.past.ops(self.step):
            for done in self.past.of_op[item.id]:
                act = done.act
                is_asked = act.resource.endswith(resources) or act.resource.startswith(resources)
                if act.kind == "read" and act.rid in ("", self.rid) and is_asked:
                    yield done

    def cells_of_lease(self, resource: str, lease: HeldLease) -> list[int]:
        """Which cells of a relay belong to the request's inputs."""
        if resource == "token pool":
            size = self.past.words.row_lens.get(resource, 0)
            return list(range(lease.row * size, (lease.row + 1) * size))
        if resource == "future map":
            mine = (item.slot for item in self.slot_reads if item.lease is lease)
            return [slot for slot in mine if slot is not None]
        giver = self.ledger.giver_of(lease)
        return [self.ledger.commits[giver].index(lease)] if giver else []


# -- Whether a cell holds what the step should find there: a rule for each kind of memory ----------

Rule = Callable[[StepReads, Done, int, Done | None], Iterator[ChainLink]]


def find_defects(reads: StepReads, is_token: bool = True) -> Iterator[ChainLink]:
    """What a step read and is not as it should be, what is nearest to its tokens first.

    With ``is_token`` the way of its tokens to the host is looked at, too.
    """
    if is_token:
        yield from _each(reads, [*_host_reads(reads), *reads.of("output")], _buffer)
    yield from _each(reads, reads.of("inputs"), _buffer)
    yield from _values(reads)
    if lease := reads.lease:
        yield from _not_taken(reads, lease)
        for read in reads.of(*RELAYS):
            mine = reads.cells_of_lease(read.act.resource, lease)
            yield from _each(reads, [read], _relayed, set(mine))
        yield from _each(reads, (it for it in reads.of("page table") if it.act.rid), _listed)
    yield from _each(reads, (it for it in reads.of("kv") if it.act.rid), _kv)


def _each(
    reads: StepReads, found: Iterable[Done], rule: Rule, mine: set[int] | None = None
) -> Iterator[ChainLink]:
    """Hold a rule against each cell that is read, and who changed it last; after races for it."""
    past = reads.past
    for read in found:
        cells = [cell for cell in cells_of(read.act.at) if mine is None or cell in mine]
        for cell, change in past.meanwhile(read, cells):
            verb = "frees" if change.act.kind == "free" else "writes"
            yield ChainLink(
                f"{past.who(read.act)} reads {past.name_of(read.act.resource, cell)}, which "
                f"{past.who(change.act)} {verb}, and nothing makes one of them wait for the other",
                (change.act.op, read.act.op),
                (change.act.op, read.act.op),
            )
        newest = past.newest(read, cells)
        for cell in cells:
            yield from rule(reads, read, cell, newest.get(cell))


def _host_reads(reads: StepReads) -> Iterator[Done]:
    """Where the host read this step's output: the first time after it had waited for the copy."""
    past, has_waited = reads.past, False
    copies = past.ids(reads.step, "copy")
    of_copies = [done.act for op in copies for done in past.of_op[op]]
    written = {act.resource for act in of_copies if act.kind == "write"}
    for done in past.order.done:
        act = done.act
        has_waited = has_waited or (act.kind == "wait" and act.op in copies and is_host(act.lane))
        if has_waited and act.kind == "read" and act.resource in written:
            yield done
            return


def _buffer(reads: StepReads, read: Done, cell: int, change: Done | None) -> Iterator[ChainLink]:
    """A buffer holds one step's things at a time: its inputs, or its outputs."""
    if change is None:
        return
    past, slices = reads.past, (change.act.op, read.act.op)
    what, who = past.name_of(read.act.resource, cell), past.who(read.act)
    if change.act.kind == "free":
        yield ChainLink(f"{what} was freed before {who} had read it", slices)
    elif "output" in read.act.resource and past.words.step(change.act.op) != reads.step:
        yield ChainLink(
            f"{what} was overwritten by {past.who(change.act)} before {who} had read what step "
            f"{reads.step} left there",
            slices,
        )


def _values(reads: StepReads) -> Iterator[ChainLink]:
    """An op takes another one's value, maybe before that has ended."""
    for read in reads.of("value"):
        for source in cells_of(read.act.at):
            end = reads.past.order.ended.get(source)
            if end is not None and read.is_unordered(end):
                who, giver = reads.past.who(read.act), reads.past.who(end.act)
                edge = source, read.act.op
                story = f"{who} takes the value of {giver}, and nothing makes it wait for that"
                yield ChainLink(story, edge, edge)


def _listed(reads: StepReads, read: Done, cell: int, change: Done | None) -> Iterator[ChainLink]:
    """The request's row of the page table was written while the row was the request's."""
    if change is None or change.act.kind != "write":
        return
    past, step = reads.past, reads.past.words.step(change.act.op)
    theirs = reads.leases_of(step)
    if step and reads.lease not in theirs:
        rids = " and ".join(lease.rid for lease in theirs)
        yield ChainLink(
            f"{past.name_of(read.act.resource, cell)} was written in step {step} for {rids}, and "
            f"not since, although {past.who(read.act)} reads it for {reads.rid}",
            (change.act.op, read.act.op),
        )


def _kv(reads: StepReads, read: Done, slot: int, change: Done | None) -> Iterator[ChainLink]:
    """A KV slot holds what was written for this request, or what the cache has for it."""
    past, what = reads.past, reads.past.name_of(read.act.resource, slot)
    if change is None:
        reader = f"step {reads.step} reads for {reads.rid}"
        yield ChainLink(f"{what}, which {reader}, was never written", (read.act.op,))
        return
    step, writer, page = past.words.step(change.act.op), change.act.rid, slot // past.page_size
    slices = change.act.op, read.act.op
    still = f"although {reads.rid} still reads it in step {reads.step}"
    owner = reads.ledger.pages.held.get(page)
    is_anothers = owner is not None and owner is not reads.lease
    if change.act.kind == "free":
        yield ChainLink(f"{what} was given back {_fate_of(reads, page)}, {still}", slices)
    elif writer == reads.rid and is_anothers and owner:
        since = owner.pages.get(page, owner.opened)
        yield ChainLink(f"{what} is {owner.rid}'s, allocated to it {since}, {still}", slices)
    elif writer != reads.rid and (is_anothers or _is_mine(reads, slot, change)):
        yield ChainLink(f"{what} was written in step {step} for {writer}, {still}", slices)
    else:
        reads.sources.append(ReadFrom(step, writer, what))


def _fate_of(reads: StepReads, page: int) -> str:
    """Who gave a page back, when, and who has it now, as far as the marks say."""
    pages = reads.ledger.pages
    if owner := pages.held.get(page):
        again = " once more" if owner is reads.lease else ""
        return f"and allocated to {owner.rid}{again} {owner.pages.get(page, owner.opened)}"
    if (freed := pages.freed.get(page)) is None:
        return "before"
    return f"by {freed.rid or 'the prefix cache'} {freed.when}"


def _is_mine(reads: StepReads, slot: int, change: Done) -> bool:
    """Whether this lease owns a slot's page, or had read or written the slot before a change."""
    past = reads.past
    if reads.ledger.pages.held.get(slot // past.page_size) is reads.lease:
        return True
    return any(
        done.act.rid == reads.rid and done.act.resource.endswith("kv") and done.when < change.when
        for step in reads.steps_before
        for item in past.of_step[step]
        for done in past.of_op[item.id]
        if is_in(slot, done.act.at)
    )


# -- The token that only the device knows: is it what the step before sampled for this request? ----


def _not_taken(reads: StepReads, lease: HeldLease) -> Iterator[ChainLink]:
    """A token that only the device has must be taken from there, and no other one."""
    past, step, rid = reads.past, reads.step, reads.rid
    giver, forward = reads.ledger.giver_of(lease), past.ids(step, "forward")
    for item in reads.slot_reads:
        if item.lease is lease and item.sentence and item.slot != item.should:
            yield ChainLink(item.sentence, (*past.ids(giver, "sample"), *forward))
    if giver and not _takes(reads, lease, giver):
        yield ChainLink(
            f"step {step} did not take the token that step {giver} had sampled for {rid} from the "
            "device, although the host did not know it: it computed with another one, or with a "
            "placeholder",
            (*past.ids(giver, "sample"), *forward),
        )
    row = reads.ledger.commits[step].index(lease)
    filled = past.mark("placeholder fill", step)
    if filled and not giver and (source := int(str(filled.attrs["rows"]).split()[row])) >= 0:
        yield ChainLink(
            f"row {row} of step {step} was filled with the token of row {source} of the step "
            f"before, although all tokens of {rid} were known",
            (*past.ids(step - 1, "sample"), *forward),
        )


def _takes(reads: StepReads, lease: HeldLease, giver: int) -> bool:
    """Whether a step takes the token that ``giver`` sampled for a lease, as far as is known.

    Where nothing in the run takes any from the device (``fill_host``), the host fills them in.
    """
    if lazy := reads.past.mark("lazy tokens", reads.step):
        place = reads.ledger.commits[giver].index(lease) + 1
        return lazy.attrs["source"] == giver and place in numbers(lazy.attrs["places"])
    mine = {name: reads.cells_of_lease(name, lease) for name in RELAYS}
    for read in reads.of(*RELAYS):
        if any(is_in(cell, read.act.at) for cell in mine[read.act.resource]):
            return True
    program = reads.past.trace.program
    return not any(act.kind == "read" and act.resource in RELAYS for act in program)


def _relayed(reads: StepReads, read: Done, cell: int, change: Done | None) -> Iterator[ChainLink]:
    """A cell of a relay holds what the newest step of this lease left there."""
    past, resource = reads.past, read.act.resource
    what, reader = past.name_of(resource, cell), f"step {reads.step} reads for {reads.rid}"
    if change is None:
        yield ChainLink(f"{what}, which {reader}, was never written", (read.act.op,))
        return
    step, slices = past.words.step(change.act.op), (change.act.op, read.act.op)
    is_newest = step == max(reads.steps_before, default=0) or resource == "token pool"
    if change.act.kind == "free":
        yield ChainLink(f"{what}, which {reader}, was given back before that", slices)
    elif reads.lease in reads.leases_of(step) and is_newest:
        reads.sources.append(ReadFrom(step, reads.rid, what, is_token=True))
    else:
        yield ChainLink(
            f"{what} was written in step {step}{_given_to(reads, resource, cell, step)}, although "
            f"{reads.rid} still needs what was there before: {past.who(read.act)} reads it",
            slices,
        )


def _given_to(reads: StepReads, resource: str, cell: int, step: int) -> str:
    """For whom a step wrote a cell, as far as that is known."""
    leases = reads.leases_of(step)
    if resource == "token pool":
        size = max(1, reads.past.words.row_lens.get(resource, 1))
        leases = [lease for lease in leases if lease.row == cell // size]
    elif resource == "future map":
        mark = reads.past.mark("future slots", step)
        slots = numbers(mark.attrs["slots"]) if mark else []
        named = zip(slots, reads.ledger.commits.get(step, []), strict=False)
        leases = [lease for slot, lease in named if lease and slot == cell]
    else:
        leases = leases[cell : cell + 1]
    return f" for {leases[0].rid}" if leases else ""


# -- The story -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongTokenStory:
    """Why a token is wrong: the culprit, and the chain from the token back to it.

    ``is_known`` is False where all that the trace tells is as it should be: then what is wrong is
    inside an op.
    """

    difference: Difference
    culprit: ChainLink
    chain: tuple[ChainLink, ...]
    is_known: bool = True

    def __str__(self) -> str:
        return "\n".join([self.culprit.sentence, *(f"  {link.sentence}" for link in self.chain)])


def token_offence(story: WrongTokenStory) -> Offence:
    """What a picture of the story shows in red."""
    return Offence(story.culprit.slices, story.culprit.sentence, story.culprit.missing)


def explain(difference: Difference, trace: Trace) -> WrongTokenStory:
    """The chain of events that produced a wrong token, the culprit first.

    Raises:
        ValueError: the trace does not say which tokens were delivered, or what its lanes did.
    """
    if not trace.program:
        raise ValueError(
            f"The trace of {trace.loop} has no program, so nobody can tell who wrote what."
        )
    told = tokens_heard(trace).get(difference.rid, [])
    is_heard = difference.position < len(told)
    step = told[difference.position].step if is_heard else told[-1].step if told else 0
    past = Past(trace, "decode" if any("side" in mark.attrs for mark in trace.marks) else "")
    reads = StepReads(past, step, difference.rid)
    begin = _begin(difference, reads)
    for item in ledgers(trace)[past.side].misdelivered:
        if item.rid == difference.rid and (item.step <= step or not is_heard):
            culprit = ChainLink(item.sentence, past.ids(item.step, "sample"))
            return WrongTokenStory(difference, culprit, (begin,))
    return _walk(difference, reads, begin) if is_heard else _silence(difference, trace, begin)


def _begin(difference: Difference, reads: StepReads) -> ChainLink:
    """Where the story begins: the token, and the step that sampled it."""
    rid, at, step = reads.rid, difference.position, reads.step
    if difference.got is None:
        where = f"after output {at - 1}, from step {step}, {rid} heard nothing more"
        words = f"{where if step else f'{rid} heard nothing'}, although {difference.expected}"
        words += " should have followed"
    else:
        wanted = "nothing" if difference.expected is None else difference.expected
        words = f"{rid}'s output {at} is {difference.got} instead of {wanted}; step {step} "
        words += "sampled it"
    return ChainLink(words, reads.past.ids(step, "sample"))


def _walk(difference: Difference, first: StepReads, begin: ChainLink) -> WrongTokenStory:
    """Breadth first: what is nearest to the token is told first."""
    seen = {(first.step, first.rid)}
    waiting: deque[tuple[StepReads, tuple[ChainLink, ...]]] = deque([(first, (begin,))])
    relayed: list[ChainLink] = []  # tokens that were taken from the device
    while waiting:
        reads, chain = waiting.popleft()
        for fault in find_defects(reads, is_token=reads is first):
            return WrongTokenStory(difference, fault, chain)
        for found in reads.sources:
            name = "sample" if found.is_token else "forward"
            link = ChainLink(
                f"step {reads.step} read {found.where} for {reads.rid}, which step {found.step} "
                f"had written for {found.rid}",
                tuple(it.id for it in reads.past.of_step[found.step] if it.name == name),
            )
            relayed += [link] if found.is_token else []
            if found.step and (found.step, found.rid) not in seen:
                seen.add((found.step, found.rid))
                source = replace(reads, step=found.step, rid=found.rid, sources=[])
                waiting.append((source, (*chain, link)))
    words = (
        "everything that was read for this token is as it should be, as far as the trace tells, so "
        f"an op of step {first.step}, or of a step before it, made something wrong of it"
    )
    slices = first.past.ids(first.step, "forward")
    if relayed:
        words += (
            "; the first to look at is what the forward pass made of the token from the device: "
            f"{relayed[0].sentence}"
        )
        slices = (*relayed[0].slices, *slices)
    culprit = ChainLink(words, slices)
    return WrongTokenStory(difference, culprit, (begin, *relayed[:1]), is_known=False)


def _silence(difference: Difference, trace: Trace, begin: ChainLink) -> WrongTokenStory:
    """A token that never came."""
    rid = difference.rid
    ends = (mark for mark in trace.marks if mark.name == "finish" and mark.attrs["rid"] == rid)
    end = next(ends, None)
    fate = f"it ended too early ({end.attrs['reason']})" if end else "the run stopped before it"
    text = f"output {difference.position} of {rid} was never delivered: {fate}"
    return WrongTokenStory(difference, ChainLink(text, begin.slices), (begin,), is_known=False)
