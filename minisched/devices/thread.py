"""Streams as threads: launched ops run on the CPU, in order, while the host's thread continues.

``TorchArrays`` and ``TorchDevice`` are also for ``cuda``.
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

# -- The array functions of relays, in torch; shipping numbers to a torch device -------------------

Numbers = Sequence[float] | Sequence[Sequence[float]]


def ship(values: Numbers, where: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return numbers of the host, or rows of them, as a tensor on the device.

    A GPU copies them from pinned memory, so the host does not wait for the GPU. torch owns that
    memory, and reuses it only after the copy.
    """
    pinned = where.type == "cuda"
    on_host = torch.tensor(values, dtype=dtype, pin_memory=pinned)
    return on_host.to(where, non_blocking=pinned)


class TorchArrays:
    """``devices/base.py:Arrays`` with int64 tensors on one torch device; functions for sampling.

    ``lib`` is torch, for functions that torch and MLX have under one name.
    """

    lib: Any = torch
    word = torch.int64  # for arithmetic with 32 bits; nothing overflows

    def __init__(self, where: torch.device) -> None:
        self.device = where

    def asarray(self, values: Sequence[int]) -> Tensor:
        """Return integers on the device."""
        return ship(values, self.device)

    def asarrays(self, *columns: Sequence[int]) -> Sequence[Tensor]:
        """Return views of one tensor; a GPU gets all in one copy, from one pinned buffer."""
        packed = self.asarray([*chain.from_iterable(columns)])
        views: Sequence[Tensor] = packed.split([len(values) for values in columns])
        return views

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a`` where the condition holds, and ``b`` elsewhere."""
        return torch.where(condition, a, b)

    def mask(self, values: Sequence[bool]) -> Tensor:
        """Return booleans on the device."""
        return ship(values, self.device, torch.bool)

    def count_equal(self, a: Tensor, b: Tensor, width: int, num_rows: int) -> Tensor:
        """Return 1 + the number of leading equal elements of each of ``num_rows``, [num_rows]."""
        return 1 + (a == b).view(num_rows, width).long().cumprod(-1).sum(-1)

    def clamp(self, values: Tensor, min: int) -> Tensor:
        """Return the values, with ``min`` for each lower one."""
        return torch.clamp(values, min=min)

    # -- for ``models/sampling_arrays.py`` and the hash model; ``MlxArrays`` has the same

    def in_float64(self) -> AbstractContextManager[None]:
        """Return a context in which float64 works: any one."""
        return nullcontext()

    def numbers(self, values: Any, dtype: torch.dtype) -> Tensor:
        """Return numbers of the host, or a tensor, in another dtype on the device."""
        on_device = isinstance(values, Tensor)
        return values.to(dtype) if on_device else ship(values, self.device, dtype)

    def wide(self, values: Tensor) -> Tensor:
        """Return an array with at least 32 bits."""
        return values.float() if values.element_size() < 4 else values

    def arange(self, end: int) -> Tensor:
        """Return the integers from 0 on."""
        return torch.arange(end, device=self.device)

    def take(self, values: Tensor, at: Tensor) -> Tensor:
        """Return the elements ``at`` [num_rows, any] of each row."""
        return values.gather(-1, at)

    def put(self, values: Tensor, at: Any, new: Tensor) -> Tensor:
        """Return a copy with other values ``at`` one index or several."""
        return values.index_put(at if isinstance(at, tuple) else (at,), new)

    def argmax(self, values: Tensor) -> Tensor:
        """Return the index of each row's largest value, the first among equals."""
        return values.argmax(-1)

    def argsort(self, values: Tensor) -> Tensor:
        """Return each row's indices in ascending order of values, equals in order."""
        return values.argsort(stable=True)

    def largest(self, values: Tensor, count: int) -> Tensor:
        """Return each row's ``count`` largest values, in descending order."""
        if count < values.size(-1):
            return values.topk(count).values
        if values.is_cuda:
            return values.sort(descending=True).values
        rising = np.sort(self.wide(values).numpy())  # a tenth of torch's time
        return torch.from_numpy(rising).flip(-1)

    def exp(self, values: Tensor) -> Tensor:
        """Return exp, in float64 with full precision."""
        return values.exp()

    def log_softmax(self, values: Tensor) -> Tensor:
        """Return the log-softmax of each row, summed in the same order in every batch.

        (``logsumexp`` splits a single long row over several threads on the CPU.)
        """
        return values.log_softmax(-1)


