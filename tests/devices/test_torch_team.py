"""A thread device's operations run on its streams' own threads, and nobody else keeps any."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from minisched.devices.thread import ThreadDevice  # noqa: E402

LARGE = 4096 * 64  # numbers: enough for torch to share them out


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("asked", "size"), [(None, 2), (1, 1), (2, 2), (4, 4)])
def test_a_stream_computes_with_as_many_threads_as_were_asked_for(
    asked: int | None, size: int
) -> None:
    device = ThreadDevice(torch_threads=asked)
    try:
        ops = [device.stream(name).launch(torch.get_num_threads, name="count") for name in "ab"]
        assert [op.synchronize() for op in ops] == [size, size]
        assert torch.get_num_threads() == 1  # the host's
    finally:
        device.close()
    assert torch.get_num_threads() == 3


# In a process of its own: in this one, other tests' threads come and go.
COUNTS = f"""
import os, time, torch
from minisched.devices.thread import ThreadDevice

def compute():
    return torch.ones({LARGE}).exp().sum()

def others():
    "Once the count has held for a while: a thread that ends is seen a little longer."
    counts = [0]
    while len(counts) < 20 or len(set(counts[-20:])) > 1:
        counts.append(len(os.listdir("/proc/self/task")) - before)
        time.sleep(0.01)
    return counts[-1]

torch.set_num_threads(3)
before = len(os.listdir("/proc/self/task"))
compute()
print(others())
device = ThreadDevice()
print(others())
device.stream("forward").launch(compute, name="compute").synchronize()
compute()
print(others())
device.close()
print(others())
"""


@pytest.mark.thorough  # it imports torch once more
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted on Linux")
def test_the_host_keeps_no_threads_that_wait_for_work() -> None:
    """OpenMP's: two of the host's at first; then a stream's thread, and the one that helps it."""
    run = [sys.executable, "-c", COUNTS]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    assert done.stdout.split() == ["2", "0", "2", "0"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a timer be late")
def test_a_stream_wakes_on_time_and_the_host_as_ever() -> None:
    get_timerslack = 30  # of prctl; nanoseconds
    slack = partial(ctypes.CDLL(None).prctl, get_timerslack, 0, 0, 0, 0)
    before = slack()
    device = ThreadDevice()
    try:
        assert device.stream("forward").launch(slack, name="slack").synchronize() == 1 < before
        assert slack() == before
    finally:
        device.close()
