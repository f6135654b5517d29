"""What steps in flight have given, for devices on which the next one cannot be built without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from ..core import Lease, ScheduleBatch
from ..models.forward_batch import ForwardBatch
from .generation_batch_result import GenerationBatchResult

Input = tuple[int, Sequence[int]]  # where a row goes on, and with which tokens: the last, drafts


class Launched(NamedTuple):
    """A step that was launched, with inputs that are all numbers; or one that was lost before."""

    pending: GenerationBatchResult
    inputs: ForwardBatch | None


class UnreadSteps:
    """The newest step of each row that has memory: the scheduler may not have processed it yet.

    Where ops are built by the host (CUDA, MLX), a step's shapes and positions must be numbers when
    it is launched. With speculation they depend on how many drafts the step in front accepted, so
    the host waits for that one. (SGLang keeps the lengths on the device and has CUDA kernels that
    read them there, for upper bounds that the host knows.)

    However many steps are in flight, and whichever of them leave a row out, its newest one is here.
    """

    def __init__(self) -> None:
        self.newest: dict[Lease, Launched] = {}

    def add(self, pending: GenerationBatchResult, inputs: ForwardBatch | None) -> None:
        """A step has been launched, or is lost (no inputs); rows that are free are forgotten."""
        kept = {lease: step for lease, step in self.newest.items() if not lease.is_released}
        self.newest = kept | dict.fromkeys(pending.batch.leases, Launched(pending, inputs))

    def fill(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Host: ``batch`` with tokens and positions in the place of what was unknown.

        Blocks. Behind a step that has failed or was lost, tokens are 0: its requests end anyway.

        Raises:
            RuntimeError: nobody has launched a step for a row in which something is unknown.
        """
        given: dict[int, dict[Lease, Input]] = {}  # by step, each of which is read once
        starts, ids = list(batch.starts), list(batch.ids)
        for at, lease in enumerate(batch.leases):
            if not batch.start_unknown[at]:
                continue
            if lease not in self.newest:
                raise RuntimeError(
                    f"step {batch.step} wants a token of {lease.rid!r} (row {lease.row}) that no "
                    "launched step brings"
                )
            pending, inputs = self.newest[lease]
            step = pending.batch.step
            if step not in given:
                given[step] = read(pending, inputs)
            starts[at], tokens = given[step].get(lease, (starts[at], [0] * len(ids[at])))
            ids[at] = tuple(tokens[: len(ids[at])])
        return replace(batch, starts=starts, ids=ids)


def read(pending: GenerationBatchResult, inputs: ForwardBatch | None) -> dict[Lease, Input]:
    """Host: what a step has given to each of its leases; nothing if it has failed.

    Blocks until it has ended.
    """
    batch, result = pending.batch, pending.result()
    if result.num_accepted_tokens is None or inputs is None:
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
