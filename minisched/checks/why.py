"""The story of a wrong token: from where it was heard back to the first thing that was wrong.

It walks backwards through a trace's program: the step that sampled the token, what its ops read,
who wrote that last, the steps these writers belong to, what they read, and so on.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..trace import Act, Mark, Slice, Trace
from ..trace.cells import cells_of, is_in
from ..trace.events import is_host
from .history import Done, Offence, PlayedOrder, moments, numbers
from .identity import Difference, tokens_heard
from .leaks import HeldLease, Ledger, SlotRead
from .oracle import misdeliveries


class Past:
    """Who last changed what an op reads, and whether somebody changed it at the same time.

    Acts are named by their places in ``program``; ``order`` says when they happened.
    """

    def __init__(self, trace: Trace) -> None:
        played = PlayedOrder(trace.program, trace.slices)
        self.program = [done.act for done in played.done]
        self.ended = played.ended  # by op
        self.done = {done.when: done for done in played.done}
        self.order = {done.when: when for when, done in enumerate(played.done)}
        self.changes: defaultdict[str, list[Done]] = defaultdict(list)
        self.by_op: defaultdict[int, list[int]] = defaultdict(list)
        for done in played.done:
            if done.act.at:
                self.by_op[done.act.op].append(done.when)
            if done.act.kind in ("write", "free"):
                self.changes[done.act.resource].append(done)

    def newest(self, at: int, cells: Iterable[int]) -> dict[int, Done]:
        """By cell, the last write or free before the read at ``at``; a cell without is left out."""
        read, wanted = self.program[at], set(cells)
        found: dict[int, Done] = {}
        for change in reversed(self.changes[read.resource]):
            if self.order[change.when] < self.order[at]:
                for cell in [cell for cell in wanted if is_in(cell, change.act.at)]:
                    found[cell] = change
                    wanted.discard(cell)
        return found

    def meanwhile(self, at: int, cells: Iterable[int]) -> tuple[int, Done] | None:
        """A change that nothing orders against the read at ``at``, with the cell; or None."""
        read, wanted = self.program[at], set(cells)
        for change in self.changes[read.resource]:
            if change.act.lane != read.lane:
                for cell in sorted(cell for cell in wanted if is_in(cell, change.act.at)):
                    if self.is_unordered(at, change):
                        return cell, change
                    break
        return None

    def is_unordered(self, at: int, other: Done) -> bool:
        """Whether nothing says which of two acts comes first."""
        done = self.done[at]
        return not (done.is_before(other) or other.is_before(done)) and done is not other


# -- What one step of one request read, and whom it has it from ------------------------------------

ROW_CELLS = ("page table", "token pool")  # a cell for each position of each row of the table


class Defect(NamedTuple):
    """What is not as it should be: a sentence, the slices that did it, and the edge that lacks."""

    sentence: str
    slices: tuple[int, ...]
    missing: tuple[int, int] | None = None


class ReadFrom(NamedTuple):
    """A step whose work for a request was read, and where, in words."""

    step: int
    rid: str
    where: str
    is_token: bool = False  # and not KV


@dataclass
class StepReads:
    """Everything that step ``step`` read for ``rid``, in one scheduler's run (``side``).

    Whoever looks at a read adds to ``sources`` what it was built upon.
    """

    trace: Trace
    past: Past
    step: int
    rid: str
    side: str = ""
    sources: list[ReadFrom] = field(default_factory=list)

    @cached_property
    def slices(self) -> dict[int, Slice]:
        """By id."""
        return {item.id: item for item in self.trace.slices}

    @cached_property
    def ledger(self) -> Ledger:
        """The books as they were when the step had just been committed."""
        ledger = Ledger()
        for mark, now in moments(self.trace, self.side):
            ledger.hear(mark, now)
            if mark.name == "commit" and mark.attrs["step"] == self.step:
                break
        return ledger

    @cached_property
    def lease(self) -> HeldLease | None:
        """The request's lease in this step."""
        leases = self.ledger.commits.get(self.step, [])
        return next((lease for lease in leases if lease and lease.rid == self.rid), None)

    @cached_property
    def steps_before(self) -> list[int]:
        """Earlier steps that named the same lease."""
        return self.steps_of(self.lease)

    def steps_of(self, lease: HeldLease | None) -> list[int]:
        """Earlier steps that named a lease."""
        commits = self.ledger.commits.items()
        return [step for step, named in commits if step < self.step and lease in named]

    def giver_of(self, lease: HeldLease | None) -> int:
        """The step whose sample is the lease's input, if the host did not know it; else 0.

        The host knows what had come back when this step was committed.
        """
        return self.ledger.giver_of(lease)

    @cached_property
    def page_size(self) -> int:
        """KV slots in a page."""
        sizes = [mark.attrs["page_size"] for mark in self.trace.marks if mark.name == "kv pool"]
        return int(sizes[0]) if sizes else 1

    @cached_property
    def row_len(self) -> int:
        """Cells of a row of the page table; 0 where the trace does not say."""
        for at in self.reads("page table"):
            if self.lease is not None and self.past.program[at].rid:
                return cells_of(self.past.program[at].at)[0] // self.lease.row
        return 0

    @cached_property
    def ops(self) -> list[Slice]:
        """What the devices ran of this step."""
        before = f"{self.side} " if self.side else ""
        return [
            item
            for item in self.trace.slices
            if item.step == self.step and not is_host(item.lane) and item.lane.startswith(before)
        ]

    def samples_of(self, step: int) -> tuple[int, ...]:
        """The slice in which a step sampled, by id; nothing if there is none."""
        before = f"{self.side} " if self.side else ""
        found = (item for item in self.trace.slices if item.step == step and item.name == "sample")
        return tuple(item.id for item in found if item.lane.startswith(before))

    def reads(self, *resources: str) -> Iterator[int]:
        """Where this step reads for ``rid`` what begins or ends in one of ``resources``."""
        for item in self.ops:
            for at in self.past.by_op[item.id]:
                act = self.past.program[at]
                name, is_mine = act.resource, act.rid in ("", self.rid)
                is_asked = name.endswith(resources) or name.startswith(resources)
                if act.kind == "read" and is_mine and is_asked:
                    yield at

    def step_of(self, act: Act) -> int:
        """The step that an act belongs to; 0 if to none."""
        return self.slices[act.op].step if act.op in self.slices else 0

    def who(self, act: Act) -> str:
        """Who did it: ``the forward of step 3``."""
        item = self.slices.get(act.op)
        return f"the {item.name} of step {item.step}" if item and item.step else act.lane

    def name_of(self, resource: str, cell: int) -> str:
        """A cell in words."""
        if resource.endswith("kv"):
            return f"{resource[:-2]}KV slot {cell}"
        if resource == "future map":
            return f"future slot {cell}"
        if resource.endswith(ROW_CELLS) and self.row_len:
            row, position = divmod(cell, self.row_len)
            return f"position {position} of row {row} of the {resource}"
        if buffer := re.fullmatch(r"(.*?)(host )?(output \d+)", resource):
            where, kind, name = buffer.groups()
            return f"cell {cell} of {where}{kind or 'device '}{name.replace(' ', ' buffer ')}"
        return f"cell {cell} of {resource}"

    def race(self, at: int, cells: list[int]) -> Iterator[Defect]:
        """Somebody changes a cell, and nothing says whether before or after it is read."""
        if found := self.past.meanwhile(at, cells):
            cell, change = found
            read, other = self.past.program[at], change.act
            verb = "frees" if other.kind == "free" else "writes"
            yield Defect(
                f"{self.who(read)} reads {self.name_of(read.resource, cell)}, which "
                f"{self.who(other)} {verb}, and nothing makes one of them wait for the other",
                (other.op, read.op),
                (other.op, read.op),
            )


