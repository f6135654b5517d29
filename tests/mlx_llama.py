"""A Llama on MLX that keeps its logits, and workloads whose rows are of many lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st

from minisched.core import Request
from minisched.models.llama_mlx import LlamaMlx
from minisched.scheduler import SchedulerConfig

from .workloads import Workload, params


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
    requests = [Request(f"r{i}", prompt, draw(params)) for i, prompt in enumerate(prompts)]
    page_size = draw(st.sampled_from([1, 4, 16]))
    longest = max(req.max_device_len for req in requests)
    run_first = draw(st.sampled_from(["prefill", "unified"]))
    config = SchedulerConfig(
        kv_tokens=(-(-longest // page_size) + draw(st.integers(0, 40))) * page_size,
        page_size=page_size,
        max_running_requests=draw(st.integers(1, 5)),
        chunked_prefill_size=page_size * draw(st.sampled_from([1, 7, 33])),
        enable_mixed_chunk=run_first == "prefill" and draw(st.booleans()),
        context_len=100,
        run_first=run_first,
        schedule_conservativeness=draw(st.sampled_from([0.0, 1.0])),
    )
    return Workload(requests, [0, *(draw(st.integers(0, 6)) for _ in requests[1:])], {}, config)
