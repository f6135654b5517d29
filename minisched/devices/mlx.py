"""MLX as a device: a launch only builds a graph, and one ``async_eval`` submits a step.

An MLX array is lazy: an operation records what to compute, and later operations can use the array
before its numbers exist. A step passes through three calls:

- ``MlxStream.launch``: the worker (``worker/worker.py``) launches forward, sample and copy. Each
  function runs on the host immediately, and builds its part of the step's graph. An argument that
  is an op becomes the op's array, also the tokens of the step before (``relay/lazy_chain.py``).
- ``MlxDevice.flush``: after its last op the worker submits the whole step with one
  ``mx.async_eval``. The call returns, and MLX computes while the host builds the next graph.
- ``MlxOp.synchronize``: the host blocks until the numbers of the copy exist, and reads them.

So a stream has no queue, and a wait needs no event: the graph has the order. (SGLang
``hardware_backend/mlx``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar

import mlx.core as mx

from ..trace import Recorder, Touch
from . import wall_clock as switch_interval
from .base import NO_LABEL, WRONG_TOKEN, Event, Label, Op, value_of, without_frames
from .mlx_arrays import INTEGER, MlxArrays
from .wall_clock import WallClock

SWITCH_INTERVAL = 0.0005  # seconds by which a busy host delays a time stamp at most

# -- Submitting arrays to MLX, by one thread at a time ---------------------------------------------
#
# Inside MLX, a thread waits until fewer pieces of work remain than at the start of its wait (MLX
# #2047). Two such threads add to each other's count, and both wait for ever. That happened with two
# open devices.

_alone = Lock()


def evaluate(*arrays: mx.array) -> None:
    """Compute arrays now (``mlx.core.eval``)."""
    with _alone:
        mx.eval(*arrays)


def evaluate_async(*arrays: mx.array) -> None:
    """Submit arrays, and return before they are computed (``mlx.core.async_eval``)."""
    with _alone:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


# -- An op of MLX: part of a lazy graph, until its numbers are read --------------------------------


@dataclass(eq=False)
class MlxOp(Op):
    """Part of a lazy graph: its arrays exist immediately, their numbers later."""

    device: MlxDevice
    lane: str
    slice_id: int
    after: MlxOp | None  # of another lane, for the trace
    end: int = 0
    done: Future[None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.recorder = self.device.recorder

    def build(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Build the graph, or keep the error of ``fn`` or of an op that it uses."""
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


# -- A launch builds a graph, and a flush submits it -----------------------------------------------


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
        """Run ``fn`` on the host now, which builds a part of the graph; the op keeps its error."""
        sources = (getattr(arg, "slice_id", 0) for arg in args)  # read only if it records
        slice_id = self.device.recorder.launch(
            name, lane=self.name, touches=touches, uses=sources, **vars(label)
        )
        op = MlxOp(self.device, self.name, slice_id, self.after)
        with self.device.streams.using(self.compute):
            op.build(fn, args)
        self.device.launched.append(op)
        return op

    def wait(self, op: Event) -> None:
        """Record the wait; an op that uses ``op``'s arrays waits for them in the graph."""
        self.device.recorder.wait(op.slice_id, self.name)
        self.after = op if isinstance(op, MlxOp) else None


class MlxDevice(WallClock):
    """Lazy graphs on MLX's default device: Metal, or the CPU (``devices/base.py:Device``).

    A model's state must be made by ``memory``, or the results of its ops must depend on it. Then no
    graph outlives its step.

    Two threads work next to the host. The first one calls ``async_eval``. On a GPU this returns
    immediately. On the CPU it blocks until about a hundred pieces of the step remain, but without
    the interpreter lock, so the host continues. The second one waits for the end of each op and
    takes its time. While a device is open, Python switches threads more often, so these times are
    at most half a millisecond late.
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
        """Return the stream of that name; ``copy`` has its own MLX stream, the others share one."""
        compute = self.streams.copy if name == "copy" else self.streams.compute
        return self._lanes.setdefault(name, MlxStream(self, name, compute))

    def memory(self, name: str, size: int) -> mx.array:
        """Return an array; a write replaces it by a new lazy array."""
        self.arrays.append(mx.full((size,), WRONG_TOKEN, dtype=INTEGER))
        evaluate(self.arrays[-1])
        return self.arrays[-1]

    def host_memory(self, name: str, size: int) -> mx.array:
        """Return memory that ``copy_to_host`` does not need: host and device share theirs."""
        return mx.zeros((size,), dtype=INTEGER)

    def copy_to_host(self, dst: mx.array, src: mx.array, size: int) -> mx.array:
        """Return the first ``size`` integers, in an array that no later step uses."""
        return src[:size] + 0

    def bring_to_host(self, values: mx.array) -> mx.array:
        """Return the values in a new array."""
        return values + 0

    def flush(self, *ops: Op) -> None:
        """Submit the ops launched since the last flush, and the memory that they changed."""
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
                    self.recorder.ended(op.slice_id, start, op.end)
            except Exception as error:
                op.error = error
            op.done.set_result(None)

    def _cache_state_arrays(self) -> list[mx.array]:
        """Return the arrays that steps write in place, to evaluate with their tokens.

        They are page table, KV and outputs (SGLang
        ``hardware_backend/mlx/model_runner.py:_cache_state_arrays``). The handles are new, so the
        host can write to the memory while MLX evaluates the step.
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
        """Finish the submitted steps, drop the other ops, and end both threads."""
        if not self.is_closed:
            try:
                self.close_threads()
                self._evaluator.shutdown()
                self._watcher.shutdown()
                self.streams.give_back()
                self.launched = []
            finally:
                switch_interval.give_back(SWITCH_INTERVAL)


# -- The streams of MLX itself ---------------------------------------------------------------------


class Streams:
    """MLX streams that any thread may use, one thread at a time.

    MLX never releases a stream and its system thread, so later devices take those of closed ones.
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
        """Return streams on the default device that no open device uses."""
        for streams in cls._free:
            if streams.device == mx.default_device():
                cls._free.remove(streams)
                return streams
        return cls()

    def give_back(self) -> None:
        """Return streams for the next device."""
        self._free.append(self)

    @contextmanager
    def using(self, stream: mx.Stream) -> Iterator[None]:
        """Make ``stream`` the default, and ``self.cpu`` the CPU's stream."""
        with mx.stream(self.cpu), mx.stream(stream):
            yield

    def mark(self, ops: list[MlxOp]) -> list[mx.array]:
        """Return a marker for each op: a tiny array that depends on it.

        A stream signals the end of an ``async_eval`` once, for all of its arrays. So each marker is
        on a stream of its own. Only the watcher uses a marker, because a wait for an array changes
        it, and no other thread may use the array at that time.
        """
        while len(self.markers) < len(ops):
            self.markers.append(mx.new_thread_unsafe_stream(mx.cpu))
        markers = []
        for op, stream in zip(ops, self.markers, strict=False):
            with mx.stream(stream):
                markers.append(mx.logical_not(op.value[..., :1]))
        return markers
