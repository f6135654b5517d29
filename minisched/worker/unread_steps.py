"""What steps in flight have given, for devices on which the next one cannot be built without."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..core import Lease, ScheduleBatch
from ..models.forward_batch import ForwardBatch
from .generation_batch_result import GenerationBatchResult

Input = tuple[int, Sequence[int]]  # where a row goes on, and with which tokens: the last, drafts


class UnreadSteps:
    """Steps that were launched, and whose results the scheduler may not have processed.

    Where ops are built by the host (CUDA, MLX), a step's shapes and positions must be numbers when
    it is launched. With speculation they depend on how many drafts the step in front accepted, so
    the host waits for that one. (SGLang keeps the lengths on the device and has CUDA kernels that
    read them there, for upper bounds that the host knows.)
    """

    def __init__(self, depth: int) -> None:
        self.steps: deque[tuple[GenerationBatchResult, ForwardBatch]] = deque(maxlen=depth)

    def add(self, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
        """A step has been launched, with inputs that are all numbers."""
        self.steps.append((pending, inputs))

    def fill(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Host: ``batch`` with tokens and positions in the place of what was unknown.

        Blocks. After a failed step the unknown stays as it is: its requests end anyway.
        """
        found: dict[Lease, Input] = {}
        while self.steps:
            found |= read(*self.steps.popleft())
        starts, ids = list(batch.starts), list(batch.ids)
        for at, lease in enumerate(batch.leases):
            if batch.start_unknown[at]:
                starts[at], tokens = found.get(lease, (starts[at], [0] * len(ids[at])))
                ids[at] = tuple(tokens[: len(ids[at])])
        return replace(batch, starts=starts, ids=ids)


def read(pending: GenerationBatchResult, inputs: ForwardBatch) -> dict[Lease, Input]:
    """Host: what a step has given to each of its leases. Blocks until it has ended."""
    batch, result = pending.batch, pending.result()
    if result.num_accepted_tokens is None:
        return {}
    k = len(result.drafts) // len(batch.reqs)
    firsts = accumulate(batch.sample_lens, initial=0)
    given: dict[Lease, Input] = {}
    columns = zip(batch.leases, firsts, result.num_accepted_tokens, strict=False)
    for at, (lease, first, count) in enumerate(columns):
        start = inputs.sampling[first][2] + count - 1
        newest = result.tokens[first + count - 1]
        given[lease] = start, [newest, *result.drafts[at * k : at * k + k]]
    return given
