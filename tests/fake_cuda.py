"""A GPU that is not there: ``torch.cuda`` as far as this project uses it, on the CPU.

Inside ``fake_cuda()`` torch sees one GPU, and ``devices/cuda.py:CudaDevice`` runs on it unchanged.
A tensor on it says that it is on ``cuda:0``, and its numbers lie in a tensor on the CPU. Kernels are
queued on streams and run late: when the host waits for them, and some of them earlier, as ``seed``
has it. So a missing wait, a buffer that is used again too early and a read of a copy that has not
landed give wrong numbers, as on a GPU. Streams and the host have vector clocks: what is said to come
before what does not depend on when kernels run here.

Memory belongs to the stream on which it was taken. When the last name of it goes on the host, its
stream may hand it out again; if another stream may still use it by then, that is a finding, and it is
filled with numbers that are wrong at once. CUDA graphs record kernels and run them again. What CUDA
would refuse during a capture, or under ``set_sync_debug_mode``, raises here, too.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import minisched
from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cuda import IDLE, CudaDevice

CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
SOURCE = str(Path(minisched.__file__).parent)
TOTAL_BYTES = 1 << 34
MAY_INDEX = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
aten = torch.ops.aten
Clock = dict[int, int]  # by stream, how many kernels of it have ended
Kernel = Callable[[], None]


class Finding(NamedTuple):
    """Memory that was let go too early, in a sentence, and when, by ``time.perf_counter_ns``."""

    time: int
    sentence: str


class Moment:
    """A place in a stream's order, and all that comes before it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.clock, self.capture = stream, stream.now(), stream.capture
        self.time = 0  # when the GPU got there, in nanoseconds; 0: it has not