# -- Inputs, values and outputs of a step: its own when they are read, and written by then ---------


def faults_of_output(reads: StepReads) -> Iterator[Defect]:
    """On the way of the tokens to the host, from its end."""
    for at in [*_host_reads(reads), *reads.reads("output")]:
        yield from _buffer(reads, at)


def faults_of_inputs(reads: StepReads) -> Iterator[Defect]:
    """The step's arrays, and what its ops take from others."""
    for at in reads.reads("inputs"):
        yield from _buffer(reads, at)
    for at in reads.reads("value"):
        yield from _value(reads, at)


def _buffer(reads: StepReads, at: int) -> Iterator[Defect]:
    """One read of a buffer that holds one step's things at a time."""
    read = reads.past.program[at]
    cells = cells_of(read.at)
    yield from reads.race(at, cells)
    for cell, change in sorted(reads.past.newest(at, cells).items()):
        what, slices = reads.name_of(read.resource, cell), (change.act.op, read.op)
        if change.act.kind == "free":
            yield Defect(f"{what} was freed before {reads.who(read)} had read it", slices)
        elif "output" in read.resource and reads.step_of(change.act) != reads.step:
            yield Defect(
                f"{what} was overwritten by {reads.who(change.act)} before {reads.who(read)} had "
                f"read what step {reads.step} left there",
                slices,
            )


