"""A Llama on MLX that keeps its logits, and workloads whose rows are of many lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st

from minisched.models.llama_mlx import LlamaMlx
from minisched.models.llama_mlx_layers import hidden_states, logits
from minisched.models.paged_cache_mlx import PagedCache, new_tokens, window_of
from tests.support import Workload, llama_workload


class Recording(LlamaMlx):
    """Keeps the logits of every row of every step."""

    def __init__(self, directory: Path, dtype: str = "auto") -> None:
        super().__init__(directory, dtype)
        self.kept: list[tuple[str, int, mx.array]] = []  # (request id, tokens seen, logits)

    def forward(self, batch: Any, ids: mx.array, page_table: mx.array) -> mx.array:
        result = super().forward(batch, ids, page_table)
        rows = zip(batch.label.rids, batch.prefix_lens, batch.extend_lens, strict=True)
        for row, (rid, start, length) in enumerate(rows):
            self.kept.append((rid, start + length, result[row]))
        return result


def alone(model: LlamaMlx, tokens: tuple[int, ...]) -> list[float]:
    """Logits [vocab] after ``tokens``: one request, all at once, and a cache of its own.

    No scheduler, worker or page allocator: position p has KV slot p + 1, and row 1.
    """
    count, weights = len(tokens), model.weights
    caches = [PagedCache(count + 1, *model.kv_shape, weights.embed.dtype) for _ in weights.layers]
    at, table = mx.arange(count), mx.array([0] * count + list(range(1, count + 1)))
    new = new_tokens(table[count + at], at, (weights.cos, weights.sin))
    window = window_of(table, [count], at[None], count, model.kv_shape[0])
    x = hidden_states(weights, caches, new, [window], mx.array(tokens))
    last: list[float] = logits(weights, x[-1:])[0].tolist()
    return last


@st.composite
def llama_workloads(draw: st.DrawFn) -> Workload:
    """Prompts of up to 90 tokens, so that windows of several widths meet in a batch."""
    count = draw(st.integers(1, 5))
    length = st.one_of(st.integers(1, 8), st.integers(25, 40), st.integers(60, 90))
    prompts = [draw(st.lists(st.integers(0, 511), min_size=n, max_size=n))
               for n in (draw(length) for _ in range(count))]  # fmt: skip
    return llama_workload(draw, prompts, [1, 7, 33], 100)