class Stream:
    """``torch.cuda.Stream``: kernels, waits and moments, in order."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.gpu = gpu = the_gpu()
        with gpu.lock:
            self.number = len(gpu.streams)
            gpu.streams.append(self)
        self.queue: deque[tuple[str, Any]] = deque()
        self.count = 0  # kernels that were queued
        self.behind: Clock = {}  # what it waits for of others
        self.capture: CUDAGraph | None = None

    def now(self) -> Clock:
        """What comes before whatever is queued next."""
        return {**self.behind, self.number: self.count}

    def wait_stream(self, other: Stream) -> None:
        """Go on only after all that is queued on another stream."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Put an event here."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Go on only after an event; after one that nobody has recorded yet, at once."""
        if (moment := event.moment) is None:
            return
        with self.gpu.lock:
            if self.capture is not moment.capture:
                if self.capture is not None:
                    self.capture.refuse("a wait for work that is not captured")
                self.capture = moment.capture
            advance(self.behind, moment.clock)
            if self.capture is None:
                self.queue.append(("wait", moment))

    def query(self) -> bool:
        """Whether all that is queued has run."""
        return self.record_event().query()

    def synchronize(self) -> None:
        """Block the host until it has."""
        self.record_event().synchronize()

    def advance(self) -> bool:
        """The GPU: do what is next; False where there is nothing, or it has to wait."""
        if not self.queue or (self.queue[0][0] == "wait" and not self.queue[0][1].time):
            return False
        kind, item = self.queue.popleft()
        if kind == "run":
            try:
                item()
            except Exception as error:
                message = f"CUDA error: device-side assert triggered ({error})"
                self.gpu.died_of = self.gpu.died_of or message
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
    """``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False, **options: object) -> None:
        self.gpu, self.timed = the_gpu(), enable_timing
        self.moment: Moment | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Stand behind what is queued on a stream now."""
        with self.gpu.lock:
            stream = stream or self.gpu.current
            self.moment = Moment(stream)
            if stream.capture is None:
                stream.queue.append(("moment", self.moment))
                self.gpu.go_on()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream go on only after it."""
        (stream or self.gpu.current).wait_event(self)

    def query(self) -> bool:
        """Whether the GPU has got past it; it does sooner or later, however often it is asked."""
        with self.gpu.lock:
            self.gpu.unsafe("cudaEventQuery")
            if self.moment and not self.moment.time:
                self.gpu.go_on()
                if self.gpu.random.random() < 0.3:
                    self._reach()
            if is_done := not self.moment or bool(self.moment.time):
                self._heard()
            return is_done

    def synchronize(self) -> None:
        """Block the host until the GPU has got past it."""
        with self.gpu.lock:
            self.gpu.unsafe("cudaEventSynchronize")
            self._reach()
            self._heard()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events, as coarse as CUDA's float32."""
        if not (self.timed and end.timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        first, last = self.moment, end.moment
        if not (first and last and first.time and last.time):
            raise RuntimeError("CUDA error: device not ready")
        return ctypes.c_float((last.time - first.time) / 1e6).value

    def _reach(self) -> None:
        if self.moment is not None:
            if self.moment.capture is not None:
                self.moment.capture.refuse("a wait of the host for what is captured")
            with without_mode():
                self.moment.stream.reach(self.moment)

    def _heard(self) -> None:
        """The host knows it now."""
        self.gpu.check_alive()
        if self.moment is not None:
            advance(self.gpu.host, self.moment.clock)


class CUDAGraph:
    """``torch.cuda.CUDAGraph``: kernels that are recorded at addresses which stay the same."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.gpu = the_gpu()
        self.kernels: list[Kernel] = []
        self.born: set[int] = set()  # blocks of its own pool, by id
        self.named: dict[int, tuple[weakref.ref[Block], str]] = {}  # of others, and by which kernel
        self.mode, self.broken, self.thread, self.token = "global", "", 0, object()

    def capture_begin(
        self, pool: object = None, capture_error_mode: str = "global", **options: object
    ) -> None:
        """Record what is queued on the current stream, instead of running it."""
        if self.gpu.current is self.gpu.streams[0]:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.token = pool or self.token
        self.mode, self.thread, self.stream = (
            capture_error_mode, threading.get_ident(), self.gpu.current,
        )  # fmt: skip
        self.stream.capture = self
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
        """Queue it all again on the current stream."""
        with self.gpu.lock:
            stream = self.gpu.current
            for ref, what in self.named.values():
                if (block := ref()) is None:
                    self.gpu.find(f"a graph is replayed whose {what} names memory that was let go")
                else:
                    block.used_by(stream, stream.count + len(self.kernels), what)
            for kernel in self.kernels:
                self.gpu.queue(stream, kernel)

    def pool(self) -> object:
        """Whose memory other graphs may share."""
        return self.token

    def reset(self) -> None:
        """Forget it."""
        self.kernels.clear()


class Block:
    """Memory that somebody on the host names; when nobody does any more, it is let go."""

    def __init__(self, gpu: Gpu, data: Tensor) -> None:
        self.gpu, self.data, self.made = gpu, data, place()
        self.owner = gpu.current
        self.uses: dict[int, tuple[int, str]] = {}  # by stream, the last kernel that names it
        self.capture = self.owner.capture
        gpu.allocated += data.untyped_storage().nbytes()
        if self.capture is not None:
            self.capture.born.add(id(self))

    def used_by(self, stream: Stream, count: int, what: str) -> None:
        """A kernel names it, its stream's ``count``-th."""
        graph = stream.capture
        if graph is not None and id(self) not in graph.born:
            graph.named[id(self)] = weakref.ref(self), what
        elif stream is not self.owner:
            self.uses[stream.number] = count, what

    def __del__(self) -> None:
        """The last name is gone: its own stream may hand it out again now."""
        gpu = self.gpu
        with gpu.lock:
            gpu.allocated -= self.data.untyped_storage().nbytes()
            if self.capture is not None:
                return  # its graph's pool keeps it
            early = [
                what
                for stream, (count, what) in self.uses.items()
                if max(gpu.host.get(stream, 0), self.owner.behind.get(stream, 0)) < count
            ]
            if early:
                gpu.find(f"memory made {self.made} was let go before {early[-1]} had ended")
                with without_mode():
                    self.data.fill_(WRONG_TOKEN)


class GpuTensor(Tensor):
    """A tensor on the GPU: its shape; its numbers are ``data_on_cpu``, once all kernels have run."""

    data_on_cpu: Tensor
    shape_only: Tensor
    block: Block
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *rest: Any) -> Any:
        """A thread that has not said which GPU it uses."""
        raise RuntimeError(f"{func} on a thread that is on no GPU (torch.cuda.device)")

    def tolist(self) -> Any:
        """Wait for the numbers."""
        return self.cpu().tolist()


