"""Streams of a GPU: a launch queues work on the GPU, and the host goes on immediately.

A launch calls the op's function, and torch's operations queue kernels on the stream. So the value
exists immediately, as a tensor that the GPU fills later. Events on the stream give the times.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from ..trace import Recorder, Touch
from .base import NO_LABEL, Event, Label, Op, value_of, without_frames
from .thread import TorchDevice

TRIPS = 5  # to the GPU and back; the shortest sets the GPU's clock
ZERO_LASTS = 2_000_000_000  # nanoseconds
PATIENCE = 100_000  # nanoseconds that the host waits for a new zero at most; it takes 10,000
IDLE: defaultdict[tuple[int, str], list[torch.cuda.Stream]] = defaultdict(list)  # by GPU and name


class CudaOp(Op):
    """The work that a function queued on a stream, between two timed events."""

    def __init__(self, slice_id: int, recorder: Recorder) -> None:
        self.slice_id = slice_id
        self.recorder = recorder
        self.named: tuple[Any, ...] = ()
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Queue the work on the current stream; pass an argument's error on.

        The op keeps its arguments and ``fn``'s object until the host has waited for it. Their
        memory belongs to other streams, which would reuse it while this stream still reads it.
        """
        self.named = fn, *args
        self.start.record()
        try:
            self.value = fn(*map(value_of, args))
        except Exception as error:
            self.error = without_frames(error)
        self.end.record()

    def _has_ended(self) -> bool:
        return bool(self.end.query())

    def _wait(self) -> None:
        self.end.synchronize()
        self.named = ()


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
    """The parts of a slice, recorded once the GPU has passed ``end``; it holds no tensor."""

    lane: str
    slice_id: int
    start: torch.cuda.Event
    end: torch.cuda.Event
    zero: Zero


class CudaStream:
    """A ``torch.cuda.Stream``."""

    def __init__(self, device: CudaDevice, name: str, stream: torch.cuda.Stream) -> None:
        self.device = device
        self.name = name
        self.stream = stream

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> CudaOp:
        """Queue ``fn``'s kernels after the stream's work, and after all inputs shipped."""
        recorder = self.device.recorder
        sources = [getattr(arg, "slice_id", 0) for arg in args]
        slice_id = recorder.launch(
            name, lane=self.name, touches=touches, uses=sources, **vars(label)
        )
        op, zero = CudaOp(slice_id, recorder), self.device.gpu_clock.zero
        self.stream.wait_stream(torch.cuda.current_stream())  # the stream that ships the inputs
        with torch.cuda.stream(self.stream), torch.inference_mode():
            op.run(fn, args)
        timing = Timing(self.name, op.slice_id, op.start, op.end, zero)
        self.device.timings.append(timing)
        return op

    def wait(self, op: Event) -> None:
        """Start later launches only after the GPU has passed ``op``."""
        assert isinstance(op, CudaOp)
        self.device.recorder.wait(op.slice_id, self.name)
        self.stream.wait_event(op.end)


class CudaDevice(TorchDevice):
    """One GPU, as torch sees it (``devices/base.py:Device``).

    An op's slice lasts from the moment at which the GPU reaches it until it is done. If the host
    queues kernels slowly, the gaps between them are part of the slice.

    CUDA has few streams, and memory that was used on a stream is reused on that stream only. So a
    device takes the streams of closed devices.

    Raises:
        ValueError: torch sees no GPU.
    """

    name = "cuda"
    built_by_host = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        if not torch.cuda.is_available():
            raise ValueError("torch sees no GPU, which device 'cuda' needs; use device 'thread'.")
        super().__init__(recorder, torch.device("cuda", torch.cuda.current_device()))
        self.timings: deque[Timing] = deque()  # of ops that may still run
        self.flushing = threading.Lock()
        self.ends: dict[str, int] = {}  # of each lane's last slice
        self._streams: dict[str, CudaStream] = {}
        self.gpu_clock = GpuClock(self.now, self.stream("clock").stream)

    def stream(self, name: str) -> CudaStream:
        """Return the stream of that name."""
        if name not in self._streams:
            idle = IDLE[self.xp.device.index, name]
            self._streams[name] = CudaStream(
                self, name, idle.pop() if idle else torch.cuda.Stream()
            )
        return self._streams[name]

    def on_thread(self) -> AbstractContextManager[Any]:
        """Return a context with this GPU; a new thread would use the first one."""
        on_it: AbstractContextManager[Any] = torch.cuda.device(self.xp.device)
        return on_it

    def clear_cache(self) -> None:
        """Release cached memory to the GPU, and mark the moment."""
        torch.cuda.empty_cache()
        self.recorder.mark("clear cache")

    def flush(self, *ops: Op) -> None:
        """Record the ops that have ended, unless another thread does; no op waits for a flush."""
        if not self.flushing.acquire(blocking=False):
            return
        try:
            self.gpu_clock.renew()
            while self.timings and self.timings[0].end.query():
                self._record(self.timings.popleft())
        finally:
            self.flushing.release()

    def close(self) -> None:
        """Wait for the GPU, and record the remaining ops."""
        self.close_threads()
        torch.cuda.synchronize()
        self.flush()
        for name, stream in self._streams.items():
            IDLE[self.xp.device.index, name].append(stream.stream)
        self._streams.clear()

    def _record(self, timing: Timing) -> None:
        """Record a slice; slices of a lane never overlap, although their zeros may differ."""
        start, end = (
            self.gpu_clock.time(timing.zero, event) for event in (timing.start, timing.end)
        )
        start = max(start, self.ends.get(timing.lane, start))
        self.ends[timing.lane] = end = max(start, end)
        self.recorder.ended(timing.slice_id, start, end)
