"""MLX as a device: a launch only builds a graph, and one async_eval hands a step over.

MLX arrays are lazy: ``launch`` runs its function on the host, where it only builds a graph, and
later ops can use an array before its numbers exist. So a stream needs no queue and a wait no event;
the graph orders everything. SGLang ``hardware_backend/mlx``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar

import mlx.core as mx

from ..trace import Recorder, Touch
from . import wall_clock as switch_interval
from .base import NO_LABEL, WRONG_TOKEN, Event, Label, Op, value_of, without_frames
from .wall_clock import WallClock

# -- Hands arrays to MLX to be computed, for one thread at a time ----------------------------------
#
# Within MLX a thread waits until fewer pieces of work are left than when it began to wait (MLX
# #2047). Of two such threads each adds to what the other one counts, and both wait for ever: so it
# went with two devices that were open together.

_alone = Lock()


def evaluate(*arrays: mx.array) -> None:
    """Compute them now (``mlx.core.eval``)."""
    with _alone:
        mx.eval(*arrays)


def evaluate_async(*arrays: mx.array) -> None:
    """Let them be computed (``mlx.core.async_eval``)."""
    with _alone:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


# -- An op of MLX: part of a lazy graph, until its numbers are read --------------------------------


@dataclass(eq=False)
class MlxOp(Op):
    """Part of a lazy graph: its arrays exist immediately, their numbers later."""

    device: MlxDevice
    lane: str
    label: Label
    slice_id: int
    after: MlxOp | None  # of another lane, for the trace
    name: str = ""
    end: int = 0
    done: Future[None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.program = self.device.recorder.program

    def build(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Build the graph, or keep the error of ``fn`` or of the op that it builds upon."""
        try:
            self.value = fn(*map(value_of, args))
        except Exception as error:
            self.error = without_frames(error)

    def _has_ended(self) -> bool:
        return self.done.done()

    def _wait(self) -> None:
        if self in self.device.launched:
            self.device.flush(self)
        self.done.result()


class Streams:
    """MLX streams that any thread may use, one thread at a time.

    A stream and its system thread are never given back by MLX, so closed devices leave theirs to
    later ones.
    """

    _free: ClassVar[list[Streams]] = []

    def __init__(self) -> None:
        self.device = mx.default_device()
        self.cpu = mx.new_thread_unsafe_stream(mx.cpu)
        on_cpu = self.device == mx.Device(mx.cpu)
        self.compute = self.cpu if on_cpu else mx.new_thread_unsafe_stream(self.device)
        self.copy = mx.new_thread_unsafe_stream(mx.cpu)
        self.markers = [mx.new_thread_unsafe_stream(mx.cpu) for _ in range(3)]

    @classmethod
    def take(cls) -> Streams:
        """Streams on the default device that no open device uses."""
        for streams in cls._free:
            if streams.device == mx.default_device():
                cls._free.remove(streams)
                return streams
        return cls()

    def give_back(self) -> None:
        """Leave them to the next device."""
        self._free.append(self)

    @contextmanager
    def using(self, stream: mx.Stream) -> Iterator[None]:
        """Make ``stream`` the default, and ``self.cpu`` what ``mx.stream(mx.cpu)`` means."""
        with mx.stream(self.cpu), mx.stream(stream):
            yield

    def mark(self, ops: list[MlxOp]) -> list[mx.array]:
        """For each op a tiny array that depends on it.

        A stream signals the end of an async_eval once, for everything in it; so each marker is on
        a stream of its own. Nobody but the watcher ever touches a marker: waiting for an array
        changes it, and must not happen while another thread builds upon it.
        """
        while len(self.markers) < len(ops):
            self.markers.append(mx.new_thread_unsafe_stream(mx.cpu))
        markers = []
        for op, stream in zip(ops, self.markers, strict=False):
            with mx.stream(stream):
                markers.append(mx.logical_not(op.value[..., :1]))
        return markers


