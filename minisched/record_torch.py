"""Record ops on streams of a GPU: ``record.py`` for an engine on torch::

    rec = TorchRecorder()
    forward, copy = rec.stream("forward", torch.cuda.Stream()), rec.stream("copy", copy_stream)
    with rec.host("launch", step=7):
        with forward.op("forward", step=7, touches=[("write", "output", "0-1")]) as op:
            logits = model(ids)
        copy.wait(op)  # cudaStreamWaitEvent, and its record
    with rec.host("wait", step=7):
        forward.synchronize(op)
    rec.save("engine.json", "my engine")

Each op lies between two events of its stream, which give its times. Each slice is also a range of
torch's profiler and of NVTX, so that a profile shows the same steps. Copy this file next to
``record.py``. Without a GPU (a stream that is None), an op runs immediately.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from .record import Recorder, Touch, Value

# -- The clock of a GPU ----------------------------------------------------------------------------

TRIPS = 5  # to the GPU and back; the shortest sets the GPU's clock
ZERO_LASTS = 2_000_000_000  # nanoseconds
PATIENCE = 100_000  # nanoseconds that the host waits for a new zero at most; it takes 10,000


class Zero(NamedTuple):
    """An event that the GPU has passed, and its time on the host's clock."""

    event: torch.cuda.Event
    at: int


