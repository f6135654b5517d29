"""Memory of the simulated device: read as it is when an op starts, changed when the op ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .base import WRONG_TOKEN
from .vector import Vector

if TYPE_CHECKING:
    from .sim import SimDevice


class Access(NamedTuple):
    """What an op, or the host (0), did to cells of a memory; ``cells`` as it was indexed."""

    op: int
    memory: SimMemory
    cells: Any
    is_write: bool


class Accesses(list[Access]):
    """Every access to the memory of simulated devices, in order (``checks/touches.py``).

    ``failed`` are the ops that stopped on their way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def note(self, memory: SimMemory, cells: Any, is_write: bool) -> None:
        """An op, a call on a thread of the host, or the host accesses memory."""
        op, program = memory.device.running, memory.device.recorder.program
        who = op.slice_id if op else 0 if program.lane == "host" else program.op
        self.append(Access(who, memory, cells, is_write))


class SimMemory:
    """``size`` integers. An op sees its own writes at once; everybody else sees them at its end."""

    def __init__(self, device: SimDevice, name: str, size: int) -> None:
        self.device = device
        self.name = name
        self.values = [WRONG_TOKEN] * size
        self.is_followed = False
        self.writers: dict[int, int] = {}  # cell -> slice id of the op it was written by last

    def follow(self) -> None:
        """Remember from now on who has written each cell."""
        self.is_followed = True

    def __getitem__(self, index: Any) -> Any:
        """One integer by int, or a vector by slice or by a sequence of indices."""
        op, accesses = self.device.running, self.device.accesses
        if accesses is not None:
            accesses.note(self, index, False)
        own = op.writes.get(self, {}) if op else {}
        if isinstance(index, int):
            return own.get(index, self.values[index])
        return Vector(own.get(at, self.values[at]) for at in self.indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write one integer, or one for each index."""
        op, accesses = self.device.running, self.device.accesses
        if accesses is not None:
            accesses.note(self, index, True)
        if isinstance(index, int):
            index, value = (index,), (value,)
        writes = dict(zip(self.indices(index), value, strict=True))
        if op is None:
            self.apply(writes, 0)
        else:
            op.writes.setdefault(self, {}).update(writes)

    def apply(self, writes: dict[int, int], op: int) -> None:
        """Let the writes of an op, or of the host (0), take effect."""
        for at, value in writes.items():
            self.values[at] = value
        if self.is_followed:
            self.writers.update(dict.fromkeys(writes, op))

    def indices(self, index: Any) -> Iterable[int]:
        """The cells that a slice or a sequence means."""
        return range(len(self.values))[index] if isinstance(index, slice) else index