INTEGER = mx.int32  # Metal has no scatter for 64-bit integers; tokens and KV slots need 31 bits
SWITCH_INTERVAL = 0.0005  # seconds; how late a busy host can make a time stamp
BLOCK = 256  # numbers that ``log_softmax`` adds up by themselves


class MlxArrays:
    """The array functions of ``devices/base.py:Arrays``, in MLX's terms; and those for sampling."""

    lib: Any = mx
    word = mx.uint32  # in which 32 bits are computed with; what lies above is cut off

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
        found: Any = values
        return mx.array(found, dtype=mx.bool_)

    def count_equal(self, a: mx.array, b: mx.array, width: int, num_rows: int) -> mx.array:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        equal = (a == b).reshape(num_rows, width).astype(INTEGER)
        return 1 + mx.cumprod(equal, axis=-1).sum(axis=-1) if width else mx.ones(num_rows, INTEGER)

    def clamp(self, values: mx.array, min: int) -> mx.array:
        """Values below ``min`` raised to it."""
        return mx.maximum(values, min)

    # -- as in ``TorchArrays``

    def in_float64(self) -> AbstractContextManager[Any]:
        """Where float64 can be computed: on the CPU."""
        return mx.stream(mx.cpu)

    def numbers(self, values: Any, dtype: mx.Dtype) -> mx.array:
        """Numbers of the host, or an array's, in another dtype."""
        return values.astype(dtype) if isinstance(values, mx.array) else mx.array(values, dtype)

    def wide(self, values: mx.array) -> mx.array:
        """In 32 bits at least."""
        return values.astype(mx.float32) if values.dtype.size < 4 else values

    def arange(self, end: int) -> mx.array:
        """The integers from 0 on."""
        return mx.arange(end)

    def take(self, values: mx.array, at: mx.array) -> mx.array:
        """Of each row those ``at`` [num_rows, any]."""
        return mx.take_along_axis(values, at, axis=-1)

    def put(self, values: mx.array, at: Any, new: mx.array) -> mx.array:
        """A copy with others ``at`` an index, or several."""
        copy = values.astype(values.dtype)  # a new handle
        copy[at] = new
        return copy

    def argmax(self, values: mx.array) -> mx.array:
        """Of each row the index of the largest, of equals the first."""
        return mx.argmax(values, axis=-1).astype(INTEGER)

    def argsort(self, values: mx.array) -> mx.array:
        """Of each row the indices of rising values, of equals in order."""
        return mx.argsort(values, axis=-1)

    def largest(self, values: mx.array, count: int) -> mx.array:
        """Of each row the ``count`` largest, falling."""
        return mx.sort(mx.topk(values, count, axis=-1), axis=-1)[:, ::-1]

    def exp(self, values: mx.array) -> mx.array:
        """In float64 to its last digits: ``mx.exp`` has those of float32 alone."""
        return mx.power(mx.array(math.e, dtype=values.dtype), values)

    def log_softmax(self, values: mx.array) -> mx.array:
        """Each row by itself.

        ``mx.logsumexp`` adds a row up from one end to the other, which over 49152 tokens is wrong
        by 3e-4 (measured on the CPU, in float32). In blocks the error is some 1e-6: that of MLX's
        exponential, which in float64 is no better than in float32.
        """
        highest = mx.max(values, axis=-1, keepdims=True)
        weights = mx.pad(mx.exp(values - highest), [(0, 0), (0, -values.shape[-1] % BLOCK)])
        sums = mx.sum(weights.reshape(values.shape[0], -1, BLOCK), axis=-1)
        return values - (highest + mx.log(mx.sum(sums, axis=-1, keepdims=True)))


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
        slice_id = self.device.recorder.new_id()
        op = MlxOp(self.device, self.name, label, slice_id, self.after, name)
        self.device.recorder.program.launch(self.name, op.slice_id, args, touches)
        with self.device.streams.using(self.compute):
            op.build(fn, args)
        self.device.launched.append(op)
        return op

    def wait(self, op: Event) -> None:
        """Record the wait; ops that use ``op``'s arrays wait for them by themselves."""
        self.device.recorder.program.wait(op.slice_id, self.name)
        self.after = op if isinstance(op, MlxOp) else None


