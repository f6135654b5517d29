"""Decode steps as graphs: the inputs are where the graph reads them, and tokens stay the same.

Either a graph is played: it calls the step again, with what lies at the captured addresses. Or it
is one of the GPU that is not there (``fake_cuda.py``), which keeps CUDA's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, SamplingParams
from minisched.devices.cuda import CudaDevice
from minisched.devices.thread import ThreadDevice
from minisched.engine.frontend import Frontend
from minisched.loops.run import Run, make_engine, run_loop
from minisched.models.base import ForwardBatch, make_forward_batch
from minisched.models.llama_graphs import LlamaGraphs, rounded, window_of
from minisched.models.llama_torch import BLOCK, LlamaTorch
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from tests.devices.fake_cuda import Gpu, fake_cuda
from tests.support import many

CONFIG = SchedulerConfig(
    kv_tokens=512, page_size=4, chunked_prefill_size=32, max_running_requests=4, context_len=128
)
LENGTHS = [3, 60, 9, 1, 20, 5]
"""Short and long ones, so that a batch grows and shrinks, and windows of two widths."""


class PlayedGraph:
    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        step()

        def replay() -> None:
            self.replayed += 1
            step()

        return replay


@pytest.fixture(scope="module")
def folder(kinds: dict[str, Path]) -> Path:
    return kinds["llama"]


def requests() -> list[Request]:
    made = []
    for at, length in enumerate(LENGTHS):
        wishes: Any = {"ignore_eos": True, "max_new_tokens": 4 + at + 9 // (at + 1)}
        params = SamplingParams(0.8 * (at % 2), top_p=0.9, **wishes)
        made.append(Request(f"r{at}", [(5 * at + n) % 500 for n in range(length)], params))
    return made


def played(model: Any, loop: str = "serial", **options: Any) -> Run:
    run = run_loop(loop, ThreadDevice(), model, requests(), replace(CONFIG, **options))
    assert not run.errors
    return run


@pytest.fixture(scope="module")
def truth(folder: Path) -> dict[str, list[int]]:
    return played(LlamaTorch(folder)).outputs


def with_graphs(folder: Path, capture: PlayedGraph) -> LlamaGraphs:
    model = LlamaGraphs(folder)
    model.capture = capture
    return model


# -- which graph a step takes ----------------------------------------------------------------------


@given(max_bs=st.integers(1, 70), length=st.integers(1, 100_000), data=st.data())
def test_a_step_takes_the_next_larger_graph(max_bs: int, length: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, max_bs))
    assert rows <= rounded(rows, max_bs) < 2 * rows and rounded(rows, max_bs) <= max_bs
    assert rounded(max_bs + rows, max_bs) > max_bs
    window = window_of(length)
    assert length <= window < max(2 * length, BLOCK + 1)
    assert (window // BLOCK).bit_count() == 1 and window % BLOCK == 0
    assert window_of(data.draw(st.integers(1, length))) <= window


def test_graphs_are_captured_before_traffic_largest_first(folder: Path) -> None:
    graphed, device = with_graphs(folder, PlayedGraph()), ThreadDevice()
    config = replace(CONFIG, max_running_requests=6, context_len=100)
    engine = make_engine("overlap", device, graphed, config, Frontend([]))
    device.close()
    assert graphed.runner is not None and engine.worker.page_table is graphed.runner.page_table
    shapes = list(graphed.runner.replays)
    assert shapes == sorted(shapes, reverse=True) and {rows for rows, _ in shapes} == {1, 2, 4, 6}
    assert max(window for _, window in shapes) == window_of(engine.scheduler.config.context_len)


# -- played ----------------------------------------------------------------------------------------


def decode_of(rows: list[int]) -> ForwardBatch:
    ones = [1] * len(rows)
    return ForwardBatch(
        1, ForwardMode.DECODE, tuple(f"r{row}" for row in rows), rows, ones, ones, ones, ones,
        sampling=[(SamplingParams(), 0, 1)] * len(rows), ids=[9 + row for row in rows],
        future_slots=[], table_index=[], table_slots=[],
    )  # fmt: skip


def test_padding_touches_nobodys_slot_alone_and_no_row_sees_it(folder: Path) -> None:
    device, model = ThreadDevice(), with_graphs(folder, PlayedGraph())
    model.allocate(device, num_slots=36, max_len=4)
    table = model.init_cuda_graphs(device, device.memory("page table", 17 * 4), max_bs=16)
    for row in range(1, 17):  # whose two positions are in slots of their own
        table[row * 4 : row * 4 + 2] = torch.tensor([2 * row, 2 * row + 1])
    before_that = []
    for rows in ([*range(1, 17)], [*range(1, 10)], [4], [2, 5, 3], [*range(1, 6)]):
        model.keys.normal_()[:, 0] = model.values.normal_()[:, 0] = float("nan")
        others = [1, *(slot for slot in range(2, 36) if slot // 2 not in rows)]
        before = model.keys[:, others].clone()
        batch = make_forward_batch(decode_of(rows), device.xp, model.pad_to)
        assert model.runner is not None and model.runner.find(batch) is not None
        with torch.inference_mode():
            found = model.forward(batch, batch.ids, table)
            expected = LlamaTorch.forward(model, batch, batch.ids, table)
        assert torch.equal(found, expected) and not found.isnan().any()
        assert torch.equal(model.keys[:, others], before)
        assert model.keys[:, 0].isnan().any() == (rounded(len(rows), 16) == len(rows))
        before_that.append((found, expected))
    assert all(torch.equal(*pair) for pair in before_that)  # no later step has written there
    device.close()


def test_more_rows_are_other_graphs_and_every_request_ends(folder: Path, truth: Any) -> None:
    capture, captured = PlayedGraph(), [0]
    graphed = with_graphs(folder, capture)
    for rows, loop in ((4, "overlap"), (8, "overlap"), (4, "mindie_plugin"), (4, "vllm_async")):
        assert played(graphed, loop, max_running_requests=rows).outputs == truth
        captured.append(capture.captured)
    few, more, again, kept = (b - a for a, b in pairwise(captured))
    assert few == again == 3 * more // 4 > 0 and kept == 0 < capture.replayed


# -- on a GPU that is not there --------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with fake_cuda(3) as gpu:
        yield gpu


def on_cuda(loop: str, model: Any, relay: str = "", **options: Any) -> Run:
    """A run on the GPU that leaves nothing to be said of memory let go too early."""
    device: Any = CudaDevice()
    config = replace(CONFIG, max_running_requests=2, **options)
    run = run_loop(loop, device, model, requests()[: many(3, 6)], config, relay=relay)
    assert device.lifetimes == []
    return run


@pytest.mark.usefixtures("gpu")
def test_a_llama_on_cuda_says_what_it_says_alone(folder: Path, truth: Any) -> None:
    model: Any = open_model(str(folder), "cuda", "float32")
    assert on_cuda("overlap", model, "ring").outputs.items() <= truth.items()
    assert {shape[0] for shape in model.runner.replays} == {1, 2}
    run = on_cuda("overlap_thread", model, "pool", cuda_graph_max_bs=0)
    assert run.outputs.items() <= truth.items()


def test_a_capture_comes_after_all_that_it_reads(
    gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    def run(self, *args: Any) -> torch.Tensor:
        logits = super().run(*args)
        if torch.cuda.is_current_stream_capturing():
            logits.cpu()
        return logits


@pytest.mark.usefixtures("gpu")
def test_a_capture_that_fails_is_said_once_and_no_step_fails(
    folder: Path, truth: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = Impatient(folder, "float32")
    for _ in range(2):
        run = on_cuda("overlap", model)
        assert run.outputs.items() <= truth.items()
        (mark,) = (mark for mark in run.trace.marks if mark.name == "no cuda graphs")
        assert "capturing" in str(mark.attrs["reason"])
    (said,) = caplog.messages  # neither the rest nor any of them is tried again
    assert said.startswith("decode steps run without CUDA graphs: ")
