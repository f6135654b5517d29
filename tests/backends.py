"""Devices with the hash model written for their tensors: one law, every backend."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from minisched.core import Request, SamplingParams
from minisched.devices.registry import open_device as open_device
from minisched.models.base import Model
from minisched.models.registry import HASH, load
from minisched.trace import Slice, Trace

from .laws import LOOP_OPTIONS, SOME_LOOP_OPTIONS, LoopOptions, runs_on
from .workloads import VOCAB

BACKENDS = ("sim", "thread", "mlx")

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,",
    "2 + 2 =",
    "To make bread you need",
]

EVERY_LOOP = pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS, ids=str)
SOME_LOOPS = pytest.mark.parametrize(("loop", "relay", "options"), SOME_LOOP_OPTIONS, ids=str)


def in_real_time(items: list[LoopOptions]) -> pytest.MarkDecorator:
    """Each of the loops on two devices with a clock of their own, where it runs there.

    On ``cuda`` they are in ``test_fake_cuda.py``, with fewer examples: they take ten times as long.
    """
    cases = [(at, *item) for at in ("thread", "mlx") for item in items if runs_on(item[0], at)]
    return pytest.mark.parametrize(("backend", "loop", "relay", "options"), cases, ids=str)


EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)
AND_CUDA = pytest.mark.parametrize("backend", [*BACKENDS, "cuda"])
"""Where a test's ``backend`` is ``cuda``, torch sees a GPU that is not there (``fake_cuda.py``)."""


def hash_model(backend: str, eos_ids: frozenset[int]) -> Model:
    """The hash model in a backend's tensors, with the workloads' small vocabulary."""
    model: Model = load(*HASH[backend], "a test")(VOCAB, eos_ids=eos_ids)
    return model


def check_no_thread_left() -> None:
    """A closed device leaves no thread of its own behind."""
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "stream" in name or "mlx" in name]


def some_requests(max_new_tokens: int = 20) -> list[Request]:
    """Three requests, one of them sampled."""
    return [
        Request(f"r{i}", [i + 1, 2, 3], SamplingParams(i % 2 * 0.8, max_new_tokens=max_new_tokens))
        for i in range(3)
    ]


def named(trace: Trace, name: str) -> dict[int, Slice]:
    """The first slice of that name in each step (one that samples late is launched twice)."""
    return {item.step: item for item in reversed(trace.slices) if item.name == name}


def check_trace(trace: Trace) -> None:
    """Each op ran after its launch began, in the order of its step, and lanes never overlap."""
    forwards, samples, copies = (named(trace, name) for name in ("forward", "sample", "copy"))
    launches, processes = named(trace, "launch"), named(trace, "process")
    assert launches.keys() == forwards.keys() == samples.keys() == copies.keys() == processes.keys()
    for step in launches:
        assert launches[step].start <= forwards[step].start <= forwards[step].end
        assert forwards[step].end <= samples[step].start <= samples[step].end
        assert samples[step].end <= copies[step].start <= copies[step].end <= processes[step].start
    for lane in ("host", "forward", "copy"):
        assert all(a.end <= b.start for a, b in pairwise(trace.on(lane)))
