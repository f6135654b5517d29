"""A GPU that is not there: ``torch.cuda`` as far as this project uses it, on the CPU.

Inside ``fake_cuda()`` torch sees one GPU, and ``devices/cuda.py:CudaDevice`` runs on it unchanged.
A tensor on it says that it is on ``cuda:0``, and its numbers lie in a tensor on the CPU. What is
launched runs late, so a missing wait, a buffer that is used again too early
and a read of a copy that has not landed give wrong numbers, as on a GPU.

Memory belongs to the stream on which it was taken. When its last name goes on the host, its stream
may hand it out again; if another stream may still use it by then, that is a finding, and it is
filled with wrong numbers at once. ``set_sync_debug_mode`` raises where the host has to wait.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import minisched
from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cuda import IDLE, CudaDevice

CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
NAME, TOTAL_BYTES = "a GPU that is not there", 1 << 34
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
aten = torch.ops.aten
SOURCE = str(Path(minisched.__file__).parent)
Clock = dict[int, int]  # by stream, how many kernels of it have ended
Kernel = Callable[[], None]


class Finding(NamedTuple):
    time: int  # by ``time.perf_counter_ns``
    sentence: str  # of memory that was let go too early


class Gpu:
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
            if graph.mode == "global" or graph.thread == threading.get_ident():
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
        stream.count += 1
        if stream.capture is not None:
            stream.capture.kernels.append(kernel)
        else:
            stream.queue.append(("run", kernel))


class Moment:
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


class GpuTensor(Tensor):
    """A tensor on the GPU. ``on_cpu`` has its numbers once all kernels have run."""

    on_cpu: Tensor
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
        return self.cpu().tolist()


class Operations(TorchDispatchMode):
    """Whatever torch does on a thread, as the GPU sees it."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu
        self.shapes: dict[Any, Any] = {}  # what operations give: torch takes long to say it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """An operation; what is of the host alone is done as always."""
        kwargs = dict(kwargs or {})
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        tensors = list(tensors_in([*args, *kwargs.values()]))
        where = kwargs.get("device")
        with self.gpu.lock:
            if any(isinstance(tensor, GpuTensor) for tensor in tensors) or (
                where is not None and where.type != "cpu"
            ):
                if func in (aten._to_copy.default, aten.copy_.default):
                    return self.copy(func, args, kwargs)
                return self.on_gpu(func, args, kwargs, tensors)
            pinned = kwargs.pop("pin_memory", False)
            out = func(*args, **kwargs)
            return self.pin(out) if pinned else out

    def pin(self, tensor: Tensor) -> Tensor:
        self.gpu.unsafe("cudaHostAlloc")
        tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]
        return tensor

    def copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Between the host and the GPU, or on the GPU.

        What is not pinned, the driver copies while the host waits, or at once into memory of its
        own.
        """
        if func is aten._to_copy.default:
            [source], lazily = args, kwargs.get("non_blocking", False)
            shape = torch.empty_like(shape_of(source), device=META, dtype=kwargs.get("dtype"))
            if kwargs.get("device", source.device).type == "cpu":
                target = torch.full(shape.size(), WRONG_TOKEN, dtype=shape.dtype)
                target = self.pin(target) if lazily else target
            else:
                target = self.take(shape)
        else:
            target, source, lazily = args[0], args[1], bool(args[2:] and args[2])
        into, values = numbers(target), numbers(source)
        host = source if values is source else target if into is target else None
        if host is not None and not is_pinned(host):
            lazily = lazily and values is source and self.gpu.current.capture is None
            values = values.clone() if values is source else values
        self.run(lambda: into.copy_(values), func, [source, target])
        if host is not None and not lazily:
            self.gpu.wait_here(f"a copy {'from' if host is source else 'to'} the host")
        return target

    def on_gpu(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor]
    ) -> Any:
        """A kernel, or a view of a tensor; what comes out is named at once, and filled later."""
        given = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
        for tensor in tensors:
            if not isinstance(tensor, GpuTensor) and tensor.dim():
                if func._schema.name not in INDEXING:
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two "
                        f"devices, {CUDA} and {tensor.device}! ({func})"
                    )
                self.gpu.wait_here("an index from the host")
        fixed = in_place_of(lambda it: numbers(it, as_it_is=True), args)
        named = in_place_of(lambda it: numbers(it, as_it_is=True), on(CPU, kwargs))
        if func.is_view:
            with torch.inference_mode(given[0].is_inference()):  # as torch has it of views
                outs = func(*fixed, **named)
                return in_place_of(lambda out: self.named(out, given[0].block), outs)
        if needs_numbers(func, args):
            self.gpu.wait_here(f"{func}, whose result has to be known")
            if not writes(func):
                with without_modes():
                    outs = func(*fixed, **named)
                return in_place_of(self.hold, outs)
        shapes = self.shapes_of(func, args, kwargs)
        if writes(func):
            self.run(lambda: func(*fixed, **named), func, given)
            if shapes is None:
                return None
            return given[-len(shapes) :] if isinstance(shapes, tuple | list) else args[0]
        outs = in_place_of(self.take, shapes)
        places = [out.on_cpu for out in tensors_in([outs])]  # type: ignore[attr-defined]

        def kernel() -> None:
            for where, value in zip(places, tensors_in([func(*fixed, **named)]), strict=True):
                where.copy_(value)

        if "empty" not in func._schema.name:
            self.run(kernel, func, [*given, *tensors_in([outs])])
        return outs

    def shapes_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        key = (func, form_of(args), form_of(sorted(kwargs.items())))
        if key not in self.shapes:
            self.shapes[key] = func(*in_place_of(shape_of, args), **on(META, kwargs))
        return self.shapes[key]

    def run(self, kernel: Kernel, func: Any, named: Sequence[Tensor]) -> None:
        stream, what = self.gpu.current, f"{func} {place()}"
        self.gpu.queue(stream, kernel)
        for tensor in named:
            if isinstance(tensor, GpuTensor):
                tensor.block.used_by(stream, stream.count, what)

    def take(self, shape: Tensor) -> GpuTensor:
        """New memory, in which something wrong is left from before."""
        if self.gpu.current.capture is None:
            self.gpu.unsafe("cudaMalloc")
        data = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)
        return self.hold(data.fill_(WRONG_TOKEN))

    def hold(self, data: Tensor) -> GpuTensor:
        return self.named(data, Block(self.gpu, data))

    def named(self, data: Tensor, block: Block) -> GpuTensor:
        shape = torch.empty_strided(data.size(), data.stride(), dtype=data.dtype, device=META)
        tensor: GpuTensor = Tensor._make_subclass(GpuTensor, shape)
        tensor.on_cpu, tensor.shape_only, tensor.block = data, shape, block
        return tensor


@cache
def is_composite(func: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(func.name(), "CompositeImplicitAutograd"))


@cache
def writes(func: Any) -> bool:
    return any(arg.alias_info and arg.alias_info.is_write for arg in func._schema.arguments)


def needs_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether the host must know numbers to go on: a value, or how many there are."""
    if func._schema.name in INDEXING:
        return any(at is not None and at.dtype is torch.bool for at in args[1])
    tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    return any(tag in func.tags for tag in tags)


