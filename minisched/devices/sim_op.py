"""What the simulated device is asked for: ops, which take virtual time, and signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .base import NO_LABEL, OrNone
from .sim_memory import SimMemory

if TYPE_CHECKING:
    from .sim import SimDevice
    from .sim_stream import SimStream


class SimOp:
    """A launched op. ``writes`` holds what it wrote until it ends."""

    def __init__(self, stream: SimStream, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.stream = stream
        self.fn = fn
        self.args = args
        self.name = ""
        self.cost = 0
        self.label = NO_LABEL
        self.slice_id = 0
        self.start = 0
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.writes: dict[SimMemory, dict[int, int]] = {}
        self.when_done: list[Callable[[], None]] = []

    def query(self) -> bool:
        """Whether it has ended by now; who hears that it has, comes after it."""
        if self.done:
            self.stream.device.recorder.program.wait(self.slice_id)
        return self.done

    def synchronize(self) -> Any:
        """Let virtual time pass until it has ended; return its value or raise its error."""
        self.stream.device.run_until_done(self)
        self.stream.device.recorder.program.wait(self.slice_id)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value from memory as it is now; an argument's error is passed on."""
        try:
            self.value = self.fn(*map(value_of, self.args))
        except Exception as error:
            self.error = error
            if (accesses := self.stream.device.accesses) is not None:
                accesses.failed.add(self.slice_id)
        self.args = ()  # a chain of lazy steps would hold on to its whole past


def value_of(arg: Any) -> Any:
    """What an op is given for an argument: for another op its value, or the error that it had."""
    if isinstance(arg, OrNone):
        return arg.value
    if not isinstance(arg, SimOp):
        return arg
    if arg.error is not None:
        raise arg.error
    return arg.value


class SimSignal:
    """Something that is said at a moment (``devices/base.py:Signal``)."""

    def __init__(self, device: SimDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.slice_id = device.recorder.new_id()
        self.done = False
        self.when_done: list[Callable[[], None]] = []

    def set(self) -> None:
        """Say it; whatever waited goes on at this moment."""
        if not self.done:
            self.device.recorder.program.say(self.slice_id)
            self.done = True
            for callback in self.when_done:
                callback()

    def query(self) -> bool:
        """Whether it was said by now."""
        if self.done:
            self.device.recorder.program.wait(self.slice_id)
        return self.done

    def synchronize(self) -> None:
        """Let virtual time pass until it is said."""
        self.device.run_until_done(self)
        self.device.recorder.program.wait(self.slice_id)