class Gpu(TorchDispatchMode):
    """What is queued on it, who knows what has ended, and what was found."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.here = threading.local()
        self.streams: list[Stream] = []
        self.host: Clock = {}  # what the host knows to have ended
        self.captures: list[CUDAGraph] = []
        self.findings: list[Finding] = []
        self.died_of = ""
        self.sync_mode = 0
        self.allocated = 0
        self.shapes: dict[Any, Any] = {}

    @property
    def current(self) -> Stream:
        """This thread's stream."""
        stream: Stream = getattr(self.here, "stream", None) or self.streams[0]
        return stream

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """``torch.cuda.stream``."""
        before, self.here.stream = self.current, stream or self.current
        try:
            yield
        finally:
            self.here.stream = before

    def find(self, sentence: str) -> None:
        """Something was let go too early."""
        self.findings.append(Finding(time.perf_counter_ns(), sentence))

    def check_alive(self) -> None:
        """An error of a kernel is heard of late, and then for ever."""
        if self.died_of:
            raise RuntimeError(self.died_of)

    def unsafe(self, what: str) -> None:
        """A call that may wait for the GPU: a capture does not allow it."""
        for graph in self.captures:
            is_here = graph.thread == threading.get_ident()
            if graph.mode == "global" or (graph.mode == "thread_local" and is_here):
                graph.refuse(what)

    def wait_here(self, what: str) -> None:
        """The host has to wait for the current stream in the middle of its work."""
        if self.current.capture is not None:
            self.current.capture.refuse(what)
        if self.sync_mode == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")
        self.current.synchronize()

    def synchronize(self, device: object = None) -> None:
        """``torch.cuda.synchronize``."""
        for stream in list(self.streams):
            stream.synchronize()

    def go_on(self) -> None:
        """The GPU: now and then some of what is queued runs, on whichever stream."""
        if self.random.random() < 0.3:
            stream = self.random.choice(self.streams)
            with without_mode():
                for _ in range(self.random.randrange(1, 100)):
                    if not stream.advance():
                        break

    def queue(self, stream: Stream, kernel: Kernel) -> None:
        """Queue a kernel, or record it."""
        self.check_alive()
        stream.count += 1
        if stream.capture is not None:
            stream.capture.kernels.append(kernel)
        else:
            stream.queue.append(("run", kernel))

    # -- operations --------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Whatever torch does on this thread; what is of the host alone is done as always."""
        kwargs = dict(kwargs or {})
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs.values())))
        given = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
        where = kwargs.get("device")
        with self.lock:
            if not given and (where is None or where.type == "cpu"):
                return self.on_host(func, args, kwargs)
            if func in (aten._to_copy.default, aten.copy_.default):
                return self.copy(func, args, kwargs)
            return self.on_gpu(func, args, kwargs, tensors, given)

    def on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation on the CPU."""
        pinned = kwargs.pop("pin_memory", False)
        out = func(*args, **kwargs)
        return self.pin(out) if pinned else out

    def pin(self, tensor: Tensor) -> Tensor:
        """Let copies of it run beside the host."""
        self.unsafe("cudaHostAlloc")
        tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]
        return tensor

    def pin_new(self, tensor: Tensor) -> Tensor:
        """``Tensor.pin_memory``."""
        return tensor if is_pinned(tensor) else self.pin(tensor.clone())

    def copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Between the host and the GPU, or on the GPU."""
        is_new = func is aten._to_copy.default
        lazily = kwargs.get("non_blocking", False) or (not is_new and len(args) > 2 and args[2])
        source = args[0] if is_new else args[1]
        if is_new:
            shape = torch.empty_like(shape_of(source), device=META, dtype=kwargs.get("dtype"))
            to_host = kwargs.get("device", source.device).type == "cpu"
            target = self.on_the_host(shape, lazily) if to_host else self.take(shape)
        else:
            target, to_host = args[0], not isinstance(args[0], GpuTensor)
        if to_host:
            host, (into, data) = target, (target, source.data_on_cpu)
        elif isinstance(source, GpuTensor):
            host, (into, data) = None, (target.data_on_cpu, source.data_on_cpu)
        else:
            host, (into, data) = source, (target.data_on_cpu, source)
        if host is not None and not is_pinned(host):
            if to_host or self.current.capture is not None:
                lazily = False  # what is not pinned, the driver copies while the host waits
            data = data if to_host else data.clone()
        self.run(lambda: into.copy_(data), str(func), [source, target])
        if host is not None and not lazily:
            self.wait_here(f"a copy {'to' if to_host else 'from'} the host")
        return target

    def on_the_host(self, shape: Tensor, pinned: bool) -> Tensor:
        """New memory for a copy to the host."""
        out = torch.full(shape.size(), WRONG_TOKEN, dtype=shape.dtype)
        return self.pin(out) if pinned else out

    def on_gpu(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Any, given: Any) -> Any:
        """A kernel, or a view of a tensor; what comes out is named at once, and filled later."""
        for tensor in tensors:
            if not isinstance(tensor, GpuTensor) and tensor.dim():
                if func._schema.name not in MAY_INDEX:
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two "
                        f"devices, {CUDA} and {tensor.device}! ({func})"
                    )
                self.wait_here("an index from the host")
        on_cpu = in_place_of(data_of, args), in_place_of(data_of, on(CPU, kwargs))
        if func.is_view:
            outs = func(*on_cpu[0], **on_cpu[1])
            with torch.inference_mode(given[0].is_inference()):  # as torch has it of views
                return same_form(outs, [self.named(out, given[0].block) for out in listed(outs)])
        if waits := needs_numbers(func, args):
            self.wait_here(f"{func}, whose result has to be known")
        if waits and not writes(func):
            with without_mode():
                outs = func(*on_cpu[0], **on_cpu[1])
            kept = [self.hold(out) if isinstance(out, Tensor) else out for out in listed(outs)]
            return same_form(outs, kept)
        shapes = self.shapes_of(func, args, kwargs)
        if writes(func):
            self.run(lambda: func(*on_cpu[0], **on_cpu[1]), str(func), given)
            if shapes is None:
                return None
            return args[0] if not isinstance(shapes, tuple | list) else given[-len(shapes) :]
        outs = [self.take(shape) for shape in listed(shapes)]
        places = [out.data_on_cpu for out in outs]

        def kernel() -> None:
            got = listed(func(*on_cpu[0], **on_cpu[1]))
            for where, value in zip(places, got, strict=True):
                where.copy_(value)

        if "empty" not in func._schema.name:
            self.run(kernel, str(func), [*given, *outs])
        return same_form(shapes, outs)

    def shapes_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an operation gives, as tensors without numbers; torch takes long to say it."""
        key = (func, form_of(args), form_of(sorted(kwargs.items())))
        if key not in self.shapes:
            self.shapes[key] = func(*in_place_of(shape_of, args), **on(META, kwargs))
        return self.shapes[key]

    def run(self, kernel: Kernel, what: str, named: Sequence[Tensor]) -> None:
        """Queue a kernel that names some memory."""
        stream, what = self.current, f"{what} {place()}"
        self.queue(stream, kernel)
        for tensor in named:
            if isinstance(tensor, GpuTensor):
                tensor.block.used_by(stream, stream.count, what)

    def take(self, shape: Tensor) -> GpuTensor:
        """New memory, in which something wrong is left from before."""
        if self.current.capture is None:
            self.unsafe("cudaMalloc")
        data = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)
        return self.hold(data.fill_(WRONG_TOKEN))

    def hold(self, data: Tensor) -> GpuTensor:
        """A tensor that is the first to name its memory."""
        return self.named(data, Block(self, data))

    def named(self, data: Tensor, block: Block) -> GpuTensor:
        """A tensor that names it, too."""
        meta = torch.empty_strided(data.size(), data.stride(), dtype=data.dtype, device=META)
        tensor: GpuTensor = Tensor._make_subclass(GpuTensor, meta)
        tensor.data_on_cpu, tensor.shape_only, tensor.block = data, meta, block
        return tensor


def advance(clock: Clock, other: Clock) -> None:
    """Know all that another clock knows."""
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


def place() -> str:
    """Where in the sources this is happening: the innermost line, and who has called it."""
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(lines) < 2:
        if (name := frame.f_code.co_filename).startswith(SOURCE):
            lines.append(f"{name[len(SOURCE) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return f"at {' < '.join(lines)}" if lines else "outside"


@cache
def is_composite(func: Any) -> bool:
    """Whether an operation is made of others, whatever the device."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(func.name(), "CompositeImplicitAutograd"))


