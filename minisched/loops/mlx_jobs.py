"""Lazy steps on their way: what each part of a step computes, and what is kept when it is read.

SGLang ``hardware_backend/mlx/model_runner.py`` and ``scheduler_mixin.py``, with the published
fields. Where the original keeps an unevaluated ``mx.array``, here stand ``LazyTokens``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..core import Lease, Request, ScheduleBatch
from ..worker import GenerationBatchResult


class LazyTokens(NamedTuple):
    """The tokens of some rows of a launched step; on MLX nobody has computed them yet."""

    step: GenerationBatchResult
    rows: slice = slice(None)

    def tolist(self) -> list[int]:
        """Block until they are there, [num_rows]."""
        return list(self.step.result().tokens[self.rows])

    def item(self) -> int:
        """The only one of them."""
        (token,) = self.tolist()
        return token


@dataclass(frozen=True)
class MlxPendingPrefill:
    """A prompt from its first new token on. Its request gets its state when this is finalized.

    ``cache`` is the request's lease: its KV lies in the paged pool, and not in arrays of its own
    (what each copies: ``models/paged_cache_mlx.py``).
    """

    lazy_token: LazyTokens
    cache: Lease
    req_id: str
    full_token_ids: list[int]  # all that the runner has to know: cached prefix and new tokens
    req_pool_idx: int
    synced_offset: int  # positions whose KV is in the pool when the step has run


@dataclass(frozen=True)
class MlxPendingExtend:
    """A later chunk of a prompt whose request has its state already."""

    lazy_token: LazyTokens
    cache: Lease
    req_id: str
    new_token_ids: list[int]
    new_synced_offset: int


@dataclass(frozen=True)
class MlxPendingDecode:
    """One token for each request: what ``decode_batch_start_chained`` builds the next step on."""

    lazy_tokens: LazyTokens
    req_ids: list[str]
    caches: list[Lease]  # [num_reqs]


@dataclass(frozen=True)
class MlxPendingJob:
    """One step in flight, as the loop holds it: at most two of them.

    ``mode`` is ``decode``, ``extend`` or ``idle``. ``decode`` also holds the decoding rows of a
    mixed batch, whose mode is ``extend``. ``batch_copy`` is this step's snapshot;
    ``schedule_batch`` the batch that the scheduler made, of which a chained step is one more
    round; ``reqs`` who is in it.
    """

    lazy_tokens: LazyTokens | None
    prefills: list[MlxPendingPrefill]
    extends: list[MlxPendingExtend]
    decode: MlxPendingDecode | None
    mode: str
    batch_copy: ScheduleBatch
    schedule_batch: ScheduleBatch
    reqs: list[Request]
