"""What each op on ``sim`` really touched, beside what was declared when it was launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from minisched.devices.sim_memory import SimMemory
from minisched.engine.engine import Engine
from minisched.trace import Trace
from minisched.trace.cells import spans_of
from minisched.trace.lanes import is_host
from minisched.trace.side import named

NO_MEMORY = ("value", "inputs", "pinned")  # what an op gives or is given, not memory of a device
IN_VAIN = {  # read, and thrown away, for every token that is known
    f"{side}{name}": {0}
    for side in ("", "prefill ", "decode ")
    for name in ("future map", "last tokens")
}
DUMP = {"token pool": {0}}  # where samples go that mean nothing


@dataclass
class Cells:
    """Of one op and one resource: read at all, read before the op wrote it itself, written."""

    read: set[int] = field(default_factory=set)
    found: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


Ops = defaultdict[tuple[int, str], Cells]
Log = dict[int, tuple[SimMemory, defaultdict[int, Cells]]]  # memory by id, cells by op


@contextmanager
def watched() -> Iterator[Log]:
    """Note who reads and writes which cells of every memory of a simulated device."""
    log: Log = {}
    get, put = SimMemory.__getitem__, SimMemory.__setitem__

    def cells_of(memory: SimMemory) -> Cells:
        op, program = memory.device.running, memory.device.recorder.program
        _, by_op = log.setdefault(id(memory), (memory, defaultdict(Cells)))
        return by_op[op.slice_id if op else 0 if program.lane == "host" else program.op]

    def indices(memory: SimMemory, index: Any) -> set[int]:
        return {index} if isinstance(index, int) else set(memory._indices(index))

    def watched_get(memory: SimMemory, index: Any) -> Any:
        cells, found = cells_of(memory), indices(memory, index)
        cells.read |= found
        cells.found |= found - cells.written
        return get(memory, index)

    def watched_put(memory: SimMemory, index: Any, value: Any) -> None:
        cells_of(memory).written |= indices(memory, index)
        put(memory, index, value)

    with (
        patch.object(SimMemory, "__getitem__", watched_get),
        patch.object(SimMemory, "__setitem__", watched_put),
    ):
        yield log


def names_of(engine: Engine) -> dict[int, str]:
    """What the layers of a model's KV are called in a program, by the memory's id."""
    worker: Any = engine.worker
    names = {id(memory): "kv" for memory in worker.model.kv}
    for stage in getattr(worker, "stages", ()):
        names |= {id(worker.model.kv[layer]): f"{stage.place}kv" for layer in stage.layers}
    drafter = getattr(worker, "drafter", None)
    return names | {id(memory): "draft kv" for memory in kv_of(drafter)}


def kv_of(drafter: Any) -> list[SimMemory]:
    """The KV of a draft model."""
    return drafter.model.kv if hasattr(drafter, "model") else []


def touched(log: Log, *engines: Engine) -> Ops:
    """What was watched, by op and by the name of the memory."""
    ops: Ops = defaultdict(Cells)
    for memory, by_op in log.values():
        for engine in engines:
            if memory.device is engine.device:
                name = names_of(engine).get(id(memory), memory.name)
                side = getattr(engine.device.recorder, "side", "")
                name = named(side, name) if side else name
        for op, cells in by_op.items():
            ops[op, name].read |= cells.read
            ops[op, name].found |= cells.found
            ops[op, name].written |= cells.written
    return ops


def declared(trace: Trace) -> Ops:
    """What the ops of a program say that they touch, the host's own accesses left out."""
    ops: Ops = defaultdict(Cells)
    for act in trace.program:
        if act.resource and not act.resource.endswith(NO_MEMORY) and not is_host(act.lane):
            ours = ops[act.op, act.resource]
            cells = ours.read if act.kind == "read" else ours.written
            for first, last in spans_of(act.at):
                cells |= set(range(first, last + 1))
    return ops


def check_declared(trace: Trace, log: Log, *engines: Engine, exact: bool = True) -> int:
    """Every access was declared, and, if ``exact``, nothing else; how many cells were touched.

    What an op has written itself it may read undeclared.
    """
    real, said = touched(log, *engines), declared(trace)
    check_landed(real, said)
    for op, name in real.keys() | said.keys():
        cells, claimed = real[op, name], said[op, name]
        told = claimed.read if exact else claimed.read | claimed.written
        check_within(cells.found - IN_VAIN.get(name, set()), told, f"op {op} reads {name}")
        check_within(
            cells.written - DUMP.get(name, set()), claimed.written, f"op {op} writes {name}"
        )
        if exact:
            check_within(claimed.read, cells.read, f"op {op} says in vain that it reads {name}")
            check_within(
                claimed.written, cells.written, f"op {op} says in vain that it writes {name}"
            )
    return sum(len(cells.found) + len(cells.written) for cells in real.values())


def check_landed(real: Ops, said: Ops) -> None:
    """KV lands on the decode side when its clock gets there too, in nobody's op: all that was sent.

    Apart from that the host itself touches no memory of a device.
    """
    landed = real.pop((0, "decode kv"), Cells()).written
    sent = {key: cells for key, cells in said.items() if key[1] == "decode kv" and (
        key[0], "prefill kv") in said}  # fmt: skip
    for key in sent:
        del said[key]
    assert landed == set[int]().union(*(cells.written for cells in sent.values()))
    assert not any(op == 0 for op, _ in real)


def check_within(cells: set[int], others: set[int], what: str) -> None:
    """All of ``cells`` are among the others."""
    assert cells <= others, f"{what} {sorted(cells - others)}, which are not in {sorted(others)}"
