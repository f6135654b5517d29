"""What is put around a CUDA device to catch it: memory that is overwritten once it is free, waits
that are forbidden, and the host's own word on when an op was launched and read.

Each replaces functions of the device for as long as it lasts; the engine runs unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from ...devices.base import NO_LABEL, Label


@contextmanager
def replaced(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """A class's function is another one meanwhile."""
    healthy = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, healthy)


# -- memory --


@contextmanager
def hostile_memory() -> Iterator[None]:
    """Every op begins late, and what was freed by then is overwritten.

    The allocator gives freed memory to whoever asks next for as much on the same stream. So before
    each launch somebody asks for some of every size, on every stream, and fills it. What an op has
    yet to read must not be among that; if it is, tokens are wrong.
    """
    import torch

    from ...devices.cuda import CudaStream

    healthy = CudaStream.launch

    def launch(stream: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def late(*values: Any) -> Any:
            torch.cuda._sleep(DELAY)
            return fn(*values)

        overwrite_freed(stream.device)
        return healthy(stream, late, *args, **options)

    with replaced(CudaStream, "launch", launch):
        yield


DELAY = 200_000  # cycles of the GPU that an op begins late: about 0.1 ms
FREED = ((512, 64), (4096, 16), (65_536, 8))  # bytes, and how many of that size


def overwrite_freed(device: Any) -> None:
    """Take what is free on every stream, and fill it with valid but wrong tokens."""
    import torch

    own = [torch.cuda.current_stream(), *(item.stream for item in device._streams.values())]
    for stream in own:
        with torch.cuda.stream(stream):
            sizes = [size // 8 for size, number in FREED for _ in range(number)]
            taken = [device.memory("freed", size) for size in sizes]
            del taken


# -- waits --


class DecodeLaunches:
    """Forbids whatever waits for the GPU while a decode step is laid out or launched.

    torch's own debug mode sees what torch does unasked (a copy from memory that is not pinned, a
    number that Python asks for); calls that wait by name are refused here.
    """

    def __init__(self) -> None:
        self.count = 0
        self.inside = threading.local()

    @contextmanager
    def may_not_wait(self) -> Iterator[None]:
        """As long as this lasts."""
        import torch

        from ...devices.cuda import CudaStream
        from ...worker import Worker

        prepare, launch = Worker.prepare, CudaStream.launch

        def prepared(worker: Any, batch: Any, *rest: Any) -> Any:
            with self.forbidden(batch.mode.value):
                return prepare(worker, batch, *rest)

        def launched(stream: Any, *args: Any, label: Any = NO_LABEL, **options: Any) -> Any:
            self.count += label.mode == "decode"
            with self.forbidden(label.mode):
                return launch(stream, *args, label=label, **options)

        with (
            replaced(Worker, "prepare", prepared),
            replaced(CudaStream, "launch", launched),
            self.refused(torch.cuda, "synchronize"),
            self.refused(torch.cuda.Event, "synchronize"),
            self.refused(torch.cuda.Stream, "synchronize"),
        ):
            yield

    @contextmanager
    def forbidden(self, mode: str) -> Iterator[None]:
        """In a decode step, on this thread."""
        import torch

        if mode != "decode":
            yield
            return
        self.inside.now = True
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            self.inside.now = False

    def refused(self, owner: Any, name: str) -> AbstractContextManager[None]:
        """A call that waits raises where that is forbidden."""
        healthy = getattr(owner, name)

        def call(*args: Any) -> Any:
            if getattr(self.inside, "now", False):
                raise RuntimeError(f"called {owner.__name__}.{name}, which waits for the GPU")
            return healthy(*args)

        return replaced(owner, name, call)


# -- times --


class Span(NamedTuple):
    """What the GPU says of an op, on the device's clock."""

    lane: str
    name: str
    start: int
    end: int


class Times:
    """When the host launched each op of a device and when it had read it, and when it ran.

    All by the op's slice, in nanoseconds since the device was opened; a trace begins at 0.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.launched: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.ran: dict[int, Span] = {}

    @contextmanager
    def taken(self) -> Iterator[Times]:
        """As long as this lasts."""
        from ...devices.cuda import CudaOp, CudaStream

        device = self.device
        launch, synchronize, record = CudaStream.launch, CudaOp.synchronize, device.record

        def launched(stream: Any, *args: Any, **options: Any) -> Any:
            now = device.now()
            op = launch(stream, *args, **options)
            self.launched[op.slice_id] = now
            return op

        def read(op: Any) -> Any:
            try:
                return synchronize(op)
            finally:
                self.read.setdefault(op.slice_id, device.now())

        def recorded(
            lane: str, name: str, start: int, end: int, label: Label, slice_id: int
        ) -> None:
            self.ran[slice_id] = Span(lane, f"{name} of step {label.step}", start, end)
            record(lane, name, start, end, label, slice_id)

        with (
            replaced(CudaStream, "launch", launched),
            replaced(CudaOp, "synchronize", read),
            replaced(device, "record", recorded),
        ):
            yield self

    def worst(self) -> tuple[int, str]:
        """By how many nanoseconds an op lies wrong at most, and how."""
        found = [(0, "each lies right")]
        lanes: dict[str, list[Span]] = {}
        for slice_id, launched in sorted(self.launched.items()):
            op = self.ran[slice_id]
            lanes.setdefault(op.lane, []).append(op)
            found.append((launched - op.start, f"{op.name} begins before its launch"))
            if (read := self.read.get(slice_id)) is not None:
                found.append((op.end - read, f"{op.name} ends after the host had read it"))
        for ops in lanes.values():
            for one, other in pairwise(ops):
                found.append((one.end - other.start, f"{other.name} begins before {one.name} ends"))
        return max(found)
