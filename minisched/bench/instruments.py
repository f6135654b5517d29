"""What is put around a CUDA device to catch it: memory that is overwritten once it is free, waits
that are forbidden, the host's own word on when an op was launched and read, and profilers.

The first three replace functions of the device for as long as they last; the engine is unchanged.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..checks.foreign import JsonEvents, seen_by_nsys, seen_in
from ..checks.profiled import VERSION, Seen
from ..devices.base import NO_LABEL, Label
from ..trace.files import unpacked

Around = Callable[[], AbstractContextManager[Any]]  # says to a profiler what begins and ends


class NotRun(Exception):
    """Something can't be judged here; the reason, in a sentence."""


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

    from ..devices.cuda import CudaStream

    healthy = CudaStream.launch

    def launch(stream: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def late(*values: Any) -> Any:
            torch.cuda._sleep(DELAY)
            return fn(*values)

        overwrite_freed(stream.device)
        return healthy(stream, late, *args, **options)

    with replaced(CudaStream, "launch", launch):
        yield


DELAY = 2_000_000  # cycles that an op begins late: a millisecond, so that overwriting comes before
FREED = ((512, 32), (4096, 8), (65_536, 4))  # bytes, and how many of that size


def overwrite_freed(device: Any) -> None:
    """Take what is free on every stream, and fill it with valid but wrong tokens."""
    import torch

    own = [torch.cuda.current_stream(), *(item.stream for item in list(device._streams.values()))]
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

        from ..devices.cuda import CudaStream
        from ..worker import Worker

        prepare, launch = Worker.prepare, CudaStream.launch

        def prepared(worker: Any, step: Any, *rest: Any) -> Any:
            with self.forbidden(step.batch.mode.value):
                return prepare(worker, step, *rest)

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

        def call(*args: Any, **options: Any) -> Any:
            if getattr(self.inside, "now", False):
                raise RuntimeError(f"called {owner.__name__}.{name}, which waits for the GPU")
            return healthy(*args, **options)

        return replaced(owner, name, call)


# -- times --


class Span(NamedTuple):
    """What the GPU says of an op, on the device's clock."""

    lane: str
    name: str
    start: int
    end: int


class OpTimes:
    """When the host launched each op of a device and when it had read it, and when it ran.

    All by the op's slice, in nanoseconds since the device was opened; a trace begins at 0.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.launched: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.ran: dict[int, Span] = {}

    @contextmanager
    def taken(self) -> Iterator[OpTimes]:
        """As long as this lasts."""
        from ..devices.cuda import CudaOp, CudaStream

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


# -- profilers --


def seen_by_torch(
    path: Path, work: Callable[[Around], None], name: str, otherwise: str = ""
) -> Seen:
    """What ``torch.profiler`` sees of some work, which says where the range ``name`` is.

    Raises:
        NotRun: it sees nothing of a GPU; ``otherwise`` says why nobody else was asked.
    """
    from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():
        raise NotRun(f"{otherwise}, and this torch's profiler sees nothing of a GPU")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work(partial(record_function, name))
    profiler.export_chrome_trace(str(path))
    with unpacked(path) as file:
        return seen_in(JsonEvents(file))


def seen_by_nsight(path: Path, module: Sequence[str], seconds: float) -> Seen:
    """What Nsight Systems sees of a module, with arguments, that is run in a process of its own.

    Raises:
        NotRun: it can't run here, or not in so many seconds.
    """
    if (nsys := shutil.which("nsys")) is None:
        raise NotRun("there is no nsys")
    command = [
        nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--force-overwrite=true", "--export=sqlite", f"--output={path}",
        sys.executable, "-m", *module,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NotRun("nsys did not end in time") from None
    database = path.with_suffix(".sqlite")
    if done.returncode or not database.is_file():
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise NotRun(f"nsys ended with {done.returncode}: {last}")
    return seen_by_nsys(database)


def nvtx_range(name: str) -> Around:
    """What Nsight Systems is told of."""
    import torch

    return partial(torch.cuda.nvtx.range, name)


def calls_in(seen: Seen, name: str) -> list[str]:
    """The calls of CUDA, by any thread, while a range of that name lasted."""
    spans = [(item.start, item.end) for item in seen.ranges if item.name == name]
    return [
        VERSION.sub("", call.name)
        for call in seen.calls
        if any(start <= call.start and call.end <= end for start, end in spans)
    ]
