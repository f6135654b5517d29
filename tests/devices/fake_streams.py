"""What a GPU that is not there has to do: streams, events, graphs, and who still names memory.

Kernels are queued and run late: when the host waits for them, and some of them earlier, as a seed
has it. Streams and the host have vector clocks: what is said to come before what does not depend on
when kernels run here. What CUDA would refuse during a capture is refused.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import minisched
from minisched.devices.base import WRONG_TOKEN

SOURCE = str(Path(minisched.__file__).parent)
Clock = dict[int, int]  # by stream, how many kernels of it have ended
Kernel = Callable[[], None]


class Finding(NamedTuple):
    """Memory that was let go too early, in a sentence, and when, by ``time.perf_counter_ns``."""

    time: int
    sentence: str


class Gpu:
    """Its streams, what the host knows of them, and what was found."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.random, self.here = random.Random(seed), threading.local()
        self.streams: list[Stream] = []
        self.host: Clock = {}  # what the host knows to have ended
        self.captures: list[CUDAGraph] = []
        self.findings: list[Finding] = []
        self.sync_mode: str | int = "default"

    @property
    def current(self) -> Stream:
        stream: Stream = getattr(self.here, "stream", self.streams[0])
        return stream

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        before, self.here.stream = self.current, stream or self.current
        try:
            yield
        finally:
            self.here.stream = before

    def find(self, sentence: str) -> None:
        self.findings.append(Finding(time.perf_counter_ns(), sentence))

    def unsafe(self, what: str) -> None:
        """A call that may wait for the GPU: a capture does not allow it."""
        for graph in self.captures:
            is_here = graph.thread == threading.get_ident()
            if graph.mode == "global" or is_here:
                graph.refuse(what)

    def wait_here(self, what: str) -> None:
        """The host has to wait for the current stream in the middle of its work."""
        if self.current.capture is not None:
            self.current.capture.refuse(what)
        if self.sync_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")
        self.current.synchronize()

    def synchronize(self, device: object = None) -> None:
        for stream in list(self.streams):
            stream.synchronize()

    def go_on(self) -> None:
        """The GPU: now and then some of what is queued runs, on whichever stream."""
        if self.random.random() < 0.3:
            stream = self.random.choice(self.streams)
            with without_modes():
                for _ in range(self.random.randrange(1, 100)):
                    if not stream.advance():
                        break

    def queue(self, stream: Stream, kernel: Kernel) -> None:
        """Queue a kernel, or record it."""
        stream.count += 1
        if stream.capture is not None:
            stream.capture.kernels.append(kernel)
        else:
            stream.queue.append(("run", kernel))


class Moment:
    """A place in a stream's order, and all that comes before it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.capture = stream, stream.capture
        self.clock = {**stream.behind, stream.number: stream.count}
        self.time = 0  # when the GPU got there, in nanoseconds; 0: it has not


class Stream:
    """``torch.cuda.Stream``: kernels, waits and moments, in order."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.gpu = gpu = there[-1]
        with gpu.lock:
            self.number = len(gpu.streams)
            gpu.streams.append(self)
        self.queue: deque[tuple[str, Any]] = deque()
        self.count = 0  # kernels that were queued
        self.behind: Clock = {}  # what it waits for of others
        self.capture: CUDAGraph | None = None

    def wait_stream(self, other: Stream) -> None:
        """Go on only after all that is queued on another stream."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Go on only after an event; after one that nobody has recorded yet, at once.

        Who waits for a stream that is captured is captured, too.
        """
        if (moment := event.moment) is None:
            return
        with self.gpu.lock:
            if self.capture is not moment.capture:
                if self.capture is not None:
                    self.capture.refuse("a wait for work that is not captured")
                self.capture = moment.capture
            know(self.behind, moment.clock)
            if self.capture is None:
                self.queue.append(("wait", moment))

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def advance(self) -> bool:
        """The GPU: do what is next; False where there is nothing, or it has to wait."""
        if not self.queue or (self.queue[0][0] == "wait" and not self.queue[0][1].time):
            return False
        kind, item = self.queue.popleft()
        if kind == "run":
            item()
        elif kind == "moment":
            item.time = time.perf_counter_ns()
        return True

    def reach(self, moment: Moment) -> None:
        """The GPU: go on until it is there, and so must whatever this waits for."""
        while not moment.time:
            if not self.advance():
                waited_for = self.queue[0][1]
                waited_for.stream.reach(waited_for)