def _value(reads: StepReads, at: int) -> Iterator[Defect]:
    """An op takes another one's value, maybe before that has ended."""
    read, past = reads.past.program[at], reads.past
    for source in cells_of(read.at):
        end = past.ended.get(source)
        if end is not None and past.is_unordered(at, end):
            giver = reads.who(end.act)
            yield Defect(
                f"{reads.who(read)} takes the value of {giver}, and nothing makes it wait for that",
                (source, read.op),
                (source, read.op),
            )


def _host_reads(reads: StepReads) -> Iterator[int]:
    """Where the host read this step's output: the first time after it had waited for the copy."""
    program, by_op = reads.past.program, reads.past.by_op
    copies = {item.id for item in reads.ops if item.name == "copy"}
    written = {program[at].resource for op in copies for at in by_op[op]
               if program[at].kind == "write"}  # fmt: skip
    has_waited = False
    for at, act in enumerate(program):
        has_waited = has_waited or (act.kind == "wait" and act.op in copies and is_host(act.lane))
        is_read = act.kind == "read" and act.resource in written
        if has_waited and is_read and at in reads.past.order:
            yield at
            return


# -- KV slots and rows of the page table: do they hold what was written for this request? ----------


def faults_of_table(reads: StepReads) -> Iterator[Defect]:
    """The request's row of the page table was written while the row was the request's."""
    for at in reads.reads("page table"):
        read = reads.past.program[at]
        if not read.rid or reads.lease is None:
            continue
        cells = cells_of(read.at)
        yield from reads.race(at, cells)
        for cell, change in sorted(reads.past.newest(at, cells).items()):
            step = reads.step_of(change.act)
            theirs = reads.ledger.commits.get(step, [])
            if change.act.kind == "write" and step and reads.lease not in theirs:
                what = reads.name_of(read.resource, cell)
                rids = " and ".join(lease.rid for lease in theirs if lease)
                yield Defect(
                    f"{what} was written in step {step} for {rids}, and not since, although "
                    f"{reads.who(read)} reads it for {reads.rid}",
                    (change.act.op, read.op),
                )


def faults_of_kv(reads: StepReads) -> Iterator[Defect]:
    """Each KV slot holds what was written for this request, or what the cache has for it."""
    for at in reads.reads("kv"):
        read = reads.past.program[at]
        if read.rid:
            cells = cells_of(read.at)
            yield from reads.race(at, cells)
            newest = reads.past.newest(at, cells)
            for cell in cells:
                yield from _slot(reads, read, cell, newest.get(cell))


def _slot(reads: StepReads, read: Act, slot: int, change: Done | None) -> Iterator[Defect]:
    """One KV slot, and who changed it last before it was read."""
    what = reads.name_of(read.resource, slot)
    if change is None:
        reader = f"step {reads.step} reads for {reads.rid}"
        yield Defect(f"{what}, which {reader}, was never written", (read.op,))
        return
    step, writer, page = reads.step_of(change.act), change.act.rid, slot // reads.page_size
    slices = (change.act.op, read.op)
    still = f"although {reads.rid} still reads it in step {reads.step}"
    owner = reads.ledger.pages.held.get(page)
    is_anothers = owner is not None and owner is not reads.lease
    if change.act.kind == "free":
        yield Defect(f"{what} was given back {_fate_of(reads, page)}, {still}", slices)
    elif writer == reads.rid and is_anothers and owner:
        since = owner.pages.get(page, owner.opened)
        yield Defect(f"{what} is {owner.rid}'s, allocated to it {since}, {still}", slices)
    elif writer != reads.rid and (is_anothers or _is_mine(reads, slot, change)):
        yield Defect(f"{what} was written in step {step} for {writer}, {still}", slices)
    else:
        reads.sources.append(ReadFrom(step, writer, what))


