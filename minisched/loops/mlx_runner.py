"""What MLX's model runner keeps of each request, and the two halves of every kind of step."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Lease, Row
from ..devices.base import Device
from .mlx_jobs import LazyTokens, MlxPendingDecode, MlxPendingExtend, MlxPendingPrefill


@dataclass
class MlxRequestState:
    """One request's part of the runner (``_req_token_ids``, ``_req_caches`` and so on)."""

    token_ids: list[int]  # the newest one is the input of the next fresh decode
    cache: Lease
    req_pool_idx: int
    synced_offset: int


class MlxModelRunner:
    """SGLang ``hardware_backend/mlx/model_runner.py``, under its names.

    A start notes what the step will change; the matching finalize blocks on the step's tokens and
    changes it, unless the request has been forgotten in between (with ``chain_extend`` a step may
    be in flight for one that has ended, or whose first step has failed). Every ``clear_steps``
    finalized decodes (``SGLANG_MLX_CLEAR_CACHE_STEPS``) the library's cached buffers are given
    back; 0: never.
    """

    def __init__(self, device: Device, clear_steps: int) -> None:
        self.device = device
        self.clear_steps = clear_steps
        self.decode_step_ct = 0
        self.states: dict[str, MlxRequestState] = {}

    def has_request(self, req_id: str, cache: Lease) -> bool:
        """Whether the runner keeps anything of it, and not of one who had its id before."""
        return req_id in self.states and self.states[req_id].cache is cache

    def remove_request(self, req_id: str) -> None:
        """Forget it, if it is there."""
        self.states.pop(req_id, None)

    def prefill_start(self, token: LazyTokens, row: Row) -> MlxPendingPrefill:
        """A prompt, or its first chunk, behind whatever the prefix cache had of it."""
        known = list(row.req.known_tokens(0, row.end))
        return MlxPendingPrefill(token, row.lease, row.req.rid, known, row.lease.row, row.end)

    def extend_start(self, token: LazyTokens, row: Row) -> MlxPendingExtend:
        """A later chunk."""
        known = list(row.req.known_tokens(row.start, row.end))
        return MlxPendingExtend(token, row.lease, row.req.rid, known, row.end)

    def decode_batch_start(self, tokens: LazyTokens, rows: list[Row]) -> MlxPendingDecode:
        """One token for each request, from tokens that the host knows."""
        return MlxPendingDecode(tokens, [row.req.rid for row in rows], [row.lease for row in rows])

    def decode_batch_start_chained(
        self, tokens: LazyTokens, prev: MlxPendingDecode
    ) -> MlxPendingDecode:
        """The same requests once more, in the same order and caches, from ``prev``'s tokens."""
        return MlxPendingDecode(tokens, prev.req_ids, prev.caches)

    def prefill_finalize(self, pending: MlxPendingPrefill) -> int:
        """Its token; from now on the runner knows the request."""
        token = pending.lazy_token.item()
        self.states[pending.req_id] = MlxRequestState(
            [*pending.full_token_ids, token],
            pending.cache,
            pending.req_pool_idx,
            pending.synced_offset,
        )
        return token

    def extend_finalize(self, pending: MlxPendingExtend) -> int:
        """Its token, in place of the one that the chunk before it sampled for nobody."""
        token = pending.lazy_token.item()
        if self.has_request(pending.req_id, pending.cache):
            state = self.states[pending.req_id]
            state.token_ids[-1:] = [*pending.new_token_ids, token]
            state.synced_offset = pending.new_synced_offset
        return token

    def decode_batch_finalize(self, pending: MlxPendingDecode) -> list[int]:
        """A token for each, [num_reqs]; and now and then the library's cache is emptied."""
        tokens = pending.lazy_tokens.tolist()
        for req_id, cache, token in zip(pending.req_ids, pending.caches, tokens, strict=True):
            if self.has_request(req_id, cache):
                self.states[req_id].token_ids.append(token)
        self.decode_step_ct += 1
        self.device.count_memory()
        if self.clear_steps and self.decode_step_ct % self.clear_steps == 0:
            self.device.clear_cache()
            self.device.count_memory()
        return tokens
