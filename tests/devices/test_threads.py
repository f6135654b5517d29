"""A thread device's operations run on its streams' own threads, which wake on time; and whoever
waits for a thread that is dead hears so."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from minisched.checks.faults.in_thread import Poison  # noqa: E402
from minisched.devices.thread import ThreadDevice  # noqa: E402
from tests.support import check_no_thread_left  # noqa: E402

FAR = 300  # seconds; only ends a hang


@pytest.fixture
def device() -> Iterator[ThreadDevice]:
    device = ThreadDevice()
    yield device
    device.close()
    check_no_thread_left()


# -- who computes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "size"), [(None, 2), (1, 1), (4, 4)])
def test_a_stream_computes_with_as_many_threads_as_were_asked_for(
    asked: int | None, size: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    device = ThreadDevice(torch_threads=asked)
    try:
        ops = [device.stream(name).launch(torch.get_num_threads, name="count") for name in "ab"]
        assert [op.synchronize() for op in ops] == [size, size]
        assert torch.get_num_threads() == 1  # the host's
    finally:
        device.close()
        after = torch.get_num_threads()
        torch.set_num_threads(before)
    assert after == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a timer be late")
def test_a_stream_wakes_on_time_and_the_host_as_ever(device: ThreadDevice) -> None:
    get_timerslack = 30  # of prctl; nanoseconds
    slack = partial(ctypes.CDLL(None).prctl, get_timerslack, 0, 0, 0, 0)
    before = slack()
    assert device.stream("forward").launch(slack, name="slack").synchronize() == 1 < before
    assert slack() == before


# -- who has died ----------------------------------------------------------------------------------


def ends(waited: Any) -> bool:
    """Whether a call ends, or a signal is said: nothing here may wait for ever."""
    return bool(waited.done.wait(FAR))


def test_what_waits_for_a_dead_thread_hears_that_it_is_dead(device: ThreadDevice) -> None:
    """Calls that were queued before its death, behind it, and after; and signals that it owed."""
    thread, go, owed = device.thread("a thread"), device.signal("go"), device.signal("owed")
    first = thread.launch(lambda: 1, name="first")
    thread.wait(go)
    thread.queue.put(Poison())  # type: ignore[arg-type]
    behind = thread.launch(lambda: 2, name="behind")
    go.set()
    assert ends(first) and first.synchronize() == 1
    assert ends(behind), "nobody runs it, and nobody says so"
    later = thread.launch(lambda: 3, name="later")
    assert ends(later), "it was queued for a thread that is dead"
    assert ends(owed), "the thread was to say it"
    for lost in (behind, later):
        with pytest.raises(RuntimeError, match="the thread 'a thread' has died: it was killed"):
            lost.synchronize()
    thread.thread.join(FAR)
    assert not thread.thread.is_alive()


def test_a_call_in_which_its_thread_dies_hears_of_that(
    device: ThreadDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*args: Any) -> None:
        raise MemoryError("none is left for the trace")

    monkeypatch.setattr(device, "record", record)
    for lane in (device.stream("stream"), device.thread("thread")):
        call = lane.launch(lambda: 1, name="its last")
        assert ends(call), "nobody says that it is over"
        with pytest.raises(MemoryError, match="none is left for the trace"):
            call.synchronize()