# -- For ``thread`` and ``cuda``: memory in tensors ------------------------------------------------


class TorchDevice(WallClock):
    """A wall-clock device with memory in int64 tensors on ``where``; subclasses add streams."""

    def __init__(self, recorder: Recorder | None, where: torch.device) -> None:
        super().__init__(recorder)
        self.xp = TorchArrays(where)

    def memory(self, name: str, size: int) -> Tensor:
        """Return ``size`` integers on the device, a valid but wrong token each."""
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, device=self.xp.device)

    def host_memory(self, name: str, size: int) -> Tensor:
        """Return ``size`` integers on the host, pinned if the device is a GPU."""
        pinned = self.xp.device.type == "cuda"
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, pin_memory=pinned)

    def copy_to_host(self, dst: Tensor, src: Tensor, size: int) -> Tensor:
        """Copy the first ``size`` integers into ``dst``, on a stream; return that part of it."""
        return dst[:size].copy_(src[:size], non_blocking=True)

    def bring_to_host(self, values: Tensor) -> Tensor:
        """Copy a tensor into new memory on the host, on a stream; a GPU does not block it."""
        pinned = self.xp.device.type == "cuda"
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=pinned)
        return target.copy_(values, non_blocking=True)


# -- Streams on the CPU, with settings so that they run while the host is busy ---------------------


class ThreadDevice(TorchDevice):
    """One worker thread for each stream, torch on the CPU (``devices/base.py:Device``).

    Python runs one thread at a time, so two settings are changed while a device is open. Threads
    switch after 0.02 ms instead of 5 ms, because each of some 24 tensor operations outside the
    model waits for the interpreter of a busy host. A stream computes with ``torch_threads``
    threads, by default one less than torch's own number, so the host has a core. The host computes
    with one thread, because its operations are small. Open devices share the settings, and the last
    ``close`` restores them.
    """

    name = "thread"

    def __init__(self, recorder: Recorder | None = None, torch_threads: int | None = None) -> None:
        super().__init__(recorder, torch.device("cpu"))
        self._streams: dict[str, ThreadLane] = {}
        switch_interval.want(SWITCH_INTERVAL)
        usual = give_host_one()
        self.torch_threads = torch_threads or max(1, usual - 1)

    def stream(self, name: str) -> ThreadLane:
        """Return the stream of that name; its thread starts with its first use."""
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


SWITCH_INTERVAL = 0.00002  # seconds after which a busy host releases the interpreter
SET_TIMERSLACK = 29  # of prctl
LEAST = 1  # nanosecond; 0 is the default


@contextmanager
def working(torch_threads: int) -> Iterator[None]:
    """Let a stream's thread wake on time and compute with its own number of threads.

    A thread waits for the interpreter in steps (``sys.setswitchinterval``). Linux prolongs a timed
    wait by up to 0.05 ms to save power. Without this setting, a stream's thread got the interpreter
    from a busy host after 0.07 ms instead of 0.02, some 24 times in a decode step.
    """
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(SET_TIMERSLACK, ctypes.c_ulong(LEAST), *(ctypes.c_ulong(0) for _ in range(3)))
    torch.set_num_threads(torch_threads)
    with torch.inference_mode():
        yield


# Each thread that computes with torch has a team of OpenMP threads of its own.
#
# OpenMP counts the threads of all teams, also of those that wait for work. If there are more than
# cores, libgomp lets every team sleep between two operations instead of spinning. A decode step of
# some hundred small operations then takes twice as long. So only threads that compute have a team.

SOFT = 1  # OpenMP 5.0, omp_pause_soft: threads end, settings stay
_usual: list[int] = []  # torch's own number of threads, once for each open device


def give_host_one() -> int:
    """End the team of the calling thread, the host; return torch's own number of threads.

    The host then computes alone, until ``take_back`` of the last open device.
    """
    _usual.append(_usual[0] if _usual else torch.get_num_threads())
    torch.set_num_threads(1)
    end = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if end is not None:  # an older OpenMP keeps its threads: only slower
        end(SOFT)
    return _usual[0]


def take_back() -> None:
    """Restore torch's threads if the last open device was closed."""
    usual = _usual.pop()
    if not _usual:
        torch.set_num_threads(usual)
