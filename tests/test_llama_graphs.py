"""Decode steps as graphs: the inputs are where the graph reads them, and tokens stay the same.

Without a GPU a graph is played: it calls the step again, with what lies at the captured addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.bench.arm import running
from minisched.bench.case import Case
from minisched.core import ForwardMode, ModelWorkerBatch, Request, SamplingParams
from minisched.devices.thread import ThreadDevice
from minisched.engine.frontend import Frontend
from minisched.loops.run import make_engine, run_loop
from minisched.models.forward_batch import make_forward_batch
from minisched.models.llama_graphs import LlamaGraphs, rounded, sizes, window_of, windows
from minisched.models.llama_torch import LlamaTorch
from minisched.models.llama_torch_attention import BLOCK
from minisched.models.llama_torch_layers import llama_step
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig

CONFIG = SchedulerConfig(kv_tokens=2048, page_size=4, chunked_prefill_size=32)


class PlayedGraph:
    """Stands for CUDA's capture; counts what was captured and what was replayed."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        step()

        def replay() -> None:
            self.replayed += 1
            step()

        return replay


@pytest.fixture(scope="module", params=["llama", "biases", "qwen3 biases"])
def folder(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> Path:
    return kinds[request.param]


def requests(lengths: list[int], new_tokens: int) -> list[Request]:
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [
        Request(f"r{number}", [7 * number + place % 50 + 1 for place in range(length)], params)
        for number, length in enumerate(lengths)
    ]


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    loop=st.sampled_from(["serial", "overlap", "vllm_batch_queue", "mindie_plugin"]),
)
@settings(max_examples=6, deadline=None)
def test_graphs_give_the_same_tokens(folder: Path, lengths: list[int], loop: str) -> None:
    played = PlayedGraph()
    graphed = LlamaGraphs(folder, capture=played)
    for _ in range(2):  # the second run finds the graphs of the first
        alone = run_loop(
            "serial", ThreadDevice(), LlamaTorch(folder), requests(lengths, 24), CONFIG
        )
        run = run_loop(loop, ThreadDevice(), graphed, requests(lengths, 24), CONFIG)
        assert run.outputs == alone.outputs
    assert graphed.runner and played.captured == len(graphed.runner.replays) < played.replayed


def test_other_memory_is_another_graph(folder: Path) -> None:
    graphed = LlamaGraphs(folder, capture=PlayedGraph())
    run_loop("serial", ThreadDevice(), graphed, requests([3], 8), CONFIG)
    assert graphed.runner
    device = ThreadDevice()
    graphed.allocate(device, 64, 128)
    device.close()
    assert graphed.runner is None


def test_copies_have_memory_and_graphs_of_their_own(folder: Path) -> None:
    """Two loops that take turns, each on a copy of one model that has graphs already."""
    graphed: Any = LlamaGraphs(folder, capture=PlayedGraph())
    short, long = (
        Case("thread", graphed, requests(lengths, 16), CONFIG) for lengths in ([3, 9], [20, 30])
    )
    alone = [
        run_loop("serial", ThreadDevice(), graphed, requests(lengths, 16), CONFIG).outputs
        for lengths in ([3, 9], [20, 30])
    ]
    assert graphed.runner
    with running(short, "serial") as one, running(long, "overlap") as other:
        for _ in range(3):
            one.go_on(2)
            other.go_on(2)
        assert [one.finish().outputs, other.finish().outputs] == alone


