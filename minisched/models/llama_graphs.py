"""A Llama with decode steps as CUDA graphs: one call of the host launches a whole step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from ..core import ForwardMode
from ..devices.base import WRONG_TOKEN, Array, Buffer, Device
from .base import ForwardBatch
from .llama_torch import BLOCK, ROWS, LlamaTorch, bytes_each, make_groups

logger = logging.getLogger("minisched")
Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


class GraphPool:
    """Capture steps in order; their intermediate results share one memory.

    So only one of them may run at a time, as on one stream. A graph takes memory that earlier
    graphs left in the pool, so the largest comes first.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self, step: Callable[[], None]) -> Replay:
        """Run a step once, because libraries choose kernels then, and record its launches.

        Other threads of the host continue: their CUDA calls end no capture here.
        """
        self.stream.wait_stream(torch.cuda.current_stream())  # the stream of weights and inputs
        with torch.cuda.stream(self.stream):
            step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.handle, stream=self.stream, capture_error_mode="thread_local"
        ):
            step()
        replay: Replay = graph.replay
        return replay


class CudaGraphRunner:
    """Decode steps, captured in advance (SGLang ``cuda_graph_runner.py``).

    A graph has fixed shapes and reads fixed addresses. So ids, positions and rows are copied to
    these addresses, the page table is the one that the worker writes, and attention reads a window
    of a power of two blocks. There is a graph for each rounded number of rows and each window. A
    step takes the next larger one, padded with tokens of row 0 at position 0, which read and write
    the unused slot 0. Where a capture fails there are no graphs, and ``failure`` is the reason.
    """

    def __init__(
        self, model: LlamaTorch, page_table: Tensor, max_bs: int, capture: Capture
    ) -> None:
        self.page_table, self.max_bs, self.failure = page_table, max_bs, ""
        self.max_len, where = model.max_len, page_table.device
        self.inputs = torch.zeros((3, -(-max_bs // ROWS) * ROWS), dtype=torch.int64, device=where)
        self.num_filled = 0  # columns of ``inputs`` that may be more than padding
        self.logits = torch.zeros((max_bs, model.vocab_size), dtype=model.keys.dtype, device=where)
        self.replays: dict[tuple[int, int], Replay] = {}
        self.clear()
        longest = min(model.max_len, model.context_len, model.keys.size(1))
        sizes = {rounded(num_reqs, max_bs) for num_reqs in range(1, max_bs + 1)}
        windows = {window_of(length) for length in range(1, longest + 1)}
        try:
            with torch.inference_mode():
                for bs, window in sorted(product(sizes, windows), reverse=True):
                    self.replays[bs, window] = capture(partial(self.step, model, bs, window))
        except Exception as error:  # after any error the same steps can be launched op by op
            self.replays.clear()
            first: BaseException = error
            while first.__context__ is not None:  # after it, the capture can't be ended either
                first = first.__context__
            self.failure = (str(first).strip() or type(first).__name__).splitlines()[0]
            logger.warning("decode steps run without CUDA graphs: %s", self.failure)

    def clear(self) -> None:
        """Reset the page table for another run: only row 0 has a slot, 0."""
        self.page_table.fill_(WRONG_TOKEN)[: self.max_len] = 0

    def step(self, model: LlamaTorch, bs: int, window: int) -> None:
        """Run the captured part: from the fixed inputs to the fixed logits."""
        groups = make_groups([window - 1] * bs, [1] * bs, bytes_each(model.keys))
        ids, positions, rows = self.inputs[:, : -(-bs // ROWS) * ROWS].unbind()
        last = torch.arange(bs, device=self.inputs.device)
        self.logits[:bs] = model.run(groups, ids, positions, rows, last, self.page_table)

    def find(self, batch: ForwardBatch) -> Replay | None:
        """Return the graph of a step; None if it is no plain decode step, or too large."""
        num_reqs = len(batch.rows)
        if (
            batch.mode is not ForwardMode.DECODE
            or max(batch.extend_lens) > 1
            or len(batch.logits_at) != num_reqs
        ):
            return None
        return self.replays.get(
            (rounded(num_reqs, self.max_bs), window_of(max(batch.prefix_lens) + 1))
        )

    def run(self, replay: Replay, batch: ForwardBatch, ids: Tensor) -> Tensor:
        """Return logits [num_reqs, vocab], which no later step overwrites."""
        places = self.inputs[:, : len(ids)].unbind()
        torch._foreach_copy_(places, (ids, batch.positions, batch.token_rows))
        if self.num_filled > len(ids):
            self.inputs[:, len(ids) : self.num_filled] = 0
        self.num_filled = len(ids)
        replay()
        return self.logits[: len(batch.rows)].clone()


class LlamaGraphs(LlamaTorch):
    """``LlamaTorch`` on a GPU: decode steps are graphs, all others are launched op by op.

    It is never compiled by ``torch.jit.script``, which would compile again in the middle of a
    capture.
    """

    scripted = False
    capture: Capture | None = None  # by default a new ``GraphPool``
    runner: CudaGraphRunner | None = None
    allocated: tuple[torch.device, int, int] | None = None

    def __copy__(self) -> LlamaGraphs:
        """Return a model with the same weights and no graph, because a graph has a KV address."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, runner=None, allocated=None)
        return other

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Allocate as ``LlamaTorch``, but keep memory of the same size, with its graphs."""
        wanted = (device.memory("probe", 1).device, num_slots, max_len)
        if wanted != self.allocated:
            self.runner, self.allocated = None, None
            super().allocate(device, num_slots, max_len)
            self.allocated = wanted

    def init_cuda_graphs(self, device: Device, page_table: Buffer, max_bs: int) -> Buffer:
        """Capture decode steps of up to ``max_bs`` rows, or keep those of the last run.

        Return the page table that they read: this one, or an earlier one of the same size. With 0
        rows there is no graph: every op is launched alone, as torch's sanitizer needs it.
        """
        if not max_bs:
            return page_table
        runner = self.runner
        if runner is None or (len(runner.page_table), runner.max_bs) != (len(page_table), max_bs):
            self.runner = None  # before new ones take memory
            runner = CudaGraphRunner(self, page_table, max_bs, self.capture or GraphPool())
            self.runner = runner
        else:
            runner.clear()
        if runner.failure:
            device.recorder.mark("no cuda graphs", reason=runner.failure)
        return runner.page_table

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Return logits [num_logits, vocab] in the model's dtype."""
        runner = self.runner
        if runner is not None and page_table is runner.page_table and (found := runner.find(batch)):
            return runner.run(found, batch, ids)
        return super().forward(batch, ids, page_table)


def rounded(num_reqs: int, max_bs: int) -> int:
    """Return the next captured number of rows, at most ``max_bs``."""
    return num_reqs if num_reqs > max_bs else min(max_bs, 1 << (num_reqs - 1).bit_length())


def window_of(length: int) -> int:
    """Return the smallest power of two blocks that holds ``length`` positions."""
    blocks = -(-length // BLOCK)
    return BLOCK << (blocks - 1).bit_length()
