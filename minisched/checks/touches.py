"""What ops touched, beside what they said when they were launched: the law "touches", on ``sim``.

Races are found from what is said. What is touched and not said hides one, and what is said and not
touched would be one that nobody has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..devices.sim import SimDevice, SimMemory
from ..engine.engine import Engine
from ..trace import Trace
from ..trace.events import is_host
from ..trace.program import spans_of, to_text
from ..trace.recorder import named
from ..worker.pipeline import Stage
from .races import Words

NO_MEMORY = ("value", "inputs", "pinned")  # what an op gives or is given, not memory of a device
IN_VAIN = ("future map", "last tokens")  # cell 0: read, and thrown away, for every known token
DUMP = {"token pool": {0}}  # where samples go that mean nothing
STAND_IN = "page table"  # an op in the place of a step that was lost: it does less than that
SENT, LANDED = "prefill kv", "decode kv"  # of a transfer between the two sides of ``pd``


@dataclass
class Cells:
    """Of one op and one resource: read at all, read before the op wrote it itself, written."""

    read: set[int] = field(default_factory=set)
    found: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


Ops = defaultdict[tuple[int, str], Cells]  # by op and by the name of the memory


class Access(NamedTuple):
    """What an op, or the host (0), did to cells of a memory; ``cells`` as it was indexed."""

    op: int
    memory: SimMemory
    cells: Any
    is_write: bool


class Touched:
    """Follows the engines of one run, from before they start."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.engines: list[Engine] = []
        self.devices: list[SimDevice] = []

    def watch(self, engine: Engine) -> None:
        """Note what its ops do, if its device is a simulated one."""
        if isinstance(engine.device, SimDevice):
            engine.device.on_access = self.note
            self.devices.append(engine.device)
            self.engines.append(engine)

    def note(self, memory: SimMemory, cells: Any, is_write: bool) -> None:
        """An op, a call on a thread of the host, or the host accesses memory."""
        op, program = memory.device.running, memory.device.recorder.program
        who = op.slice_id if op else 0 if program.lane == "host" else program.op
        self.accesses.append(Access(who, memory, cells, is_write))

    def check(self, trace: Trace, finished: bool = True) -> Iterator[str]:
        """A sentence for each thing that was touched and not said, or said and not touched.

        What an op has written itself it may read unsaid. The ops of a step that failed have not
        done all that they said. With drafts, where only the device knows where a row begins, ops
        say all that they may touch; and behind a step that failed, a row that runs in vain reads
        what that one was to leave.
        """
        if not self.engines:
            return
        real, said, words = self.touched(), declared(trace), Words(trace)
        yield from (sentence for sentence in check_landed(real, said) if finished)
        steps = {item.id: item.step for item in trace.slices}  # of what has ended
        stopped = set[int]().union(*(device.failed for device in self.devices))
        failed = {steps.get(op, 0) for op in stopped}
        stand_ins = {item.id: item.step for item in trace.slices if item.name == STAND_IN}
        failed |= {*stand_ins.values()}
        drafts = any(engine.worker.touches.num_draft_tokens for engine in self.engines)
        lanes = {act.op: act.lane for act in trace.program if act.kind == "begin"}
        for op, name in sorted(real.keys() | said.keys()):
            cells, claimed = real[op, name], said[op, name]
            told = claimed.read | claimed.written if drafts else claimed.read
            unread = cells.found - told - ({0} if name.endswith(IN_VAIN) else set())
            unwritten = cells.written - claimed.written - DUMP.get(name, set())
            is_exact = op in steps and steps[op] not in failed and not drafts
            for verb, unsaid, in_vain in (
                (
                    "read",
                    set() if op in stand_ins or (drafts and failed) else unread,
                    claimed.read - cells.read,
                ),
                ("write", unwritten, claimed.written - cells.written),
            ):
                who = words.op(op, lanes.get(op, ""))
                if unsaid:
                    what = words.cells(name, to_text(unsaid))
                    yield f"{who} {verb}s {what}, and has not said so"
                if is_exact and in_vain:
                    what = words.cells(name, to_text(in_vain))
                    yield f"{who} says that it {verb}s {what}, and does not"

    def touched(self) -> Ops:
        """What was touched by whom."""
        ops: Ops = defaultdict(Cells)
        names = {id(memory): name for engine in self.engines for memory, name in kv_of(engine)}
        sides = {
            id(engine.device): getattr(engine.device.recorder, "side", "")
            for engine in self.engines
        }
        for op, memory, index, is_write in self.accesses:
            side, name = sides[id(memory.device)], names.get(id(memory), memory.name)
            cells = ops[op, named(side, name) if side else name]
            found = {index} if isinstance(index, int) else set(memory.indices(index))
            if is_write:
                cells.written |= found
            else:
                cells.read |= found
                cells.found |= found - cells.written
        return ops


def kv_of(engine: Engine) -> Iterator[tuple[SimMemory, str]]:
    """The layers of a model's KV, and what they are called in a program."""
    worker: Any = engine.worker
    yield from ((memory, "kv") for memory in worker.model.kv)
    for stage in (op.run for op in worker.recipe if isinstance(op.run, Stage)):
        layers = stage.layers(worker.model)
        yield from ((worker.model.kv[layer], f"{stage.place}kv") for layer in layers)
    draft_model = getattr(worker.touches.drafter, "model", None)
    yield from ((memory, "draft kv") for memory in (draft_model.kv if draft_model else ()))


def declared(trace: Trace) -> Ops:
    """What the ops of a program say that they touch, the host's own accesses left out."""
    ops: Ops = defaultdict(Cells)
    for act in trace.program:
        if act.resource and not act.resource.endswith(NO_MEMORY) and not is_host(act.lane):
            ours = ops[act.op, act.resource]
            cells = ours.read if act.kind == "read" else ours.written
            for first, last in spans_of(act.at):
                cells.update(range(first, last + 1))
    return ops


def check_landed(real: Ops, said: Ops) -> Iterator[str]:
    """KV lands on the decode side when its clock gets there too, in nobody's op: all that was sent.

    Apart from that the host itself touches no memory of a device.
    """
    landed = real.pop((0, LANDED), Cells()).written
    sent = [key for key in said if key[1] == LANDED and (key[0], SENT) in said]
    cells = set[int]().union(*(said.pop(key).written for key in sent))
    if landed != cells:
        yield f"{to_text(cells)} of {LANDED} are sent, and {to_text(landed)} land"
    for _, name in [key for key in real if key[0] == 0]:
        yield f"the host touches {name} of the device itself"
        del real[0, name]
