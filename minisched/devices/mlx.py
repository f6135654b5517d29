"""MLX as a device: launching builds a graph at once, and a step is handed over by one async_eval.

MLX arrays are lazy: ``launch`` runs its function on the host, where it only builds a graph, and an
array that nobody has computed may be built upon. So a stream needs no queue and a wait no event;
the graph orders everything. SGLang ``hardware_backend/mlx``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ..trace import Recorder, Touch
from . import switch_interval
from .base import NO_LABEL, WRONG_TOKEN, Label
from .mlx_evaluate import evaluate
from .mlx_op import MlxOp
from .mlx_steps import StepRunner
from .wall_clock import WallClock

INTEGER = mx.int32  # Metal has no scatter for 64-bit integers; tokens and KV slots need 31 bits
SWITCH_INTERVAL = 0.0005  # seconds; how late a busy host can make a time stamp


class MlxArrays:
    """The array functions of ``devices/base.py:Arrays``, in MLX's terms."""

    def asarray(self, values: Sequence[int]) -> mx.array:
        """32-bit integers."""
        return mx.array(list(values), dtype=INTEGER)

    def asarrays(self, *columns: Sequence[int]) -> list[mx.array]:
        """An array for each: host and GPU have one memory."""
        return [self.asarray(values) for values in columns]

    def where(self, condition: mx.array, a: mx.array, b: mx.array) -> mx.array:
        """``a`` where the condition holds, else ``b``."""
        return mx.where(condition, a, b)

    def mask(self, values: Sequence[bool]) -> mx.array:
        """Booleans."""
        return mx.array(list(values), dtype=mx.bool_)

    def add(self, a: mx.array, b: mx.array) -> mx.array:
        """Sums, element by element."""
        return a + b

    def count_equal(self, a: mx.array, b: mx.array, width: int, num_rows: int) -> mx.array:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        equal = (a == b).reshape(num_rows, width).astype(INTEGER)
        return 1 + mx.cumprod(equal, axis=-1).sum(axis=-1) if width else mx.ones(num_rows, INTEGER)

    def rows_at(self, matrix: mx.array, at: mx.array) -> mx.array:
        """Some rows of logits, in the order of ``at``."""
        return matrix[at]

    def clamp(self, values: mx.array, min: int) -> mx.array:
        """Values below ``min`` raised to it."""
        return mx.maximum(values, min)


class MlxStream:
    """A lane of the trace; ``compute`` is the MLX stream that its ops go to."""

    def __init__(self, device: MlxDevice, name: str, compute: mx.Stream) -> None:
        self.device = device
        self.name = name
        self.compute = compute
        self.after: MlxOp | None = None

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> MlxOp:
        """Run ``fn`` on the host, now, to build its part of the graph; an error stays in the op."""
        op = MlxOp(self.device, self.name, name, label, self.device.recorder.new_id(), self.after)
        self.device.recorder.program.launch(self.name, op.slice_id, args, touches)
        with self.device.streams.using(self.compute):
            op.build(fn, args)
        self.device.launched.append(op)
        return op

    def wait(self, op: MlxOp) -> None:
        """Note it for the trace. What takes ``op``'s arrays waits for them by itself."""
        self.device.recorder.program.wait(op.slice_id, self.name)
        self.after = op


class MlxDevice(WallClock):
    """Lazy graphs on MLX's default device: Metal, or the CPU (``devices/base.py:Device``).

    A model's state must be reachable from what its ops return, or be made by ``memory``; then no
    graph outlives its step. While a device is open, Python switches threads more often, so that
    the ends of ops are seen at most half a millisecond late.
    """

    name = "mlx"
    built_by_host = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__(recorder)
        self.xp = MlxArrays()
        self.launched: list[MlxOp] = []
        self.arrays: list[mx.array] = []
        self._streams: dict[str, MlxStream] = {}
        self._runner = StepRunner(self)
        self.streams = self._runner.streams
        switch_interval.want(SWITCH_INTERVAL)

    def stream(self, name: str) -> MlxStream:
        """The stream of that name. ``copy`` has an MLX stream of its own, the others share one."""
        compute = self.streams.copy if name == "copy" else self.streams.compute
        return self._streams.setdefault(name, MlxStream(self, name, compute))

    def memory(self, name: str, size: int) -> mx.array:
        """An array; writing to it puts a new lazy array in its place."""
        self.arrays.append(mx.full((size,), WRONG_TOKEN, dtype=INTEGER))
        evaluate(self.arrays[-1])
        return self.arrays[-1]

    def host_memory(self, name: str, size: int) -> mx.array:
        """Unused by ``copy_to_host``: host and device share their memory."""
        return mx.zeros((size,), dtype=INTEGER)

    def copy_to_host(self, dst: mx.array, src: mx.array, size: int) -> mx.array:
        """The first ``size`` integers, in an array that no later step builds upon."""
        return src[:size] + 0

    def bring_to_host(self, values: mx.array) -> mx.array:
        """The values in an array of their own."""
        return values + 0

    def flush(self, *ops: MlxOp) -> None:
        """Hand over everything launched since the last flush, and the memory it changed."""
        step, self.launched = self.launched, []
        self._runner.submit(step, self._cache_state_arrays())

    def _cache_state_arrays(self) -> list[mx.array]:
        """What steps write in place, to be evaluated with their tokens: page table, KV, outputs.

        SGLang ``hardware_backend/mlx/model_runner.py:_cache_state_arrays``. The handles are new
        ones, so that the host may go on writing while a step is being evaluated.
        """
        return [memory.astype(memory.dtype) for memory in self.arrays]

    def clear_cache(self) -> None:
        """Give MLX's cached buffers back to the system, and mark the moment."""
        mx.clear_cache()
        self.recorder.mark("clear cache")

    def count_memory(self) -> None:
        """Record two counters, in bytes: ``active memory`` and ``cache memory``.

        Both are the process's, not the device's: whatever else uses MLX is in them.
        """
        self.recorder.counter("active memory", mx.get_active_memory())
        self.recorder.counter("cache memory", mx.get_cache_memory())

    def close(self) -> None:
        """Finish what was handed over, drop the rest, and end both threads; once is enough."""
        if not self.is_closed:
            try:
                self.close_threads()
                self._runner.close()
                self.launched = []
            finally:
                switch_interval.give_back(SWITCH_INTERVAL)
