"""The token that only the device knows: is it what the step before sampled for this request?"""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Act, Mark
from ...trace.program import cells_of, is_in
from ..happens_before import Done
from ..leaks.lease import HeldLease
from ..leaks.ledger import numbers
from ..leaks.slots import SlotRead
from .step_reads import Fault, Source, StepReads

RELAYS = ("future map", "token pool", "prev sampled", "last tokens")


def faults_of_relay(reads: StepReads) -> Iterator[Fault]:
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


def _not_taken(reads: StepReads, lease: HeldLease) -> Iterator[Fault]:
    """A token that only the device has must be taken from there, and no other one."""
    giver, step, rid = reads.giver_of(lease), reads.step, reads.rid
    forward = tuple(item.id for item in reads.ops if item.name == "forward")
    for item in slot_reads(reads):
        if item.lease is lease and item.sentence and item.slot != item.should:
            yield Fault(item.sentence, (*reads.samples_of(giver), *forward))
    if giver and not _takes(reads, lease, giver):
        yield Fault(
            f"step {step} did not take the token that step {giver} had sampled for {rid} from the "
            "device, although the host did not know it: it computed with another one, or with a "
            "placeholder",
            (*reads.samples_of(giver), *forward),
        )
    row = reads.ledger.commits[step].index(lease)
    filled = _mark(reads, "placeholder fill", step)
    if filled and not giver and (source := int(str(filled.attrs["rows"]).split()[row])) >= 0:
        yield Fault(
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
    return not any(act.kind == "read" and act.resource in RELAYS for act in program)


def _cell(reads: StepReads, read: Act, cell: int, change: Done | None) -> Iterator[Fault]:
    """One cell, and who changed it last before it was read."""
    what = reads.name_of(read.resource, cell)
    reader = f"step {reads.step} reads for {reads.rid}"
    if change is None:
        yield Fault(f"{what}, which {reader}, was never written", (read.op,))
        return
    step, slices = reads.step_of(change.act), (change.act.op, read.op)
    giver = max(reads.steps_before, default=0)
    theirs = reads.ledger.commits.get(step, [])
    is_pool = read.resource == "token pool"
    if change.act.kind == "free":
        yield Fault(f"{what}, which {reader}, was given back before that", slices)
    elif reads.lease not in theirs or (step != giver and not is_pool):
        whose = _given_to(reads, read.resource, cell, step)
        yield Fault(
            f"{what} was written in step {step}{whose}, although {reads.rid} still needs what was "
            f"there before: {reads.who(read)} reads it",
            slices,
        )
    else:
        reads.sources.append(Source(step, reads.rid, what, is_token=True))


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
