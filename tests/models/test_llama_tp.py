"""A Llama split over ranks: the bits of one rank, and at float64's precision those of the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minisched.core import Request, SamplingParams
from minisched.loops.run import run_loop
from minisched.models.llama import write_tiny_llama
from minisched.models.llama_torch import LlamaTorch
from minisched.models.llama_tp import LlamaTP, blocks_of
from minisched.scheduler import SchedulerConfig
from tests.support import KINDS, open_device, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")
THREE_BLOCKS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
SPLIT: dict[str, dict[str, Any]] = {  # between them, all that a kind can add
    "uneven": {**THREE_BLOCKS, "vocab_size": 511},
    "qwen2": {**KINDS["qwen2"], **THREE_BLOCKS},
    "qwen3": {**KINDS["qwen3 scaled"], "num_key_value_heads": 4},
    **{kind: KINDS[kind] for kind in ("norms", "llama 3.2", "all heads", "qwen2 tied")},
}
QUICK = ("uneven", "qwen2", "qwen3")
SOME = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.thorough) for kind in SPLIT]


class Meeting:
    """Where the threads of a test meet, as ranks do: each brings its blocks and takes all."""

    def __init__(self, num_ranks: int) -> None:
        self.parts: list[Any] = [None] * num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=60)

    def all_gather(self, rank: int, parts: Tensor) -> list[Tensor]:
        self.parts[rank] = parts
        self.barrier.wait()
        every = [*self.parts]
        self.barrier.wait()
        return every


def keep_logits(model: Any) -> list[Tensor]:
    kept, sample = list[Tensor](), model.sample

    def keep(logits: Tensor, batch: Any) -> Any:
        kept.append(logits.clone())
        return sample(logits, batch)

    model.sample = keep
    return kept


def requests() -> list[Request]:
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    odd = SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=0.8, top_k=9, seed=5)
    return [Request(f"r{i}", prompt(i, n), (params, odd)[i % 2]) for i, n in enumerate((3, 40, 90))]


def logits_of(make: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    model = make()
    kept = keep_logits(model)
    config = SchedulerConfig(chunked_prefill_size=32, page_size=4, context_len=128)
    run = run_loop("overlap", open_device("thread", torch_threads=1), model, requests(), config)
    assert not run.errors
    return run.outputs, kept


def on_ranks(folder: Path, num_ranks: int, dtype: str) -> list[Any]:
    meeting = Meeting(num_ranks)
    whole = LlamaTP(folder, dtype)
    makes = [
        partial(whole.share, rank, num_ranks, partial(meeting.all_gather, rank))
        for rank in range(num_ranks)
    ]
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(logits_of, makes))


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
def test_every_number_of_ranks_gives_the_bits_of_one(kind: str, dtype: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, more=SPLIT[kind])
    tokens, alone = logits_of(partial(LlamaTP, folder, dtype))
    for num_ranks in (2, 3) if SPLIT[kind].get("num_key_value_heads", 2) > 2 else (2,):
        for said, logits in on_ranks(folder, num_ranks, dtype):
            assert said == tokens
            assert len(logits) == len(alone) > 12
            assert all(map(torch.equal, logits, alone))


@pytest.mark.parametrize("kind", SOME)
def test_its_logits_are_those_of_the_whole(kind: str, tmp_path: Path) -> None:
    """A sum in another order: in float64 it says whether anything is lacking or counted twice."""
    folder = write_tiny_llama(tmp_path, more=SPLIT[kind])
    tokens, whole = logits_of(partial(LlamaTorch, folder, "float64"))
    assert logits_of(partial(LlamaTP, folder, "float64"))[0] == tokens
    for split, logits in zip(logits_of(partial(LlamaTP, folder, "float64"))[1], whole, strict=True):
        torch.testing.assert_close(split, logits, rtol=1e-9, atol=1e-9)


def test_blocks_are_shared_out_in_order_and_all_of_them() -> None:
    for num_blocks in range(1, 9):
        for num_ranks in range(1, num_blocks + 1):
            shares = [blocks_of(rank, num_ranks, num_blocks) for rank in range(num_ranks)]
            assert [block for share in shares for block in share] == list(range(num_blocks))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(ValueError, match="2 KV heads can't be split over 3 ranks"):
        blocks_of(0, 3, 2)
