"""Inputs, values and outputs of a step: its own when they are read, and written by then."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace.events import is_host
from ...trace.program import cells_of
from .step_reads import Fault, StepReads


def faults_of_output(reads: StepReads) -> Iterator[Fault]:
    """On the way of the tokens to the host, from its end."""
    for at in [*_host_reads(reads), *reads.reads("output")]:
        yield from _buffer(reads, at)


def faults_of_inputs(reads: StepReads) -> Iterator[Fault]:
    """The step's arrays, and what its ops take from others."""
    for at in reads.reads("inputs"):
        yield from _buffer(reads, at)
    for at in reads.reads("value"):
        yield from _value(reads, at)


def _buffer(reads: StepReads, at: int) -> Iterator[Fault]:
    """One read of a buffer that holds one step's things at a time."""
    read = reads.past.program[at]
    cells = cells_of(read.at)
    yield from reads.race(at, cells)
    for cell, change in sorted(reads.past.newest(at, cells).items()):
        what, slices = reads.name_of(read.resource, cell), (change.act.op, read.op)
        if change.act.kind == "free":
            yield Fault(f"{what} was freed before {reads.who(read)} had read it", slices)
        elif "output" in read.resource and reads.step_of(change.act) != reads.step:
            yield Fault(
                f"{what} was overwritten by {reads.who(change.act)} before {reads.who(read)} had "
                f"read what step {reads.step} left there",
                slices,
            )


def _value(reads: StepReads, at: int) -> Iterator[Fault]:
    """An op takes another one's value, maybe before that has ended."""
    read, past = reads.past.program[at], reads.past
    for source in cells_of(read.at):
        end = past.ended.get(source)
        if end is not None and past.is_unordered(at, end):
            giver = reads.who(end.act)
            yield Fault(
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