class MlxDevice(WallClock):
    """Lazy graphs on MLX's default device: Metal, or the CPU (``devices/base.py:Device``).

    A model's state must be reachable from what its ops return, or be made by ``memory``; then no
    graph outlives its step.

    Two threads work next to the host. The first one calls async_eval. On a GPU this returns
    immediately. On the CPU it blocks until all but about the last hundred pieces of the step have
    run, without the interpreter lock, so the host goes on. The second one waits for the end of
    each op and takes the time. While a device is open, Python switches threads more often, so that
    the ends of ops are seen at most half a millisecond late.
    """

    name = "mlx"
    built_by_host = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__(recorder)
        self.xp = MlxArrays()
        self.launched: list[MlxOp] = []
        self.arrays: list[mx.array] = []
        self.streams = Streams.take()
        self._lanes: dict[str, MlxStream] = {}
        self._lane_ends: dict[str, int] = {}
        self._evaluator = ThreadPoolExecutor(1, "mlx evaluator")
        self._watcher = ThreadPoolExecutor(1, "mlx watcher")
        switch_interval.want(SWITCH_INTERVAL)

    def stream(self, name: str) -> MlxStream:
        """The stream of that name. ``copy`` has an MLX stream of its own, the others share one."""
        compute = self.streams.copy if name == "copy" else self.streams.compute
        return self._lanes.setdefault(name, MlxStream(self, name, compute))

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

    def flush(self, *ops: Op) -> None:
        """Hand over everything launched since the last flush, and the memory it changed."""
        step, self.launched = self.launched, []
        built = [op for op in step if op.error is None]
        markers = self.streams.mark(built)
        arrays = [*(op.value for op in built), *markers, *self._cache_state_arrays()]
        handed = self._evaluator.submit(self._evaluate, arrays)
        self._watcher.submit(self._watch, step, markers, handed)

    def _evaluate(self, arrays: list[mx.array]) -> int:
        start = self.now()
        evaluate_async(*arrays)
        return start

    def _watch(self, ops: list[MlxOp], markers: list[mx.array], handed: Future[int]) -> None:
        """Wait for the end of each op, in order, and record its slice."""
        left = iter(markers)
        for op in ops:
            try:
                if op.error is None:
                    began = handed.result()
                    mx.eval(next(left))
                    op.end = self.now()
                    start = max(
                        began, op.after.end if op.after else 0, self._lane_ends.get(op.lane, 0)
                    )
                    self._lane_ends[op.lane] = op.end
                    self.record(op.lane, op.name, start, op.end, op.label, op.slice_id)
            except Exception as error:
                op.error = error
            op.done.set_result(None)

    def _cache_state_arrays(self) -> list[mx.array]:
        """Return the arrays that steps write in place, to evaluate with their tokens.

        They are page table, KV and outputs (SGLang
        ``hardware_backend/mlx/model_runner.py:_cache_state_arrays``). The handles are new ones, so
        that the host can write on while MLX evaluates a step.
        """
        return [memory.astype(memory.dtype) for memory in self.arrays]

    def clear_cache(self) -> None:
        """Return MLX's cached buffers to the system, and mark the moment."""
        mx.clear_cache()
        self.recorder.mark("clear cache")

    def count_memory(self) -> None:
        """Record two counters, in bytes: ``active memory`` and ``cache memory``.

        Both are the process's, not the device's: they include other users of MLX.
        """
        self.recorder.counter("active memory", mx.get_active_memory())
        self.recorder.counter("cache memory", mx.get_cache_memory())

    def close(self) -> None:
        """Finish what was handed over, drop the rest, and end both threads; once is enough."""
        if not self.is_closed:
            try:
                self.close_threads()
                self._evaluator.shutdown()
                self._watcher.shutdown()
                self.streams.give_back()
                self.launched = []
            finally:
                switch_interval.give_back(SWITCH_INTERVAL)
