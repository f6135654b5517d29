"""MLX's memory counted while nothing is in flight: then it depends on no thread's progress."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
import pytest

from minisched.devices.mlx import MlxDevice
from minisched.export.mlx_runs import memory_run
from minisched.loops.run import Run

A_STEP = 16 << 10  # bytes: more than a step leaves until the next one, less than a few steps would


def growth(used: Sequence[int]) -> int:
    """By how much memory in use has grown at most, since whichever earlier reading.

    Readings at rest still differ by less than ``A_STEP``: MLX gives what a step leaves (logits and
    tokens, 5 KiB) buffers of up to twice its size, as it has them.
    """
    return max(now - least for now, least in zip(used, accumulate(used, min), strict=True))


def come_to_rest(device: MlxDevice) -> None:
    """Wait until all that was handed over has run, and MLX has given up what it read.

    A thread of MLX's drops a piece's arrays before it begins the next piece.
    """
    runner, streams = device._runner, device.streams
    for executor in (runner._evaluator, runner._watcher):
        executor.submit(lambda: None).result()
    for stream in (streams.cpu, streams.compute, streams.copy, *streams.markers):
        mx.synchronize(stream)


def memory_run_at_rest(folder: Path, clear_cache_every: int, new_tokens: int) -> Run:
    """``memory_run``, which waits for the step in flight before it counts memory or clears it."""
    count_memory, clear_cache = MlxDevice.count_memory, MlxDevice.clear_cache

    def count(device: MlxDevice) -> None:
        come_to_rest(device)
        count_memory(device)

    def clear(device: MlxDevice) -> None:
        come_to_rest(device)
        clear_cache(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MlxDevice, "count_memory", count)
        patch.setattr(MlxDevice, "clear_cache", clear)
        return memory_run(folder, clear_cache_every, new_tokens)