def _fate_of(reads: StepReads, page: int) -> str:
    """Who gave a page back, when, and who has it now, as far as the marks say."""
    pages = reads.ledger.pages
    if owner := pages.held.get(page):
        again = " once more" if owner is reads.lease else ""
        return f"and allocated to {owner.rid}{again} {owner.pages.get(page, owner.opened)}"
    rid, when = pages.freed.get(page, ("", None))
    who = f"by {rid}" if rid else "by the prefix cache"
    return f"{who} {when}" if when else "before"


def _is_mine(reads: StepReads, slot: int, change: Done) -> bool:
    """Whether this lease owns a slot's page, or had read or written the slot before a change."""
    if reads.ledger.pages.held.get(slot // reads.page_size) is reads.lease:
        return True
    past = reads.past
    for step in reads.steps_before:
        ops = [item for item in reads.trace.slices if item.step == step]
        for at in (at for item in ops for at in past.by_op[item.id]):
            act = past.program[at]
            is_it = act.rid == reads.rid and act.resource.endswith("kv") and is_in(slot, act.at)
            if is_it and past.order[at] < past.order[change.when]:
                return True
    return False


# -- The token that only the device knows: is it what the step before sampled for this request? ----

RELAYS = ("future map", "token pool", "prev sampled", "last tokens")


def faults_of_relay(reads: StepReads) -> Iterator[Defect]:
    """Each cell of a relay that the step reads for the request."""
    if reads.lease is None:
        return
    yield from _not_taken(reads, reads.lease)
    for at in reads.reads(*RELAYS):
        read = reads.past.program[at]
        mine = set(_cells_of_lease(reads, read.resource, reads.lease))
        cells = [cell for cell in cells_of(read.at) if cell in mine]
        yield from reads.race(at, cells)
        newest = reads.past.newest(at, cells)
        for cell in cells:
            yield from _cell(reads, read, cell, newest.get(cell))


def _not_taken(reads: StepReads, lease: HeldLease) -> Iterator[Defect]:
    """A token that only the device has must be taken from there, and no other one."""
    giver, step, rid = reads.giver_of(lease), reads.step, reads.rid
    forward = tuple(item.id for item in reads.ops if item.name == "forward")
    for item in slot_reads(reads):
        if item.lease is lease and item.sentence and item.slot != item.should:
            yield Defect(item.sentence, (*reads.samples_of(giver), *forward))
    if giver and not _takes(reads, lease, giver):
        yield Defect(
            f"step {step} did not take the token that step {giver} had sampled for {rid} from the "
            "device, although the host did not know it: it computed with another one, or with a "
            "placeholder",
            (*reads.samples_of(giver), *forward),
        )
    row = reads.ledger.commits[step].index(lease)
    filled = _mark(reads, "placeholder fill", step)
    if filled and not giver and (source := int(str(filled.attrs["rows"]).split()[row])) >= 0:
        yield Defect(
            f"row {row} of step {step} was filled with the token of row {source} of the step "
            f"before, although all tokens of {rid} were known",
            (*reads.samples_of(step - 1), *forward),
        )


def _takes(reads: StepReads, lease: HeldLease, giver: int) -> bool:
    """Whether a step takes the token that ``giver`` sampled for a lease, as far as is known.

    Where nothing in the run takes any from the device (``fill_host``), the host fills them in.
    """
    if lazy := _mark(reads, "lazy tokens", reads.step):
        place = reads.ledger.commits[giver].index(lease) + 1
        return lazy.attrs["source"] == giver and place in numbers(lazy.attrs["places"])
    program = reads.past.program
    found = [program[at] for at in reads.reads(*RELAYS)]
    mine = {name: _cells_of_lease(reads, name, lease) for name in RELAYS}
    if any(is_in(cell, read.at) for read in found for cell in mine[read.resource]):
        return True
    return not any(act.kind == "read" and act.resource in RELAYS for act in reads.trace.program)


def _cell(reads: StepReads, read: Act, cell: int, change: Done | None) -> Iterator[Defect]:
    """One cell, and who changed it last before it was read."""
    what = reads.name_of(read.resource, cell)
    reader = f"step {reads.step} reads for {reads.rid}"
    if change is None:
        yield Defect(f"{what}, which {reader}, was never written", (read.op,))
        return
    step, slices = reads.step_of(change.act), (change.act.op, read.op)
    giver = max(reads.steps_before, default=0)
    theirs = reads.ledger.commits.get(step, [])
    is_pool = read.resource == "token pool"
    if change.act.kind == "free":
        yield Defect(f"{what}, which {reader}, was given back before that", slices)
    elif reads.lease not in theirs or (step != giver and not is_pool):
        whose = _given_to(reads, read.resource, cell, step)
        yield Defect(
            f"{what} was written in step {step}{whose}, although {reads.rid} still needs what was "
            f"there before: {reads.who(read)} reads it",
            slices,
        )
    else:
        reads.sources.append(ReadFrom(step, reads.rid, what, is_token=True))


def _cells_of_lease(reads: StepReads, resource: str, lease: HeldLease) -> list[int]:
    """Which cells of a relay belong to the request's inputs."""
    if resource == "token pool":
        begin = lease.row * reads.row_len
        return list(range(begin, begin + reads.row_len))
    if resource == "future map":
        found = slot_reads(reads)
        return [item.slot for item in found if item.lease is lease and item.slot is not None]
    giver = reads.giver_of(lease)
    return [reads.ledger.commits[giver].index(lease)] if giver else []


def slot_reads(reads: StepReads) -> list[SlotRead]:
    """Which future slot the step reads for whom; nothing where the relay has none."""
    if (mark := _mark(reads, "future slots", reads.step)) is None:
        return []
    ledger = reads.ledger  # as it is before the mark
    asks = [ledger.ask(lease) for lease in ledger.commits[reads.step]]
    now = ledger.in_flight[reads.step]
    return ledger.slots.reads_of(reads.step, asks, numbers(mark.attrs["reads"]), now)


def _mark(reads: StepReads, name: str, step: int) -> Mark | None:
    """What a relay said of a step."""
    marks = (mark for mark in reads.trace.marks if mark.name == name)
    return next((mark for mark in marks if mark.attrs["step"] == step), None)


def _slots_of(reads: StepReads, step: int, lease: HeldLease) -> list[int]:
    """The future slot that a step got for a lease."""
    if (mark := _mark(reads, "future slots", step)) is None:
        return []
    pairs = zip(numbers(mark.attrs["slots"]), reads.ledger.commits.get(step, []), strict=False)
    return [slot for slot, whose in pairs if whose is lease]


def _given_to(reads: StepReads, resource: str, cell: int, step: int) -> str:
    """For whom a step wrote a cell, as far as that is known."""
    leases = [lease for lease in reads.ledger.commits.get(step, []) if lease]
    if resource == "token pool":
        leases = [lease for lease in leases if lease.row == cell // max(1, reads.row_len)]
    elif resource == "future map":
        leases = [lease for lease in leases if cell in _slots_of(reads, step, lease)]
    else:
        leases = leases[cell : cell + 1]
    return f" for {leases[0].rid}" if leases else ""


@dataclass(frozen=True)
class ChainLink:
    """One thing that happened on the way to a wrong token; ``slices`` are those that did it."""

    sentence: str
    slices: tuple[int, ...] = ()


@dataclass(frozen=True)
class WrongTokenStory:
    """Why a token is wrong: the culprit, and the chain from the token back to it.

    ``is_known`` is False where all that the trace tells is as it should be: then what is wrong is
    inside an op. ``missing`` is the edge that should have been there, from slice to slice.
    """

    difference: Difference
    culprit: ChainLink
    chain: tuple[ChainLink, ...]
    is_known: bool = True
    missing: tuple[int, int] | None = None

    def __str__(self) -> str:
        return "\n".join([self.culprit.sentence, *(f"  {link.sentence}" for link in self.chain)])


def token_offence(story: WrongTokenStory) -> Offence:
    """What a picture of the story shows in red."""
    return Offence(story.culprit.slices, story.culprit.sentence, story.missing)


def explain(difference: Difference, trace: Trace) -> WrongTokenStory:
    """The chain of events that produced a wrong token, the culprit first.

    Raises:
        ValueError: the trace does not say which tokens were delivered, or what its lanes did.
    """
    if not trace.program:
        raise ValueError(
            f"The trace of {trace.loop} has no program, so nobody can tell who wrote what."
        )
    heard = tokens_heard(trace).get(difference.rid, [])
    is_heard = difference.position < len(heard)
    step = heard[difference.position].step if is_heard else heard[-1].step if heard else 0
    side = "decode" if any("side" in mark.attrs for mark in trace.marks) else ""
    reads = StepReads(trace, Past(trace), step, difference.rid, side)
    begin = _begin(difference, reads)
    for item in misdeliveries(trace, side):
        if item.rid == difference.rid and (item.step <= step or not is_heard):
            culprit = ChainLink(item.sentence, reads.samples_of(item.step))
            return WrongTokenStory(difference, culprit, (begin,))
    return _walk(difference, reads, begin) if is_heard else _silence(difference, reads, begin)


def _walk(difference: Difference, first: StepReads, begin: ChainLink) -> WrongTokenStory:
    """Breadth first: what is nearest to the token is told first."""
    seen = {(first.step, first.rid)}
    waiting: deque[tuple[StepReads, tuple[ChainLink, ...]]] = deque([(first, (begin,))])
    relayed: ChainLink | None = None
    while waiting:
        reads, chain = waiting.popleft()
        if fault := first_fault(reads, is_token=reads is first):
            culprit = ChainLink(fault.sentence, fault.slices)
            return WrongTokenStory(difference, culprit, chain, missing=fault.missing)
        for found in reads.sources:
            link = _read(reads, found)
            if relayed is None and found.is_token:
                relayed = link
            if found.step and (found.step, found.rid) not in seen:
                seen.add((found.step, found.rid))
                source = replace(reads, step=found.step, rid=found.rid, sources=[])
                waiting.append((source, (*chain, link)))
    return _nothing_found(difference, first, begin, relayed)


def first_fault(reads: StepReads, is_token: bool = True) -> Defect | None:
    """The first thing that a step read and that is not as it should be.

    With ``is_token`` the way of its tokens to the host is looked at, too.
    """
    rules = [faults_of_inputs, faults_of_relay, faults_of_table, faults_of_kv]
    for rule in [faults_of_output, *rules] if is_token else rules:
        for fault in rule(reads):
            return fault
    return None


def _begin(difference: Difference, reads: StepReads) -> ChainLink:
    """Where the story begins: the token, and the step that sampled it."""
    rid, at, step = reads.rid, difference.position, reads.step
    if difference.got is None:
        where = f"after output {at - 1}, from step {step}, {rid} heard nothing more"
        words = f"{where if step else f'{rid} heard nothing'}, although {difference.expected}"
        return ChainLink(f"{words} should have followed", reads.samples_of(step))
    wanted = "nothing" if difference.expected is None else str(difference.expected)
    words = f"{rid}'s output {at} is {difference.got} instead of {wanted}; step {step} sampled it"
    return ChainLink(words, reads.samples_of(step))


def _read(reads: StepReads, found: ReadFrom) -> ChainLink:
    """What a step was built upon."""
    ops = [item for item in reads.trace.slices if item.step == found.step]
    name = "sample" if found.is_token else "forward"
    return ChainLink(
        f"step {reads.step} read {found.where} for {reads.rid}, which step {found.step} had "
        f"written for {found.rid}",
        tuple(item.id for item in ops if item.name == name),
    )


def _nothing_found(
    difference: Difference, reads: StepReads, begin: ChainLink, relayed: ChainLink | None
) -> WrongTokenStory:
    """All that was read is as it should be, so an op made something wrong of it."""
    where = f"an op of step {reads.step}, or of a step before it"
    words = "everything that was read for this token is as it should be, as far as the trace tells"
    forward = tuple(item.id for item in reads.ops if item.name == "forward")
    if relayed is None:
        culprit = ChainLink(f"{words}, so {where}, made something wrong of it", forward)
        return WrongTokenStory(difference, culprit, (begin,), is_known=False)
    culprit = ChainLink(
        f"{words}, so {where}, made something wrong of it; the first to look at is what the "
        f"forward pass made of the token from the device: {relayed.sentence}",
        (*relayed.slices, *forward),
    )
    return WrongTokenStory(difference, culprit, (begin, relayed), is_known=False)


def _silence(difference: Difference, reads: StepReads, begin: ChainLink) -> WrongTokenStory:
    """A token that never came."""
    rid, finish = difference.rid, "finish"
    ends = (mark for mark in reads.trace.marks if mark.name == finish and mark.attrs["rid"] == rid)
    end = next(ends, None)
    fate = f"it ended too early ({end.attrs['reason']})" if end else "the run stopped before it"
    text = f"output {difference.position} of {rid} was never delivered: {fate}"
    return WrongTokenStory(difference, ChainLink(text, begin.slices), (begin,), is_known=False)