@given(st.integers(1, 100_000))
def test_a_window_holds_the_row_and_is_a_power_of_two_blocks(length: int) -> None:
    window = window_of(length)
    assert length <= window < max(2 * length, BLOCK + 1)
    assert (window // BLOCK).bit_count() == 1 and window % BLOCK == 0


def tokens_of(folder: Path, lengths: list[int]) -> dict[str, list[int]]:
    """What eight tokens each are, of a model without graphs."""
    wanted = requests(lengths, 8)
    return run_loop("serial", ThreadDevice(), LlamaTorch(folder), wanted, CONFIG).outputs


def decode_of(rows: list[int]) -> ModelWorkerBatch:
    """A step in which each row computes its second position."""
    count = len(rows)
    return ModelWorkerBatch(
        step=1, forward_mode=ForwardMode.DECODE, rids=tuple(f"r{row}" for row in rows),
        input_ids=[9 + row for row in rows], dests=[], req_pool_indices=rows,
        extend_prefix_lens=[1] * count, extend_seq_lens=[1] * count, sample_lens=[1] * count,
        sampling_info=[(SamplingParams(), 0, 1)] * count, start_unknown=[False] * count,
        table_index=[], table_slots=[],
    )  # fmt: skip


def test_padding_touches_nobodys_slot_alone_and_no_row_sees_it(folder: Path) -> None:
    """Rows go down and up; what lies in slot 0 before each step is not numbers."""
    device, model = ThreadDevice(), LlamaGraphs(folder, capture=PlayedGraph())
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
            truth = LlamaTorch.forward(model, batch, batch.ids, table)
        assert torch.equal(found, truth) and not found.isnan().any()
        assert torch.equal(model.keys[:, others], before)
        assert model.keys[:, 0].isnan().any() == (rounded(len(rows), 16) == len(rows))
        before_that.append((found, truth))
    assert all(torch.equal(*pair) for pair in before_that)  # no later step has written there
    device.close()


def test_more_rows_are_other_graphs_and_every_request_ends(folder: Path) -> None:
    """Their page table is larger, in the same KV memory (once every step failed there)."""
    played = PlayedGraph()
    graphed, captured = LlamaGraphs(folder, capture=played), [0]
    for rows in (4, 8, 4, 4):
        config = replace(CONFIG, max_running_requests=rows)
        run = run_loop("overlap", ThreadDevice(), graphed, requests([3, 9, 20, 5], 8), config)
        assert run.outputs == tokens_of(folder, [3, 9, 20, 5]) and not run.errors
        captured.append(played.captured)
    few, many, again, kept = (b - a for a, b in pairwise(captured))
    assert few == again == 3 * many // 4 > 0 and kept == 0


def test_graphs_are_captured_before_traffic_largest_first(folder: Path) -> None:
    graphed, device = LlamaGraphs(folder, capture=PlayedGraph()), ThreadDevice()
    config = replace(CONFIG, max_running_requests=6)
    engine = make_engine("overlap", device, graphed, config, Frontend([]))
    device.close()
    assert graphed.runner is not None and engine.worker.page_table is graphed.runner.page_table
    shapes = list(graphed.runner.replays)
    assert shapes == sorted(shapes, reverse=True)
    assert {rows for rows, _ in shapes} == {1, 2, 4, 6}
    assert max(window for _, window in shapes) == window_of(engine.scheduler.config.context_len)


@pytest.mark.parametrize("most", [0, 2])
def test_larger_steps_than_asked_for_are_launched_op_by_op(folder: Path, most: int) -> None:
    played = PlayedGraph()
    config = replace(CONFIG, cuda_graph_max_bs=most)
    graphed = LlamaGraphs(folder, capture=played)
    run = run_loop("serial", ThreadDevice(), graphed, requests([3, 9, 20], 8), config)
    assert run.outputs == tokens_of(folder, [3, 9, 20])
    assert bool(played.captured) == bool(most) and played.replayed == 0
    assert [mark for mark in run.trace.marks if mark.name == "eager launch"]


def test_a_capture_that_fails_is_said_once_and_no_step_fails(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def fails_late(step: Callable[[], None]) -> Callable[[], None]:
        tried.append(step)
        if len(tried) == 3:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return PlayedGraph()(step)

    graphed = LlamaGraphs(folder, capture=fails_late)
    for _ in range(2):
        run = run_loop("overlap", ThreadDevice(), graphed, requests([3, 9], 8), CONFIG)
        assert run.outputs == tokens_of(folder, [3, 9]) and not run.errors
        (mark,) = (mark for mark in run.trace.marks if mark.name == "no cuda graphs")
        assert mark.attrs == {"reason": "operation not permitted when stream is capturing"}
    assert len(tried) == 3  # neither the rest nor any of them again
    (said,) = caplog.messages
    assert said.startswith("decode steps run without CUDA graphs: operation not permitted")


def test_what_is_captured_is_not_scripted(folder: Path) -> None:
    with pytest.raises(ValueError, match="scripted is True, but steps that are captured"):
        LlamaGraphs(folder, scripted=True)


def test_cuda_runs_the_model_with_graphs(folder: Path) -> None:
    model = open_model(str(folder), "cuda", "float32")
    assert isinstance(model, LlamaGraphs) and model.step is llama_step
    assert model.capture is None  # which is CUDA's own


@given(max_bs=st.integers(1, 70), data=st.data())
def test_a_step_takes_the_next_larger_graph(max_bs: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, max_bs))
    assert rounded(rows, max_bs) == min(size for size in sizes(max_bs) if size >= rows) < 2 * rows
    assert rounded(max_bs + rows, max_bs) > max_bs


@given(longest=st.integers(1, 100_000), data=st.data())
def test_every_length_has_a_window(longest: int, data: st.DataObject) -> None:
    assert window_of(data.draw(st.integers(1, longest))) in windows(longest)
    assert max(windows(longest)) == window_of(longest)
