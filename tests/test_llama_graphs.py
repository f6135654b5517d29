"""Decode steps as graphs: the inputs are where the graph reads them, and tokens stay the same.

Without a GPU a graph is played: it calls the step again, with what lies at the captured addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minisched.bench.arm import running
from minisched.bench.case import Case
from minisched.core import Request, SamplingParams
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.llama_graphs import LlamaGraphs, window_of
from minisched.models.llama_torch import LlamaTorch
from minisched.models.llama_torch_attention import BLOCK
from minisched.scheduler import SchedulerConfig

CONFIG = SchedulerConfig(kv_tokens=2048, page_size=4, chunked_prefill_size=32)


class PlayedGraph:
    """Stands for CUDA's capture; counts what was captured and what was replayed."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.captured += 1
        logits = torch.full_like(step(), float("nan"))

        def replay() -> None:
            self.replayed += 1
            logits.copy_(step())

        return replay, logits


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
    graphed = LlamaGraphs(folder, scripted=False, capture=played)
    for _ in range(2):  # the second run finds the graphs of the first
        alone = run_loop(
            "serial", ThreadDevice(), LlamaTorch(folder), requests(lengths, 24), CONFIG
        )
        run = run_loop(loop, ThreadDevice(), graphed, requests(lengths, 24), CONFIG)
        assert run.outputs == alone.outputs
    assert played.captured == len(graphed.graphs) < played.replayed


def test_other_memory_is_another_graph(folder: Path) -> None:
    graphed = LlamaGraphs(folder, scripted=False, capture=PlayedGraph())
    run_loop("serial", ThreadDevice(), graphed, requests([3], 8), CONFIG)
    assert graphed.graphs
    device = ThreadDevice()
    graphed.allocate(device, 64, 128)
    device.close()
    assert not graphed.graphs


def test_copies_have_memory_and_graphs_of_their_own(folder: Path) -> None:
    """Two loops that take turns, each on a copy of one model that has graphs already."""
    graphed: Any = LlamaGraphs(folder, scripted=False, capture=PlayedGraph())
    short, long = (
        Case("thread", graphed, requests(lengths, 16), CONFIG) for lengths in ([3, 9], [20, 30])
    )
    alone = [
        run_loop("serial", ThreadDevice(), graphed, requests(lengths, 16), CONFIG).outputs
        for lengths in ([3, 9], [20, 30])
    ]
    assert graphed.graphs
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
