"""A Llama whose decode steps are CUDA graphs: one call of the host launches a whole step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..devices.base import Array, Buffer, Device
from .forward_batch import ForwardBatch
from .llama_torch import LlamaTorch
from .llama_torch_attention import BLOCK

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


class DecodeGraph(NamedTuple):
    """A captured step: where its inputs have to lie, how it is run, and where logits lie then."""

    inputs: tuple[Tensor, ...]  # ids, positions, token_rows, logits_at, page_table
    replay: Callable[[], None]
    logits: Tensor  # [num_reqs, vocab]


def capture_on_gpu(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Record what ``step`` launches on the current stream, instead of running it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        logits = step()
    return graph.replay, logits


class LlamaGraphs(LlamaTorch):
    """``LlamaTorch`` with a graph for each number of rows (SGLang ``cuda_graph_runner.py``).

    A graph has fixed shapes and fixed addresses. So inputs are copied to where the graph reads
    them, and attention looks at a window whose length is a power of two blocks: few graphs serve
    all lengths. The first step of a shape runs as usual and is captured afterwards. What is no
    plain decode step runs as usual too.
    """

    def __init__(self, *args: Any, capture: Capture = capture_on_gpu, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capture = capture
        self.graphs: dict[tuple[int, int], DecodeGraph] = {}
        self.allocated: tuple[Device | str, int, int] | None = None

    def __copy__(self) -> LlamaGraphs:
        """The same weights, and no graph: in a graph is where its KV lies."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, graphs={}, allocated=None)
        return other

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """As ``LlamaTorch``, but memory of the same size is kept, and the graphs with it."""
        wanted = (device.name, num_slots, max_len)
        if wanted != self.allocated:
            super().allocate(device, num_slots, max_len)
            self.graphs.clear()
            self.allocated = wanted

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Logits [num_logits, vocab] in the model's dtype."""
        if not batch.is_decode or max(batch.extend_lens) > 1:
            return super().forward(batch, ids, page_table)
        given = (ids, batch.positions, batch.token_rows, batch.logits_at, page_table)
        window = window_of(max(batch.prefix_lens) + 1)
        if graph := self.graphs.get((len(batch.rows), window)):
            for place, value in zip(graph.inputs, given, strict=True):
                place.copy_(value)
            graph.replay()
            return graph.logits.clone()  # the next replay writes to the same place
        logits = super().forward(batch, ids, page_table)
        self.graphs[len(batch.rows), window] = self.record(batch, given, window)
        return logits

    def record(self, batch: ForwardBatch, given: tuple[Tensor, ...], window: int) -> DecodeGraph:
        """Capture a step with inputs of its own; the host's lengths only say how far it looks."""
        ids, positions, token_rows, logits_at, page_table = places = tuple(
            value.clone() for value in given
        )
        fixed = replace(
            batch, prefix_lens=[window - 1] * len(batch.rows), positions=positions,
            token_rows=token_rows, logits_at=logits_at,
        )  # fmt: skip
        step = super().forward
        return DecodeGraph(places, *self.capture(lambda: step(fixed, ids, page_table)))


def window_of(length: int) -> int:
    """The smallest power of two blocks that holds ``length`` positions."""
    blocks = -(-length // BLOCK)
    return BLOCK << (blocks - 1).bit_length()
