"""On which steps a step is built whose tokens the host does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import ScheduleBatch
from ..devices.base import Op
from ..relay import Relay
from ..relay.lazy_chain import LazyChain
from .generation_batch_result import GenerationBatchResult

if TYPE_CHECKING:
    from .worker import Worker


def tokens_for(relay: Relay, previous: GenerationBatchResult | None) -> Op | None:
    """Host: the op whose value the relay takes; the others need none, and must not fail with it."""
    return previous.next_token_ids if previous and isinstance(relay, LazyChain) else None


def draw_token_edges(worker: Worker, batch: ScheduleBatch, forward: Op) -> None:
    """Host: record which sample ops a step takes its tokens from without the host."""
    gives_every = worker.uploads.gives_every_input
    for index, row in enumerate(batch.rows):
        if None in row.ids or (gives_every and index >= batch.num_extend_reqs):
            worker.device.recorder.edge("token", row.lease.sampled_by, forward.slice_id)
