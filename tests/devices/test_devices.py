"""What every device keeps to: order on a stream, waits, late memory, errors, and a clean close."""

from __future__ import annotations

import ctypes
import gc
import io
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cost import Pace
from minisched.devices.cuda import CudaDevice
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.devices.thread import SWITCH_INTERVAL, ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.mlx_lm import MlxLm
from minisched.scheduler import Scheduler
from tests.support import (
    SOME_LOOP_OPTIONS,
    check_no_thread_left,
    hash_model,
    open_device,
    runs_on,
    some_requests,
)

ALL = ("sim", "thread", "mlx", "cuda")
EVERY_DEVICE = pytest.mark.parametrize("backend", ALL)  # on "cuda" conftest.py puts a GPU there
IN_REAL_TIME = pytest.mark.parametrize("backend", ALL[1:])


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    gc.enable()
    check_no_thread_left()
    assert sys.getswitchinterval() > SWITCH_INTERVAL and torch.get_num_threads() == before


def test_nothing_is_left_to_happen_when_all_is_over_however_often_an_end_was_moved() -> None:
    device = SimDevice()
    device.keep_pace(Pace(host_lost=500, device_lost=500))
    op = device.stream("forward").launch(lambda: 1, name="forward", cost=1000)
    for _ in range(3):
        with device.host("process", cost=200):
            pass
    op.synchronize()
    assert device.next_event is None and device.now() == 1600


# -- order, waits, memory --------------------------------------------------------------------------

Step = tuple[int, int, int]  # which stream, the cell it writes, and the one that it adds to it
steps = st.lists(st.tuples(*(st.integers(0, n) for n in (2, 4, 4))), min_size=1, max_size=14)


def run_program(device: Any, program: list[Step], has_waits: bool = True) -> list[list[int]]:
    """What each step gives, and what lies in memory in the end."""
    memory = device.memory("numbers", 5)
    memory[:] = device.xp.asarray([2, 3, 5, 7, 11])
    streams = [device.stream(name) for name in ("forward", "copy", "third")]
    last: dict[int, Any] = {}  # by cell, the op that touched it last; it waited for those before
    ops = []

    def add(cell: int, other: int) -> Any:
        memory[cell : cell + 1] = memory[cell : cell + 1] + memory[other : other + 1]
        return memory[cell : cell + 1] + 0 if device.name != "sim" else memory[cell : cell + 1]

    for at, cell, other in program:
        if has_waits:
            for touched in {cell, other} & last.keys():
                streams[at].wait(last[touched])
        op = streams[at].launch(add, cell, other, name="add", cost=10 * (1 + cell))
        last[cell] = last[other] = op
        ops.append(op)
    device.flush(*ops)
    values = [op.synchronize().tolist() for op in ops]
    landing = device.host_memory("landing", 6)
    for op in ops:
        streams[1].wait(op)
    copied = streams[1].launch(device.copy_to_host, landing, memory, 5, name="copy", cost=1)
    device.flush(copied)
    values.append(copied.synchronize().tolist())
    if device.name != "mlx":  # whose host and GPU have one memory
        assert landing[:5].tolist() == values[-1] and landing[5:].tolist() == [WRONG_TOKEN]
    device.close()
    return values


def in_order(program: list[Step]) -> list[list[int]]:
    memory, values = [2, 3, 5, 7, 11], []
    for _, cell, other in program:
        memory[cell] += memory[other]
        values.append([memory[cell]])
    return [*values, memory]


@EVERY_DEVICE
@given(program=steps)
def test_a_program_with_its_waits_is_as_if_run_in_order(backend: str, program: list[Step]) -> None:
    assert run_program(open_device(backend), program) == in_order(program)


@pytest.mark.parametrize("backend", ["sim", "cuda"])
def test_a_missing_wait_shows(backend: str) -> None:
    program = [(0, 4, 3), (1, 0, 4), (2, 4, 0), (0, 1, 4)] * 3
    assert run_program(open_device(backend), program, has_waits=False) != in_order(program)


# -- errors ----------------------------------------------------------------------------------------


@EVERY_DEVICE
def test_an_error_is_passed_on_and_the_device_goes_on(backend: str) -> None:
    device: Any = open_device(backend)
    stream, other = device.stream("forward"), device.stream("copy")

    def fail() -> None:
        raise RuntimeError("no such luck")

    failed = stream.launch(fail, name="fails")
    heir = stream.launch(lambda value: value + 1, failed, name="builds on it")
    sound = stream.launch(lambda: device.xp.asarray([0, 2, 4]), name="sound")
    other.wait(sound)
    landing = device.host_memory("landing", 5)
    copied = other.launch(device.copy_to_host, landing, sound, 2, name="copy")
    device.flush(copied)
    for op in (failed, heir):
        with pytest.raises(RuntimeError, match="no such luck"):
            op.synchronize()
    assert copied.synchronize().tolist() == [0, 2]
    assert copied.query() and failed.query()
    device.close()
    device.close()


