"""A GPU that is not there: ``torch.cuda`` as far as this project uses it, on the CPU.

Inside ``fake_cuda()`` torch sees one GPU, and ``devices/cuda.py:CudaDevice`` runs on it unchanged.
A tensor on it says that it is on ``cuda:0``, and its numbers lie in a tensor on the CPU. What is
launched runs late (``fake_streams.py``), so a missing wait, a buffer that is used again too early
and a read of a copy that has not landed give wrong numbers, as on a GPU.

Memory belongs to the stream on which it was taken. When its last name goes on the host, its stream
may hand it out again; if another stream may still use it by then, that is a finding, and it is
filled with wrong numbers at once. ``set_sync_debug_mode`` raises where the host has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cuda import IDLE, CudaDevice
from tests.devices.fake_streams import (
    Block,
    CUDAGraph,
    Event,
    Gpu,
    Kernel,
    Stream,
    place,
    there,
    without_modes,
)

__all__ = ["Gpu", "fake_cuda"]

CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
NAME, TOTAL_BYTES = "a GPU that is not there", 1 << 34
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
aten = torch.ops.aten


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
        """What an operation gives, as tensors without numbers."""
        key = (func, form_of(args), form_of(sorted(kwargs.items())))
        if key not in self.shapes:
            self.shapes[key] = func(*in_place_of(shape_of, args), **on(META, kwargs))
        return self.shapes[key]

    def run(self, kernel: Kernel, func: Any, named: Sequence[Tensor]) -> None:
        """Queue a kernel that names some memory."""
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
        """A tensor that is the first to name its memory."""
        return self.named(data, Block(self.gpu, data))

    def named(self, data: Tensor, block: Block) -> GpuTensor:
        """A tensor that names it, too."""
        shape = torch.empty_strided(data.size(), data.stride(), dtype=data.dtype, device=META)
        tensor: GpuTensor = Tensor._make_subclass(GpuTensor, shape)
        tensor.on_cpu, tensor.shape_only, tensor.block = data, shape, block
        return tensor


@cache
def is_composite(func: Any) -> bool:
    """Whether an operation is made of others, whatever the device."""
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
    """The same lists, tuples and dictionaries, with something else for each tensor."""
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
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=NAME, total_memory=TOTAL_BYTES, multi_processor_count=1
        ),
        "mem_get_info": lambda device=None: (TOTAL_BYTES, TOTAL_BYTES),
        "graph_pool_handle": object,
        "is_current_stream_capturing": lambda: gpu.current.capture is not None,
        "set_sync_debug_mode": lambda mode: setattr(gpu, "sync_mode", mode),
        "get_sync_debug_mode": lambda: gpu.sync_mode,
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
