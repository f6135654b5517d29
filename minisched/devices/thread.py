"""Streams as threads: what is launched runs on the CPU, in order, beside the host's own thread.

And what ``cuda`` has of torch as well: its arrays, and memory in tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..trace import Recorder
from . import wall_clock as switch_interval
from .base import WRONG_TOKEN
from .wall_clock import ThreadLane, WallClock

# -- The array functions that relays need, for torch; and how numbers get to a torch device --------

Numbers = Sequence[float] | Sequence[Sequence[float]]


def ship(values: Numbers, where: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers from the host, or rows of them, as a tensor on the device.

    To a GPU they go from pinned memory, so that the host need not wait for what the GPU does. That
    memory is torch's, who hands it out again when the copy is over and not before.
    """
    pinned = where.type == "cuda"
    on_host = torch.tensor(values, dtype=dtype, pin_memory=pinned)
    return on_host.to(where, non_blocking=pinned)


class TorchArrays:
    """``devices/base.py:Arrays`` with int64 tensors on one torch device; and what sampling needs.

    ``lib`` is the library, for what torch and MLX have under one name.
    """

    lib: Any = torch
    word = torch.int64  # in which 32 bits are computed with; nothing overflows

    def __init__(self, where: torch.device) -> None:
        self.device = where

    def asarray(self, values: Sequence[int]) -> Tensor:
        """Integers on the device."""
        return ship(values, self.device)

    def asarrays(self, *columns: Sequence[int]) -> Sequence[Tensor]:
        """Views of one tensor: to a GPU all go in one copy, from one pinned buffer."""
        packed = self.asarray([*chain.from_iterable(columns)])
        views: Sequence[Tensor] = packed.split([len(values) for values in columns])
        return views

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``a`` where the condition holds, else ``b``."""
        return torch.where(condition, a, b)

    def mask(self, values: Sequence[bool]) -> Tensor:
        """Booleans on the device."""
        return ship(values, self.device, torch.bool)

    def count_equal(self, a: Tensor, b: Tensor, width: int, num_rows: int) -> Tensor:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        return 1 + (a == b).view(num_rows, width).long().cumprod(-1).sum(-1)

    def clamp(self, values: Tensor, min: int) -> Tensor:
        """Values below ``min`` raised to it."""
        return torch.clamp(values, min=min)

    # -- for ``models/sampling_arrays.py`` and the hash model; ``MlxArrays`` has the same

    def in_float64(self) -> AbstractContextManager[None]:
        """Where float64 can be computed: anywhere."""
        return nullcontext()

    def numbers(self, values: Any, dtype: torch.dtype) -> Tensor:
        """Numbers of the host, or a tensor's, in another dtype on the device."""
        on_device = isinstance(values, Tensor)
        return values.to(dtype) if on_device else ship(values, self.device, dtype)

    def wide(self, values: Tensor) -> Tensor:
        """In 32 bits at least."""
        return values.float() if values.element_size() < 4 else values

    def arange(self, end: int) -> Tensor:
        """The integers from 0 on."""
        return torch.arange(end, device=self.device)

    def take(self, values: Tensor, at: Tensor) -> Tensor:
        """Of each row those ``at`` [num_rows, any]."""
        return values.gather(-1, at)

    def put(self, values: Tensor, at: Any, new: Tensor) -> Tensor:
        """A copy with others ``at`` an index, or several."""
        return values.index_put(at if isinstance(at, tuple) else (at,), new)

    def argmax(self, values: Tensor) -> Tensor:
        """Of each row the index of the largest, of equals the first."""
        return values.argmax(-1)

    def argsort(self, values: Tensor) -> Tensor:
        """Of each row the indices of rising values, of equals in order."""
        return values.argsort(stable=True)

    def largest(self, values: Tensor, count: int) -> Tensor:
        """Of each row the ``count`` largest, falling."""
        if count < values.size(-1):
            return values.topk(count).values
        if values.is_cuda:
            return values.sort(descending=True).values
        rising = np.sort(self.wide(values).numpy())  # a tenth of torch's time
        return torch.from_numpy(rising).flip(-1)

    def exp(self, values: Tensor) -> Tensor:
        """In float64 to its last digits."""
        return values.exp()

    def log_softmax(self, values: Tensor) -> Tensor:
        """Each row by itself, in an order of adding up that is the same in every batch.

        ``logsumexp`` would not: on the CPU it gives a single long row to several threads.
        """
        return values.log_softmax(-1)


# -- What ``thread`` and ``cuda`` have in common: memory in tensors --------------------------------