@cache
def writes(func: Any) -> bool:
    """Whether it writes to what it is given."""
    return any(arg.alias_info and arg.alias_info.is_write for arg in func._schema.arguments)


def needs_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether the host must know numbers to go on: a value, or how many there are."""
    if func._schema.name in MAY_INDEX:
        return any(at is not None and at.dtype is torch.bool for at in args[1])
    tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    return any(tag in func.tags for tag in tags)


@contextmanager
def without_mode() -> Iterator[None]:
    """What torch does inside is the CPU's."""
    guard = torch._C._DisableTorchDispatch()
    try:
        with torch.inference_mode():
            yield
    finally:
        del guard


def is_pinned(tensor: Tensor) -> bool:
    """Whether a copy of it can run beside the host."""
    return getattr(tensor.untyped_storage(), "pinned", False)


def tensors_in(items: Any) -> Iterator[Tensor]:
    """Every tensor in lists and tuples, whatever they are in."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple) or type(item).__name__ == "dict_values":
            yield from tensors_in(item)


def in_place_of(look: Callable[[Any], Any], items: Any) -> Any:
    """The same lists and tuples, or a dictionary, with something else for each tensor."""
    if isinstance(items, dict):
        return {name: in_place_of(look, item) for name, item in items.items()}
    if isinstance(items, list | tuple):
        return type(items)(in_place_of(look, item) for item in items)
    return look(items) if isinstance(items, Tensor) else items


def data_of(tensor: Tensor) -> Tensor:
    """A tensor's numbers; one that is on the host is given as it is now."""
    return tensor.data_on_cpu if isinstance(tensor, GpuTensor) else tensor.clone()


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor's shape; a number on the host is taken as it is."""
    if isinstance(tensor, GpuTensor):
        return tensor.shape_only
    return tensor.to(META) if tensor.dim() else tensor


