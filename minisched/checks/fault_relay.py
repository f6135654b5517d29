"""The token that only the device knows: is it what the step before sampled for this request?"""

from __future__ import annotations

from collections.abc import Iterator

from ..trace import Act
from .ledger import numbers
from .ledger_lease import HeldLease
from .past import Change, cells_of
from .step_reads import Fault, Source, StepReads

RELAYS = ("future map", "token pool", "prev sampled", "last tokens")


def faults_of_relay(reads: StepReads) -> Iterator[Fault]:
    """Each cell of a relay that the step reads for the request."""
    if reads.lease is None:
        return
    for at in reads.reads(*RELAYS):
        read = reads.past.program[at]
        mine = set(_cells_of_lease(reads, read.resource, reads.lease))
        cells = [cell for cell in cells_of(read.at) if cell in mine]
        yield from reads.race(at, cells)
        newest = reads.past.newest(at, cells)
        for cell in cells:
            yield from _cell(reads, read, cell, newest.get(cell))


def _cell(reads: StepReads, read: Act, cell: int, change: Change | None) -> Iterator[Fault]:
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
        reads.sources.append(Source(step, reads.rid, what))


def _cells_of_lease(reads: StepReads, resource: str, lease: HeldLease) -> list[int]:
    """Which cells of a relay belong to the request's inputs."""
    if resource == "token pool":
        begin = lease.row * reads.row_len
        return list(range(begin, begin + reads.row_len))
    if not reads.steps_before:
        return []
    giver = reads.steps_before[-1]
    if resource == "future map":
        return _slots_of(reads, giver, lease)
    before = reads.ledger.commits[giver]
    return [before.index(lease)]


def _slots_of(reads: StepReads, step: int, lease: HeldLease) -> list[int]:
    """The future slot that a step got for a lease."""
    for mark in reads.trace.marks:
        if mark.name == "future slots" and mark.attrs["step"] == step:
            leases = reads.ledger.commits.get(step, [])
            pairs = zip(numbers(mark.attrs["slots"]), leases, strict=False)
            return [slot for slot, whose in pairs if whose is lease]
    return []


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
