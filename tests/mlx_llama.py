"""A Llama on MLX that keeps its logits, and workloads whose rows are of many lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st

from minisched.models.llama_mlx import LlamaMlx

from .workloads import Workload, llama_workload


class Recording(LlamaMlx):
    """Keeps the logits of every row of every step."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.kept: list[tuple[str, int, mx.array]] = []  # (request id, tokens seen, logits)

    def forward(self, batch: Any, ids: mx.array, page_table: mx.array) -> mx.array:
        logits = super().forward(batch, ids, page_table)
        rows = zip(batch.label.rids, batch.prefix_lens, batch.extend_lens, strict=True)
        for row, (rid, start, length) in enumerate(rows):
            self.kept.append((rid, start + length, logits[row]))
        return logits


@st.composite
def llama_workloads(draw: st.DrawFn) -> Workload:
    """Prompts of up to 90 tokens, so that windows of several widths meet in a batch."""
    count = draw(st.integers(1, 5))
    length = st.one_of(st.integers(1, 8), st.integers(25, 40), st.integers(60, 90))
    prompts = [draw(st.lists(st.integers(0, 511), min_size=n, max_size=n))
               for n in (draw(length) for _ in range(count))]  # fmt: skip
    return llama_workload(draw, prompts, [1, 7, 33], 100)
