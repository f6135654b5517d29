"""Runs lazy steps: one thread hands graphs over, another one watches them end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx

from .mlx_evaluate import evaluate_async
from .mlx_op import MlxOp, fail

if TYPE_CHECKING:
    from .mlx import MlxDevice


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


def start(executor: ThreadPoolExecutor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
    """``executor.submit``; where its thread is gone, a future that has failed."""
    try:
        return executor.submit(fn, *args)
    except RuntimeError as error:
        lost: Future[Any] = Future()
        lost.set_exception(RuntimeError(f"the thread has died: {error}"))
        return lost


class StepRunner:
    """Two threads beside the host.

    The first one calls async_eval. On a GPU this returns at once, but on the CPU it blocks until
    all but the last hundred or so pieces of the step have run; the interpreter lock is released
    meanwhile, so the host goes on. The second one waits for the end of each op and takes the time.
    """

    def __init__(self, device: MlxDevice) -> None:
        self.device = device
        self.streams = Streams.take()
        self._evaluator = ThreadPoolExecutor(1, "mlx evaluator")
        self._watcher = ThreadPoolExecutor(1, "mlx watcher")
        self._lane_ends: dict[str, int] = {}

    def submit(self, ops: list[MlxOp], memory: list[mx.array]) -> None:
        """Hand a step over; ``memory`` are handles that nobody writes through any more."""
        built = [op for op in ops if op.error is None]
        markers = self.streams.mark(built)
        arrays = [*(op.value for op in built), *markers, *memory]
        handed = start(self._evaluator, self._evaluate, arrays)
        seen = start(self._watcher, self._watch, ops, markers, handed)
        if seen.done() and (error := seen.exception()):
            fail(ops, error)

    def close(self) -> None:
        """Let both threads finish and end."""
        self._evaluator.shutdown()
        self._watcher.shutdown()
        self.streams.give_back()

    def _evaluate(self, arrays: list[mx.array]) -> int:
        start = self.device.now()
        evaluate_async(*arrays)
        return start

    def _watch(self, ops: list[MlxOp], markers: list[mx.array], handed: Future[int]) -> None:
        left = iter(markers)
        for op in ops:
            try:
                if op.error is None:
                    self._time(op, handed.result(), next(left))
            except Exception as error:
                op.error = error
            op.done.set_result(None)

    def _time(self, op: MlxOp, handed: int, marker: mx.array) -> None:
        """Wait for an op's end and record its slice."""
        mx.eval(marker)
        op.end = self.device.now()
        after = op.after.end if op.after else 0
        start = max(handed, after, self._lane_ends.get(op.lane, 0))
        self._lane_ends[op.lane] = op.end
        self.device.record(op.lane, op.name, start, op.end, op.label, op.slice_id)