def is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor.untyped_storage(), "pinned", False)


def tensors_in(items: Sequence[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_in(item)


def in_place_of(look: Callable[[Any], Any], items: Any) -> Any:
    if isinstance(items, dict):
        return {name: in_place_of(look, item) for name, item in items.items()}
    if isinstance(items, list | tuple):
        return type(items)([in_place_of(look, item) for item in items])
    return look(items) if isinstance(items, Tensor) else items


def numbers(tensor: Tensor, as_it_is: bool = False) -> Tensor:
    """Where a tensor's numbers are; of one on the host, if need be, a copy ``as_it_is`` now."""
    if isinstance(tensor, GpuTensor):
        return tensor.on_cpu
    return tensor.clone() if as_it_is else tensor


def shape_of(tensor: Tensor) -> Tensor:
    if isinstance(tensor, GpuTensor):
        return tensor.shape_only
    return tensor.to(META) if tensor.dim() else tensor


def form_of(item: Any) -> Any:
    """What an argument's value adds to the shapes of results."""
    if isinstance(item, Tensor):
        return item.dtype, item.size(), item.stride(), item.is_inference()
    return tuple(map(form_of, item)) if isinstance(item, list | tuple) else (type(item), item)


def on(device: torch.device, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**kwargs, "device": device} if kwargs.get("device") is not None else kwargs


@contextmanager
def fake_cuda(seed: int = 0) -> Iterator[Gpu]:
    """Inside, torch sees one GPU; ``seed`` decides when what is queued runs.

    ``CudaDevice.lifetimes`` says what was let go too early since a device was opened. For threads
    of its own a device enters ``torch.cuda.device``; who calls this is on the GPU already.
    """
    gpu = Gpu(seed)
    operations = Operations(gpu)
    there.append(gpu)
    Stream()  # the default one
    real_tensor, threads = torch.tensor, torch.get_num_threads()

    def tensor(values: Any, *, pin_memory: bool = False, **options: Any) -> Tensor:
        made = real_tensor(values, **options)
        return operations.pin(made) if pin_memory else made

    def pin_memory(tensor: Tensor, device: object = None) -> Tensor:
        return tensor if is_pinned(tensor) else operations.pin(tensor.clone())

    @contextmanager
    def on_this_gpu(device: object) -> Iterator[None]:
        with operations:
            yield

    def lifetimes(device: CudaDevice) -> list[str]:
        return [item.sentence for item in gpu.findings if item.time >= device.opened]

    cuda = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "stream": gpu.on,
        "current_stream": lambda device=None: gpu.current,
        "synchronize": gpu.synchronize,
        "empty_cache": lambda: gpu.unsafe("cudaFree"),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": on_this_gpu,
        "get_device_name": lambda device=None: NAME,
        "mem_get_info": lambda device=None: (TOTAL_BYTES, TOTAL_BYTES),
        "graph_pool_handle": object,
        "is_current_stream_capturing": lambda: gpu.current.capture is not None,
        "set_sync_debug_mode": lambda mode: setattr(gpu, "sync_mode", mode),
    }
    with ExitStack() as stack:
        torch.set_num_threads(1)  # kernels are small
        stack.callback(torch.set_num_threads, threads)
        stack.callback(there.pop)
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch, "tensor", tensor))
        stack.enter_context(patch.object(Tensor, "pin_memory", pin_memory))
        stack.enter_context(patch.object(torch._C, "_host_emptyCache", lambda: None, create=True))
        stack.enter_context(patch.object(CudaDevice, "lifetimes", property(lifetimes)))
        stack.enter_context(patch.dict(IDLE, clear=True))
        stack.enter_context(operations)
        yield gpu
