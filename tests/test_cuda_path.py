"""The CUDA path on a GPU that is not there: one model, in graphs, and nobody waits for it."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minisched.core import Request, SamplingParams
from minisched.devices import cuda, torch_arrays
from minisched.devices.cuda import CudaDevice, CudaStream
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import Run, run_loop
from minisched.models.hash_torch import HashTorch
from minisched.models.llama_graphs import GraphPool, LlamaGraphs
from minisched.models.llama_torch import LlamaTorch
from minisched.models.llama_torch_layers import llama_step
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from minisched.worker.worker import Worker
from tests.devices.fake_cuda import Gpu, fake_cuda
from tests.support import check_trace
from tests.test_torch import RunsOut, run_out

CONFIG = SchedulerConfig(
    kv_tokens=512, page_size=4, chunked_prefill_size=32, max_running_requests=4, context_len=128
)
WISHES = (
    SamplingParams(ignore_eos=True, max_new_tokens=6),
    SamplingParams(0.8, top_p=0.9, ignore_eos=True, max_new_tokens=7),
    SamplingParams(1.1, top_k=7, seed=5, ignore_eos=True, max_new_tokens=4),
    SamplingParams(0.9, seed=2, ignore_eos=True, max_new_tokens=8),
)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with fake_cuda(3) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def folder(kinds: dict[str, Path]) -> Path:
    return kinds["qwen3 biases"]


@pytest.fixture(scope="module")
def truth(folder: Path) -> dict[str, list[int]]:
    model = LlamaTorch(folder, "float32")
    return run_loop("serial", ThreadDevice(), model, requests(), CONFIG).outputs


def requests() -> list[Request]:
    """Short and long ones, so that a batch grows and shrinks, and windows of two widths."""
    return [
        Request(f"r{at}", [(5 * at + n) % 500 for n in range(length)], WISHES[at % 4])
        for at, length in enumerate([3, 60, 9, 1, 20, 5])
    ]


def on_cuda(loop: str, model: Any, config: SchedulerConfig = CONFIG, relay: str = "") -> Run:
    """A run on the GPU that leaves nothing to be said of memory let go too early."""
    device: Any = CudaDevice()
    run = run_loop(loop, device, model, requests(), config, relay=relay)
    assert device.lifetimes == []
    return run


@pytest.mark.parametrize(
    ("loop", "relay"),
    [("serial", ""), ("overlap", "ring"), ("overlap_thread", "pool"), ("mini_overlap", "")],
)
def test_a_llama_on_cuda_says_what_it_says_alone(
    loop: str, relay: str, gpu: Gpu, folder: Path, truth: dict[str, list[int]]
) -> None:
    """With graphs, and without, and with others for more rows; as its user gets it."""
    model: Any = open_model(str(folder), "cuda", "float32")
    for rows in (4, 6):
        config = replace(CONFIG, max_running_requests=rows)
        assert on_cuda(loop, model, config, relay).outputs == truth
        assert {shape[0] for shape in model.runner.replays} == {1, 2, 4, rows}
    assert on_cuda(loop, model, replace(CONFIG, cuda_graph_max_bs=0), relay).outputs == truth
    assert model.step is llama_step


@pytest.mark.parametrize("relay", ["pool", "ring", "token_pool", "prev_sampled"])
def test_no_launch_waits_for_the_gpu(
    relay: str, gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch
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
    for model in (LlamaGraphs(folder, "float32"), HashTorch()):
        run = on_cuda("overlap" if relay != "token_pool" else "mini_overlap", model, relay=relay)
        assert not run.errors
    assert launched.count("forward") == launched.count("sample") > 20


@pytest.mark.parametrize(
    ("loop", "relay"), [("serial", ""), ("overlap", "pool"), ("overlap", "ring")]
)
def test_a_step_of_decodes_is_one_copy_to_the_gpu(
    loop: str, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, copies = 0, []

    def ship(*args: Any) -> torch.Tensor:
        nonlocal shipped
        shipped += 1
        return inner_ship(*args)

    def prepare(worker: Worker, batch: Any, *args: Any) -> Any:
        before = shipped
        inputs = inner_prepare(worker, batch, *args)
        copies.append(shipped - before)
        return inputs

    inner_ship, inner_prepare = torch_arrays.ship, Worker.prepare
    monkeypatch.setattr(torch_arrays, "ship", ship)
    monkeypatch.setattr(Worker, "prepare", prepare)
    run_loop(loop, ThreadDevice(), HashTorch(), requests(), CONFIG, relay=relay)
    assert len(copies) > 10 and set(copies) == {1}


# -- captures ----------------------------------------------------------------------------------


def test_other_threads_do_not_end_a_capture(gpu: Gpu) -> None:
    """The scheduler's thread asks for events and takes pinned memory, whatever this one does."""
    numbers = torch.zeros(4, dtype=torch.int64, device="cuda")
    event = torch.cuda.Event()

    def beside() -> None:
        with torch.cuda.device(0):
            event.query()
            torch_arrays.ship([1, 2], torch.device("cuda", 0))

    def step() -> None:
        numbers.add_(1)
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()

    replay = GraphPool()(step)
    torch.cuda.synchronize()
    assert numbers.tolist() == [1] * 4  # once as it is; what is captured does not run
    replay()
    assert numbers.tolist() == [2] * 4


