"""Streams of the simulated device: ops that take virtual time, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..trace import Touch
from .base import NO_LABEL, Label
from .sim_op import SimOp, SimSignal
from .sim_shared import FINISH, Side

if TYPE_CHECKING:
    from .sim import SimDevice

START = FINISH + 1  # at one instant, ops finish before others start


class SimStream:
    """A queue of ops and waits, worked off one at a time."""

    side: Side = "device"

    def __init__(self, device: SimDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.queue: deque[tuple[str, SimOp | SimSignal]] = deque()
        self.is_busy = False

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> SimOp:
        """Queue an op that takes ``cost`` nanoseconds."""
        op = SimOp(self, fn, args)
        op.name, op.cost, op.label = name, cost, label
        op.slice_id = self.device.recorder.new_id()
        self._record_launch(op, touches)
        self.queue.append(("run", op))
        self.advance()
        return op

    def wait(self, op: SimOp | SimSignal) -> None:
        """Hold back what follows until ``op`` has ended."""
        self._record_wait(op, is_over=False)
        self.queue.append(("wait", op))
        self.advance()

    def advance(self) -> None:
        """Start the next op, unless one is running or a wait holds it back."""
        while self.queue and not self.is_busy:
            action, op = self.queue[0]
            if action == "wait" and not op.done:
                op.when_done.append(self.advance)
                return
            self.queue.popleft()
            if action == "wait":
                self._record_wait(op, is_over=True)
            if isinstance(op, SimOp) and action == "run":
                self.is_busy = True
                ready = self.device.time + self.device.pace.start.get(op.name, 0)
                self.device.at(ready, START, partial(self._start, op))

    def _record_launch(self, op: SimOp, touches: Sequence[Touch]) -> None:
        """What the op will do is known now: streams run in order."""
        self.device.recorder.program.launch(self.name, op.slice_id, op.args, touches)

    def _record_wait(self, op: SimOp | SimSignal, is_over: bool) -> None:
        """Where in the stream's order the wait is, is known when it is queued."""
        if not is_over:
            self.device.recorder.program.wait(op.slice_id, self.name)

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        self.device.running, outer = op, self.device.running
        op.run()
        self.device.running = outer
        self.device.finish_after(op.cost, self.side, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        for memory, writes in op.writes.items():
            memory.apply(writes, op.slice_id)
        op.done, self.is_busy = True, False
        self.device.record(self.name, op.name, op.start, op.label, op.slice_id)
        for callback in op.when_done:
            callback()
        self.advance()


class SimThread(SimStream):
    """A further thread of the host: what a call does becomes true at its end, as on the host."""

    side: Side = "host"

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        self.device.finish_after(op.cost, self.side, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        with self.device.recorder.program.inside(self.name, op.slice_id):
            op.run()
        super()._finish(op)

    def _record_launch(self, op: SimOp, touches: Sequence[Touch]) -> None:
        """Only that it was queued: what the call does, it says itself."""
        self.device.recorder.program.call(op.slice_id)

    def _record_wait(self, op: SimOp | SimSignal, is_over: bool) -> None:
        """When it is over: what the thread did before has been recorded by then."""
        if is_over:
            self.device.recorder.program.wait(op.slice_id, self.name)