def form_of(item: Any) -> Any:
    """What an argument's value adds to the shapes of results."""
    if isinstance(item, Tensor):
        return item.dtype, item.size(), item.stride(), item.is_inference()
    return tuple(map(form_of, item)) if isinstance(item, list | tuple) else (type(item), item)


def on(device: torch.device, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for another device."""
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**kwargs, "device": device} if kwargs.get("device") is not None else kwargs


def listed(outs: Any) -> Sequence[Any]:
    """What an operation gives, one or several."""
    return outs if isinstance(outs, list | tuple) else [outs]


def same_form(outs: Any, values: list[Any]) -> Any:
    """Several if it gives several."""
    return type(outs)(values) if isinstance(outs, list | tuple) else values[0]


_open: list[Gpu] = []


def the_gpu() -> Gpu:
    """The one that is there."""
    return _open[-1]


@contextmanager
def fake_cuda(seed: int = 0) -> Iterator[Gpu]:
    """Inside, torch sees one GPU; ``seed`` decides when what is queued runs.

    ``CudaDevice.lifetimes`` says what was let go too early while a device was open. For threads of
    its own a device enters ``torch.cuda.device``; the thread that calls this is on the GPU already.
    """
    gpu = Gpu(seed)
    _open.append(gpu)
    Stream()  # the default one
    real_tensor = torch.tensor

    def tensor(values: Any, *, pin_memory: bool = False, **options: Any) -> Tensor:
        made = real_tensor(values, **options)
        return gpu.pin(made) if pin_memory else made

    @contextmanager
    def on_this_gpu(device: object) -> Iterator[None]:
        with gpu:
            yield

    def set_sync_debug_mode(mode: str | int) -> None:
        gpu.sync_mode = ["default", "warn", "error"].index(mode) if isinstance(mode, str) else mode

    def lifetimes(device: CudaDevice) -> list[str]:
        return [item.sentence for item in gpu.findings if item.time >= device.opened]

    cuda = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "stream": gpu.on,
        "current_stream": lambda device=None: gpu.current,
        "default_stream": lambda device=None: gpu.streams[0],
        "synchronize": gpu.synchronize,
        "empty_cache": lambda: gpu.unsafe("cudaFree"),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": on_this_gpu,
        "get_device_name": lambda device=None: "a GPU that is not there",
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="a GPU that is not there", total_memory=TOTAL_BYTES, multi_processor_count=1
        ),
        "mem_get_info": lambda device=None: (TOTAL_BYTES - gpu.allocated, TOTAL_BYTES),
        "memory_allocated": lambda device=None: gpu.allocated,
        "graph_pool_handle": object,
        "is_current_stream_capturing": lambda: gpu.current.capture is not None,
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_sync_debug_mode": lambda: gpu.sync_mode,
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # kernels are small
    with ExitStack() as patches:
        patches.callback(torch.set_num_threads, threads)
        for name, value in cuda.items():
            patches.enter_context(patch.object(torch.cuda, name, value))
        patches.enter_context(patch.dict(IDLE, clear=True))
        patches.enter_context(patch.object(torch, "tensor", tensor))
        patches.enter_context(
            patch.object(Tensor, "pin_memory", lambda it, device=None: gpu.pin_new(it))
        )
        patches.enter_context(patch.object(torch._C, "_host_emptyCache", lambda: None, create=True))
        patches.enter_context(
            patch.object(CudaDevice, "lifetimes", property(lifetimes), create=True)
        )
        try:
            with gpu:
                yield gpu
        finally:
            _open.pop()