def test_a_capture_comes_after_all_that_it_reads(
    gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are filled on the default stream: before that they are any numbers, and no tokens."""
    behind = []

    def run(model: LlamaGraphs, *args: Any) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            default = gpu.streams[0]
            behind.append(gpu.current.behind.get(default.number, 0) == default.count)
        return inner(model, *args)

    inner = LlamaGraphs.run
    monkeypatch.setattr(LlamaGraphs, "run", run)
    model, device = LlamaGraphs(folder, "float32"), CudaDevice()
    model.allocate(device, 64, 64)
    model.init_cuda_graphs(device, device.memory("page table", 3 * 64), 2)
    device.close()
    assert behind == [True] * 2


class Impatient(LlamaGraphs):
    """Wants to see its logits while they are captured."""

    def run(self, *args: Any) -> torch.Tensor:
        logits = super().run(*args)
        if torch.cuda.is_current_stream_capturing():
            logits.cpu()
        return logits


def test_after_a_capture_that_cuda_refuses_steps_run_all_the_same(
    gpu: Gpu, folder: Path, truth: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    model = Impatient(folder, "float32")
    for _ in range(2):
        run = on_cuda("overlap", model)
        assert run.outputs == truth
        (mark,) = (mark for mark in run.trace.marks if mark.name == "no cuda graphs")
        assert "capturing" in str(mark.attrs["reason"])
    assert len(caplog.messages) == 1


# -- memory ------------------------------------------------------------------------------------


def test_a_failed_op_keeps_nothing_of_what_it_was_working_on(gpu: Gpu) -> None:
    device, kept = CudaDevice(), list[weakref.ref[torch.Tensor]]()
    op = device.stream("forward").launch(run_out, kept, name="fails")
    assert [ref() for ref in kept] == [None, None]
    with pytest.raises(MemoryError, match="no room") as caught:
        op.synchronize()
    assert "in run_out" in "".join(traceback.format_exception(caught.value))
    device.close()


def test_the_activations_of_a_step_that_failed_go_with_it(gpu: Gpu) -> None:
    model = RunsOut()
    assert any("out of device memory" in said for said in on_cuda("overlap", model).errors.values())
    assert len(model.kept) == 2 and not [ref for ref in model.kept if ref() is not None]


def test_a_run_takes_a_new_zero_now_and_then(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its slices are in order all the same."""
    monkeypatch.setattr(cuda, "ZERO_LASTS", 2_000_000)
    device: Any = CudaDevice()
    first = device.gpu_clock.zero
    run = run_loop("overlap", device, HashTorch(eos_ids=frozenset()), requests(), CONFIG)
    assert device.gpu_clock.zero.at > first.at and device.gpu_clock.zero.event is not first.event
    check_trace(run.trace)


def test_devices_of_a_process_share_their_streams(gpu: Gpu) -> None:
    def streams(device: CudaDevice) -> list[object]:
        return [device.stream(name).stream for name in ("forward", "copy")]

    devices = CudaDevice(), CudaDevice()
    both = {id(stream) for device in devices for stream in streams(device)}
    assert len(both) == 4  # those that are open together have their own
    for device in devices:
        device.close()
    count = len(gpu.streams)
    for _ in range(3):
        device = CudaDevice()
        streams(device)
        device.close()
        device.close()
    assert len(gpu.streams) == count