class TorchDevice(WallClock):
    """A wall-clock device with memory in int64 tensors on ``where``; subclasses add streams."""

    def __init__(self, recorder: Recorder | None, where: torch.device) -> None:
        super().__init__(recorder)
        self.xp = TorchArrays(where)

    def memory(self, name: str, size: int) -> Tensor:
        """``size`` integers on the device, a valid but wrong token each."""
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, device=self.xp.device)

    def host_memory(self, name: str, size: int) -> Tensor:
        """``size`` integers on the host, pinned where the device is a GPU."""
        pinned = self.xp.device.type == "cuda"
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, pin_memory=pinned)

    def copy_to_host(self, dst: Tensor, src: Tensor, size: int) -> Tensor:
        """On a stream: copy the first ``size`` integers into ``dst``, and give that part of it."""
        return dst[:size].copy_(src[:size], non_blocking=True)

    def bring_to_host(self, values: Tensor) -> Tensor:
        """On a stream: copy a tensor into new memory on the host; from a GPU without waiting."""
        pinned = self.xp.device.type == "cuda"
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=pinned)
        return target.copy_(values, non_blocking=True)


# -- Streams on the CPU, and what lets them run beside a busy host ---------------------------------


class ThreadDevice(TorchDevice):
    """One worker thread for each stream, torch on the CPU (``devices/base.py:Device``).

    Python runs one thread at a time, so two settings give both sides a chance; devices that are
    open at the same time share them, and the last ``close`` takes them back. Threads switch after
    0.02 ms instead of 5: each of the two dozen tensor operations around a model's own asks a busy
    host for the interpreter anew. A stream computes with ``torch_threads`` threads (by default one
    less than torch would take), which leaves a core to the host; the host's own operations are
    small and take one.
    """

    name = "thread"

    def __init__(self, recorder: Recorder | None = None, torch_threads: int | None = None) -> None:
        super().__init__(recorder, torch.device("cpu"))
        self._streams: dict[str, ThreadLane] = {}
        switch_interval.want(SWITCH_INTERVAL)
        usual = give_host_one()
        self.torch_threads = torch_threads or max(1, usual - 1)

    def stream(self, name: str) -> ThreadLane:
        """The stream of that name; its thread starts with it."""
        if name not in self._streams:
            inside = partial(working, self.torch_threads)
            self._streams[name] = ThreadLane(self, name, inside, is_stream=True)
        return self._streams[name]

    def close(self) -> None:
        """Let running ops end, drop queued ops (each gets an error), and end all threads."""
        if self.is_closed:
            return
        try:
            self.close_threads()
            for stream in self._streams.values():
                stream.close()
        finally:
            switch_interval.give_back(SWITCH_INTERVAL)
            take_back()


SWITCH_INTERVAL = 0.00002  # seconds a busy host may keep a stream's thread from the interpreter
SET_TIMERSLACK = 29  # of prctl
LEAST = 1  # nanosecond; 0 stands for what is usual


@contextmanager
def working(torch_threads: int) -> Iterator[None]:
    """Inside, a stream's thread wakes on time and computes with its own number of threads.

    Whoever wants the interpreter waits for it in steps (``sys.setswitchinterval``), and Linux lets
    timed waits last up to 0.05 ms longer, to save power: a stream's thread got it from a busy host
    after 0.07 ms where 0.02 were asked for, two dozen times in a decode step.
    """
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(SET_TIMERSLACK, ctypes.c_ulong(LEAST), *(ctypes.c_ulong(0) for _ in range(3)))
    torch.set_num_threads(torch_threads)
    with torch.inference_mode():
        yield


# Whose threads torch's operations run on: each thread that computes keeps a team of its own.
#
# OpenMP counts the threads of all teams, also of those that wait for work. With more than there are
# cores, libgomp lets every team sleep between two operations instead of spinning: a decode step,
# some hundred small operations, then takes twice as long. So only the threads that compute may have
# one.

SOFT = 1  # OpenMP 5.0, omp_pause_soft: threads end, settings stay
_usual: list[int] = []  # threads that torch takes while no device is open; once for each that is


def give_host_one() -> int:
    """Let the thread that calls, the host, compute alone; how many threads torch would take.

    Its team ends. Several devices may be open: the last ``take_back`` lets it have them again.
    """
    _usual.append(_usual[0] if _usual else torch.get_num_threads())
    torch.set_num_threads(1)
    end = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if end is not None:  # an older OpenMP keeps its threads: slower, and as right
        end(SOFT)
    return _usual[0]


def take_back() -> None:
    """A device is closed."""
    usual = _usual.pop()
    if not _usual:
        torch.set_num_threads(usual)
