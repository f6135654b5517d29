"""KV slots and rows of the page table: do they hold what was written for this request?"""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Act
from ...trace.program import cells_of, is_in
from ..happens_before import Done
from .step_reads import Fault, Source, StepReads


def faults_of_table(reads: StepReads) -> Iterator[Fault]:
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
                yield Fault(
                    f"{what} was written in step {step} for {rids}, and not since, although "
                    f"{reads.who(read)} reads it for {reads.rid}",
                    (change.act.op, read.op),
                )


def faults_of_kv(reads: StepReads) -> Iterator[Fault]:
    """Each KV slot holds what was written for this request, or what the cache has for it."""
    for at in reads.reads("kv"):
        read = reads.past.program[at]
        if read.rid:
            cells = cells_of(read.at)
            yield from reads.race(at, cells)
            newest = reads.past.newest(at, cells)
            for cell in cells:
                yield from _slot(reads, read, cell, newest.get(cell))


def _slot(reads: StepReads, read: Act, slot: int, change: Done | None) -> Iterator[Fault]:
    """One KV slot, and who changed it last before it was read."""
    what = reads.name_of(read.resource, slot)
    if change is None:
        reader = f"step {reads.step} reads for {reads.rid}"
        yield Fault(f"{what}, which {reader}, was never written", (read.op,))
        return
    step, writer, page = reads.step_of(change.act), change.act.rid, slot // reads.page_size
    slices = (change.act.op, read.op)
    still = f"although {reads.rid} still reads it in step {reads.step}"
    owner = reads.ledger.pages.held.get(page)
    is_anothers = owner is not None and owner is not reads.lease
    if change.act.kind == "free":
        yield Fault(f"{what} was given back {_fate_of(reads, page)}, {still}", slices)
    elif writer == reads.rid and is_anothers and owner:
        since = owner.pages.get(page, owner.opened)
        yield Fault(f"{what} is {owner.rid}'s, allocated to it {since}, {still}", slices)
    elif writer != reads.rid and (is_anothers or _is_mine(reads, slot, change)):
        yield Fault(f"{what} was written in step {step} for {writer}, {still}", slices)
    else:
        reads.sources.append(Source(step, writer, what))


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
            if is_it and past.order[at] < past.order[change.at]:
                return True
    return False