def run_out(kept: list[weakref.ref[set[int]]]) -> None:
    first = set[int]()
    kept.append(weakref.ref(first))
    try:
        raise KeyError("a first reason")
    except KeyError:
        second = set[int]()
        kept.append(weakref.ref(second))
        raise MemoryError("no room") from None


@IN_REAL_TIME
def test_an_op_that_fails_keeps_nothing_of_what_it_was_working_on(backend: str) -> None:
    gc.collect()
    gc.disable()
    device, kept = open_device(backend), list[weakref.ref[set[int]]]()
    op = device.stream("forward").launch(run_out, kept, name="fails")
    with pytest.raises(MemoryError, match="no room") as caught:
        op.synchronize()
    assert [ref() for ref in kept] == [None, None]
    assert "in run_out" in "".join(traceback.format_exception(caught.value))  # it is still said
    device.close()


@pytest.mark.parametrize(
    ("backend", "loop", "place", "error"),
    [("thread", "overlap", "process", KeyboardInterrupt), ("cuda", "overlap", "process", KeyError),
     ("thread", "overlap_thread", "next_batch", KeyError),
     ("mlx", "mlx_async", "process", KeyError)],
)  # fmt: skip
def test_an_error_of_the_loop_leaves_no_thread(
    backend: str, loop: str, place: str, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(*given: object) -> None:
        raise error("no such step")

    monkeypatch.setattr(Scheduler, place, burst)
    with pytest.raises(error, match="no such step"):  # the fixture looks for threads
        run_loop(loop, open_device(backend), hash_model(backend, frozenset()), some_requests(3))


# -- close -----------------------------------------------------------------------------------------


def test_closing_drops_what_is_queued_even_behind_a_wait() -> None:
    device = ThreadDevice()
    forward, copy = device.stream("forward"), device.stream("copy")
    started, go = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        go.wait()
        return 7

    running = forward.launch(slow, name="running")
    queued = forward.launch(lambda: 8, name="queued")
    copy.wait(queued)
    behind = copy.launch(lambda: 9, name="behind")
    started.wait()

    def let_go() -> None:
        while not device.is_closed:
            pass
        go.set()

    other = threading.Thread(target=let_go)
    other.start()
    device.close()
    other.join()
    assert running.synchronize() == 7
    for op in (queued, behind):
        with pytest.raises(RuntimeError, match=f"{op.name} was dropped: the device was closed"):
            op.synchronize()
    with pytest.raises(RuntimeError, match="late can't be launched: the device is closed"):
        forward.launch(lambda: 0, name="late")


@pytest.mark.parametrize("backend", ["sim", "thread"])
def test_a_chain_of_steps_does_not_hold_on_to_its_past(backend: str) -> None:
    device = open_device(backend)
    stream = device.stream("forward")
    op = stream.launch(lambda: device.xp.asarray([0]), name="first")
    first = weakref.ref(op)
    for _ in range(3):
        op = stream.launch(lambda value: value + value, op, name="next")
    assert op.synchronize().tolist() == [0]
    stream.launch(lambda: 0, name="the thread forgets its last op").synchronize()
    assert first() is None
    device.close()


def test_no_graph_outlives_its_step(tiny_llama: Any) -> None:
    model = MlxLm.from_directory(tiny_llama)

    def operations_behind(array: mx.array) -> int:
        dot = io.StringIO()
        mx.export_to_dot(dot, array)
        return dot.getvalue().count("shape=rectangle")

    for loop, relay, options in SOME_LOOP_OPTIONS:
        if runs_on(loop, "mlx"):
            device = MlxDevice()
            run_loop(loop, device, model, some_requests(20), relay=relay, **options)
            state = [*device.arrays, *(pool for cache in model.caches for pool in cache.pools)]
            assert [operations_behind(array) for array in state] == [0] * len(state)
    assert operations_behind(state[0] + 1) > 0  # the count can see one


def test_without_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^torch sees no GPU, which device 'cuda' needs; .*\.$"):
        CudaDevice()


# -- threads: who computes -------------------------------------------------------------------------


@pytest.fixture
def thread_device() -> Iterator[ThreadDevice]:
    device = ThreadDevice()
    yield device
    device.close()


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
def test_a_stream_wakes_on_time_and_the_host_as_ever(thread_device: ThreadDevice) -> None:
    get_timerslack = 30  # of prctl; nanoseconds
    slack = partial(ctypes.CDLL(None).prctl, get_timerslack, 0, 0, 0, 0)
    before = slack()
    assert thread_device.stream("forward").launch(slack, name="slack").synchronize() == 1 < before
    assert slack() == before


# -- threads: what goes wrong beside an op is its error --------------------------------------------


def test_an_op_that_can_not_be_recorded_has_failed_and_its_thread_goes_on(
    thread_device: ThreadDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*args: Any) -> None:
        raise MemoryError("none is left for the trace")

    monkeypatch.setattr(thread_device.recorder, "ended", record)
    for lane in 2 * (thread_device.stream("stream"), thread_device.thread("thread")):
        call = lane.launch(lambda: 1, name="its last")
        with pytest.raises(MemoryError, match="none is left for the trace"):
            call.synchronize()
