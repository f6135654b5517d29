"""CUDA, on a GPU that is not there: it keeps CUDA's rules, so what breaks them is seen.

Where there is a GPU, the last section runs on it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minisched.checks.draw import Variant, draw
from minisched.checks.judge import judge
from minisched.core import Request, SamplingParams
from minisched.devices import thread as torch_arrays
from minisched.devices.cuda import CudaDevice, CudaStream
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.hash_arrays import HashArrays
from minisched.models.llama_graphs import LlamaGraphs
from minisched.models.llama_torch import LlamaTorch
from minisched.record_torch import PATIENCE, ZERO_LASTS, GpuClock
from minisched.scheduler import SchedulerConfig
from minisched.worker.worker import Worker
from tests.devices.fake_cuda import Gpu, fake_cuda
from tests.support import LOOP_OPTIONS, check_trace, runs_on, some_requests

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with fake_cuda() as gpu:
        yield gpu


def ints(*values: int) -> torch.Tensor:
    made = torch.tensor(values).to(CUDA)
    torch.cuda.synchronize()
    return made


# -- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [
    lambda it: it.tolist(), lambda it: it[it > 0], lambda it: bool(it), lambda it: it.nonzero(),
    lambda it: it.copy_(torch.tensor([1])),
])  # fmt: skip
def test_a_launch_that_waits_can_be_refused_and_ends_a_capture(gpu: Gpu, waits: Any) -> None:
    memory, graph = ints(1), torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match=r"previous error during capture|capturing"),
        torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),
    ):
        waits(memory)
    assert gpu.captures == [] and not torch.cuda.is_current_stream_capturing()
    waits(memory)
    torch.cuda.set_sync_debug_mode("error")
    memory.add_(1)
    with pytest.raises(RuntimeError, match="synchronizing"):
        waits(memory)


@pytest.mark.parametrize(("wait", "findings"), [("", 1), ("host", 0), ("same", 0), ("owner", 0)])
def test_memory_that_is_let_go_under_a_kernel_is_found_and_filled(
    gpu: Gpu, wait: str, findings: int
) -> None:
    owner, memory = torch.cuda.current_stream(), ints(3)
    side = owner if wait == "same" else torch.cuda.Stream()
    with torch.cuda.stream(side):
        copy = memory + 0
    if wait == "host":
        side.synchronize()
    elif wait == "owner":
        owner.wait_stream(side)
    del memory
    with torch.cuda.stream(side):
        assert copy.tolist() == ([1] if findings else [3])
    assert len(gpu.findings) == findings
    assert all("was let go before aten.add" in item.sentence for item in gpu.findings)


# -- what the path on CUDA promises ----------------------------------------------------------------

CONFIG = SchedulerConfig(kv_tokens=256, page_size=4, chunked_prefill_size=32, context_len=64)


@pytest.mark.parametrize(
    ("relay", "is_llama"),
    [
        ("pool", False),
        ("ring", True),
        ("token_pool", False),
        pytest.param("prev_sampled", False, marks=pytest.mark.thorough),
        pytest.param("request_state", False, marks=pytest.mark.thorough),
    ],
)
def test_no_launch_waits_for_the_gpu(
    relay: str, is_llama: bool, gpu: Gpu, kinds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    def launch(stream: CudaStream, fn: Any, *args: Any, **options: Any) -> Any:
        launched.append(options["name"])
        torch.cuda.set_sync_debug_mode("error")
        try:
            return inner(stream, fn, *args, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    inner = CudaStream.launch
    monkeypatch.setattr(CudaStream, "launch", launch)
    llama = kinds["llama"]
    model: Any = LlamaGraphs(llama, "float32") if is_llama else HashArrays(eos_ids=frozenset())
    device: Any = CudaDevice()
    loop = "overlap" if relay != "token_pool" else "mini_overlap"
    wishes = dict(top_k=7, seed=5, ignore_eos=True, max_new_tokens=12)
    requests = [Request(f"r{i}", [i + 1, 2, 3], SamplingParams(0.8 * i, **wishes)) for i in (0, 1)]
    run = run_loop(loop, device, model, requests, CONFIG, relay=relay)
    assert not run.errors and device.lifetimes == []
    assert launched.count("forward") == launched.count("sample") >= 12


@pytest.mark.parametrize(("loop", "relay"), [("serial", ""), ("overlap", "ring")])
def test_a_step_of_decodes_is_one_copy_to_the_gpu(
    loop: str, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped: list[int] = []  # by which thread: a step that runs meanwhile ships for its sampling
    ship, prepare = torch_arrays.ship, Worker.prepare
    monkeypatch.setattr(
        torch_arrays, "ship", lambda *args: shipped.append(threading.get_ident()) or ship(*args)
    )

    def count(worker: Worker, *args: Any) -> None:
        before = shipped.count(threading.get_ident())
        prepare(worker, *args)
        assert shipped.count(threading.get_ident()) - before == 1

    monkeypatch.setattr(Worker, "prepare", count)
    run_loop(loop, ThreadDevice(), HashArrays(), some_requests(), CONFIG, relay=relay)
    assert len(shipped) > 10


def test_devices_of_a_process_share_their_streams(gpu: Gpu) -> None:
    counts = set()
    for _ in range(3):
        devices = [CudaDevice() for _ in range(2)]
        streams = {id(device.stream(n).stream) for device in devices for n in ("forward", "copy")}
        assert len(streams) == 4
        for device in (*devices, *devices):
            device.close()
        counts.add(len(gpu.streams))
    assert len(counts) == 1


# -- events on the host's clock --------------------------------------------------------------------

MICROSECOND, SECOND = 1_000, 1_000_000_000


class Machine:
    """A host and a GPU whose clocks drift; ``latency`` is how long an event takes to get there."""

    def __init__(self, drift: float) -> None:
        self.time, self.drift, self.random = 0, drift, random.Random(0)
        self.latency, self.synchronized = 5 * MICROSECOND, 0

    def now(self) -> int:
        self.time += self.random.randrange(50, 500)
        return self.time


class Event:
    machine: Machine

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.at = self.machine.time + self.machine.random.randrange(1, 2 + self.machine.latency)

    def query(self) -> bool:
        return self.machine.now() >= self.at

    def synchronize(self) -> None:
        self.machine.synchronized += 1
        self.machine.time = max(self.machine.time, self.at) + 8 * MICROSECOND

    def elapsed_time(self, end: Event) -> float:
        between = (end.at - self.at) * (1 + self.machine.drift) / 1e6
        assert between >= 0, "CUDA is asked how long before the zero an event was"
        return float(np.float32(between))


@pytest.mark.parametrize("drift", [3e-5, -3e-5])
def test_an_event_is_where_it_was_after_an_hour_as_after_a_second(
    drift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(drift)
    monkeypatch.setattr(Event, "machine", machine, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock: Any = GpuClock(machine.now, torch.cuda.Stream)  # type: ignore[arg-type]
    at_first, asked = clock.zero, machine.synchronized
    close = 20 * MICROSECOND + abs(drift) * 2 * ZERO_LASTS
    while machine.time < 3600 * SECOND:
        zero, event = clock.zero, Event(enable_timing=True)
        event.record(None)
        machine.time += SECOND
        clock.renew()
        assert abs(clock.time(zero, event) - event.at) < close
    assert abs(clock.time(at_first, event) - event.at) > 1000 * MICROSECOND
    assert machine.synchronized == asked  # only as the device was opened
    machine.latency, zero = 20 * PATIENCE, clock.zero  # the GPU is slow to reach the next one
    machine.time += 2 * ZERO_LASTS
    before = machine.time
    clock.renew()
    assert clock.zero is zero and machine.time < before + 2 * PATIENCE
    machine.time += 20 * PATIENCE
    clock.renew()
    assert clock.zero is not zero and abs(clock.zero.at - clock.zero.event.at) < close


# -- a real GPU ------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize(
    ("loop", "relay", "options"), [it for it in LOOP_OPTIONS if runs_on(it[0], "cuda")], ids=str
)
def test_every_law_holds_on_a_gpu(
    loop: str, relay: str, options: dict[str, Any], tiny_llama: Path
) -> None:
    for seed in range(20, 23):  # test_gpu.py draws the first ones
        assert judge(draw(seed).on(Variant(loop, relay, options), "cuda")).findings == ()
    model = LlamaTorch(tiny_llama, "float64")
    run = run_loop(loop, CudaDevice(), model, some_requests(), relay=relay, **options)
    check_trace(run.trace)
    assert run.outputs == run_loop("serial", ThreadDevice(), model, some_requests()).outputs