class Event:
    def __init__(self, enable_timing: bool = False, **options: object) -> None:
        self.gpu, self.timed = there[-1], enable_timing
        self.moment: Moment | None = None

    def record(self, stream: Stream | None = None) -> None:
        with self.gpu.lock:
            stream = stream or self.gpu.current
            self.moment = Moment(stream)
            if stream.capture is None:
                stream.queue.append(("moment", self.moment))
                self.gpu.go_on()

    def query(self) -> bool:
        """Whether the GPU has got past it; it does sooner or later, however often it is asked."""
        with self.gpu.lock:
            self.gpu.unsafe("cudaEventQuery")
            if self.moment is not None and not self.moment.time:
                self.gpu.go_on()
                if self.gpu.random.random() < 0.3:
                    self._reach(self.moment)
            if self.moment is None or not self.moment.time:
                return self.moment is None
            know(self.gpu.host, self.moment.clock)
            return True

    def synchronize(self) -> None:
        with self.gpu.lock:
            self.gpu.unsafe("cudaEventSynchronize")
            if self.moment is not None:
                self._reach(self.moment)
                know(self.gpu.host, self.moment.clock)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events, as coarse as CUDA's float32."""
        first, last = self.moment, end.moment
        assert self.timed and end.timed and first and last and first.time and last.time, "not ready"
        return ctypes.c_float((last.time - first.time) / 1e6).value

    def _reach(self, moment: Moment) -> None:
        if moment.capture is not None:
            moment.capture.refuse("a wait of the host for what is captured")
        with without_modes():
            moment.stream.reach(moment)


class CUDAGraph:
    """``torch.cuda.CUDAGraph``: kernels that are recorded at addresses which stay the same."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.gpu = there[-1]
        self.kernels: list[Kernel] = []
        self.named: dict[int, tuple[weakref.ref[Block], str]] = {}  # not its own, and by which op
        self.mode, self.broken, self.thread = "", "", 0

    def capture_begin(
        self, pool: object = None, capture_error_mode: str = "global", **options: object
    ) -> None:
        """Record what is queued on the current stream, instead of running it."""
        assert self.gpu.current is not self.gpu.streams[0], "the default stream is never captured"
        self.mode, self.thread = capture_error_mode, threading.get_ident()
        self.gpu.current.capture = self
        self.gpu.captures.append(self)

    def capture_end(self) -> None:
        """It is recorded, unless something has gone wrong on the way."""
        self.gpu.captures.remove(self)
        for stream in self.gpu.streams:
            if stream.capture is self:
                stream.capture = None
        if self.broken:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture "
                f"({self.broken})"
            )

    def refuse(self, what: str) -> None:
        """CUDA does not allow it during a capture, and the capture is lost."""
        self.broken = self.broken or what
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")

    def replay(self) -> None:
        with self.gpu.lock:
            stream = self.gpu.current
            for ref, what in self.named.values():
                if (block := ref()) is None:
                    self.gpu.find(f"a graph is replayed in which {what} names what was let go")
                else:
                    block.used_by(stream, stream.count + len(self.kernels), what)
            for kernel in self.kernels:
                self.gpu.queue(stream, kernel)


class Block:
    """Memory that somebody on the host names; when nobody does any more, it is let go.

    It belongs to the stream on which it was taken, or to the pool of the graph that was captured.
    """

    def __init__(self, gpu: Gpu, data: Tensor) -> None:
        self.gpu, self.data, self.made = gpu, data, place()
        self.owner = gpu.current
        self.graph = self.owner.capture
        self.uses: dict[int, tuple[int, str]] = {}  # by other streams, the last kernel that does
        self.in_graph = False

    def used_by(self, stream: Stream, count: int, what: str) -> None:
        """A kernel names it, its stream's ``count``-th."""
        if stream.capture is not None:
            if self.graph is not stream.capture:
                stream.capture.named[id(self)] = weakref.ref(self), what
                self.in_graph = True
        elif stream is not self.owner:
            self.uses[stream.number] = count, what

    def __del__(self) -> None:
        """The last name is gone: its own stream may hand it out again now."""
        gpu, behind = self.gpu, self.owner.behind
        with gpu.lock:
            if self.graph is not None:
                return  # its graph's pool keeps it
            early = [
                what
                for stream, (count, what) in self.uses.items()
                if max(gpu.host.get(stream, 0), behind.get(stream, 0)) < count
            ]
            if early:
                gpu.find(f"memory made {self.made} was let go before {early[-1]} had ended")
            if early or self.in_graph:
                with without_modes():
                    self.data.fill_(WRONG_TOKEN)


def know(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


def place() -> str:
    """Where in the sources this is happening."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE) and f"{SOURCE}/devices/" not in name:
            return f"at {name[len(SOURCE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


@contextmanager
def without_modes() -> Iterator[None]:
    """What the GPU does is done by torch on the CPU, whatever the host is in the middle of."""
    guard = torch._C._DisableTorchDispatch()
    try:
        with torch.inference_mode():
            yield
    finally:
        del guard


there: list[Gpu] = []  # the GPUs that there are; the last one is seen