class GpuClock:
    """The times of events on the GPU, on the host's clock.

    CUDA gives the time between two events as milliseconds in float32: exact to 1 microsecond after
    ten seconds, and to 62 microseconds after ten minutes. So every few seconds a new event becomes
    the zero, timed from the zero before it. The two clocks drift apart. So the time of a zero must
    lie between the host's record of the event and its first successful query. That is a short time,
    because the stream has no other work, and the host does not block on the GPU.
    """

    def __init__(self, now: Callable[[], int], stream: torch.cuda.Stream) -> None:
        self.now, self.stream = now, stream
        trips = []
        for _ in range(TRIPS):
            event, asked = self._ask()
            event.synchronize()
            seen = now()
            trips.append((seen - asked, Zero(event, (asked + seen) // 2)))
        self.zero = min(trips, key=lambda trip: trip[0])[1]
        self.asked: tuple[torch.cuda.Event, int] | None = None  # for the next zero

    def renew(self) -> None:
        """Take a new zero if the old one is some seconds old, on the host."""
        now = self.now()
        if self.asked is None:
            if now < self.zero.at + ZERO_LASTS:
                return
            self.asked = self._ask()
        event, asked = self.asked
        while not event.query():
            if self.now() > now + PATIENCE:
                return  # the next call finds it passed
        self.zero = Zero(event, min(max(asked, self.time(self.zero, event)), self.now()))
        self.asked = None

    def time(self, zero: Zero, event: torch.cuda.Event) -> int:
        """Return the time at which the GPU passed ``event``, in nanoseconds of the host's clock."""
        return zero.at + round(float(zero.event.elapsed_time(event)) * 1_000_000)

    def _ask(self) -> tuple[torch.cuda.Event, int]:
        event, asked = torch.cuda.Event(enable_timing=True), self.now()
        event.record(self.stream)
        return event, asked


class Timing(NamedTuple):
    """An op between two events, for which the host does not know the times yet."""

    lane: str
    op: int
    start: torch.cuda.Event
    end: torch.cuda.Event
    zero: Zero


class Timings:
    """Ops of all streams in the order of their launches, recorded once the GPU has passed them.

    The clock has a stream of its own.
    """

    def __init__(self, rec: Recorder, now: Callable[[], int], stream: torch.cuda.Stream) -> None:
        self.rec, self.clock = rec, GpuClock(now, stream)
        self.pending: deque[Timing] = deque()  # of ops that may still run
        self.ends: dict[str, int] = {}  # of each lane's last slice
        self.flushing = threading.Lock()

    def flush(self) -> None:
        """Record the ops that have ended, unless another thread does."""
        if not self.flushing.acquire(blocking=False):
            return
        try:
            self.clock.renew()
            while self.pending and self.pending[0].end.query():
                self._record(self.pending.popleft())
        finally:
            self.flushing.release()

    def _record(self, timing: Timing) -> None:
        """Record a slice; slices of a lane never overlap, although their zeros may differ."""
        start, end = (self.clock.time(timing.zero, event) for event in (timing.start, timing.end))
        start = max(start, self.ends.get(timing.lane, start))
        self.ends[timing.lane] = end = max(start, end)
        self.rec.ended(timing.op, start, end)


# -- Streams ---------------------------------------------------------------------------------------


class TorchRecorder(Recorder):
    """A recorder whose slices are ranges of a profiler, too, and that times streams of a GPU."""

    def __init__(self, is_on: bool = True) -> None:
        super().__init__(is_on)
        self.timings: Timings | None = None  # with the first stream of a GPU

    def host(
        self, name: str, step: int = 0, rids: Iterable[str] = (), mode: str = "", **attrs: Value
    ) -> AbstractContextManager[int]:
        """Record the body as a slice of this lane, and yield its id; such slices do not nest."""
        phase = super().host(name, step, rids, mode, **attrs)
        return in_range(f"{name} {step}", phase) if self.is_on else phase

    def stream(self, lane: str, stream: torch.cuda.Stream | None) -> TimedStream:
        """Return a stream that records its ops on a lane; None runs them on the CPU."""
        if stream is not None and self.timings is None:
            self.timings = Timings(self, self.now, torch.cuda.Stream())
        return TimedStream(self, lane, stream)

    def save(self, path: str, loop: str, device: str = "", model: str = "") -> None:
        """Wait for the GPU, then write the events to a file; OSError: it can't be written."""
        if self.timings is not None:
            torch.cuda.synchronize()
            self.timings.flush()
        super().save(path, loop, device, model)


class TimedStream:
    """A stream whose ops are recorded and timed."""

    def __init__(self, rec: TorchRecorder, lane: str, stream: torch.cuda.Stream | None) -> None:
        self.rec, self.lane, self.stream = rec, lane, stream

    @contextmanager
    def op(
        self,
        name: str,
        step: int = 0,
        rids: Iterable[str] = (),
        touches: Iterable[Touch] = (),
        uses: Iterable[int] = (),
    ) -> Iterator[TimedOp]:
        """Record what the body queues on this stream as one op, and yield the op."""
        number = self.rec.launch(name, step, rids, lane=self.lane, touches=touches, uses=uses)
        op, timings = TimedOp(number, self.stream), self.rec.timings
        with ExitStack() as inside:
            if self.rec.is_on:
                inside.enter_context(in_range(f"{name} {step}"))
            if self.stream is None or timings is None:
                inside.enter_context(self.rec.run(number))
                yield op
                return
            zero = timings.clock.zero
            inside.enter_context(torch.cuda.stream(self.stream))
            op.start.record()
            yield op
            op.end.record()
        if self.rec.is_on:
            timings.pending.append(Timing(self.lane, number, op.start, op.end, zero))
            timings.flush()

    def wait(self, op: TimedOp) -> None:
        """Let later ops of this stream start after ``op`` has ended."""
        self.rec.wait(op.number, self.lane)
        if self.stream is not None:
            self.stream.wait_event(op.end)

    def synchronize(self, op: TimedOp) -> None:
        """Block the host until ``op``, of any stream, has ended."""
        if op.stream is not None:
            op.end.synchronize()
        self.rec.wait(op.number)
        if self.rec.timings is not None:
            self.rec.timings.flush()


class TimedOp:
    """An op on a stream, between two events."""

    def __init__(self, number: int, stream: torch.cuda.Stream | None) -> None:
        self.number, self.stream = number, stream
        if stream is not None:
            self.start = torch.cuda.Event(enable_timing=True)
            self.end = torch.cuda.Event(enable_timing=True)


@contextmanager
def in_range(name: str, inner: AbstractContextManager[Any] | None = None) -> Iterator[Any]:
    """Mark the body as a range of torch's profiler and, on a GPU, of NVTX."""
    with ExitStack() as ranges:
        ranges.enter_context(torch.profiler.record_function(name))
        if torch.cuda.is_available() and torch.version.cuda:
            ranges.enter_context(torch.cuda.nvtx.range(name))
        yield ranges.enter_context(inner) if inner else None
