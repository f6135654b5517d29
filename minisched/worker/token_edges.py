"""On which steps a step is built whose tokens the host does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import ScheduleBatch
from ..devices.base import Op
from ..relay import Relay
from ..relay.lazy_chain import LazyChain

if TYPE_CHECKING:
    from .worker import Worker


def is_chained(relay: Relay) -> bool:
    """Whether a step takes the value of an op before it; else it must not fail together with it."""
    return isinstance(relay, LazyChain)


def draw_token_edges(worker: Worker, batch: ScheduleBatch, forward: Op) -> None:
    """Host: record which sample ops a step takes its tokens from without the host."""
    gives_every = worker.uploads.gives_every_input
    for index, row in enumerate(batch.rows):
        if None in row.ids or (gives_every and index >= batch.num_extend_reqs):
            worker.device.recorder.edge("token", row.lease.sampled_by, forward.slice_id)
