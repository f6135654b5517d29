"""The lazy surface of MLX's worker: launch a step, chain one upon it, read it."""

from __future__ import annotations

from dataclasses import replace

from ..core import ForwardMode, Lease, Result, Row, ScheduleBatch
from ..engine.engine import Engine
from .mlx_jobs import (
    LazyTokens,
    MlxPendingDecode,
    MlxPendingExtend,
    MlxPendingJob,
    MlxPendingPrefill,
)
from .mlx_runner import MlxModelRunner

Launch = tuple[
    LazyTokens | None,
    list[MlxPendingPrefill],
    list[MlxPendingExtend],
    MlxPendingDecode | None,
    str,
]
"""lazy_tokens, prefills, extends, decode, mode: the first five fields of a ``MlxPendingJob``."""


class MlxTpModelWorker:
    """SGLang ``hardware_backend/mlx/tp_worker.py``, under its names.

    What the original does with arrays, the engine's phases do here: they build the step's graph
    and hand tokens and written caches over in one ``async_eval`` (``devices/mlx.py``).
    """

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        self.engine = engine
        self._mlx_runner = MlxModelRunner(engine.device, clear_cache_every)

    def async_forward_batch_generation_mlx(
        self, batch: ScheduleBatch, prev: MlxPendingJob | None = None
    ) -> Launch:
        """Launch a freshly scheduled batch; who has ended is forgotten before.

        ``prev`` is the step before, where that may be in flight (``chain_extend``; the original has
        none in flight here). Finalize it before this one.
        """
        if batch.mode is ForwardMode.IDLE:
            return None, [], [], None, "idle"
        self._cleanup_stale_rids()
        self._build_logit_edit_rows(batch)
        before = prev.lazy_tokens.step if prev and prev.lazy_tokens else None
        tokens = LazyTokens(self.engine.run_batch(batch, before))
        if batch.mode is ForwardMode.DECODE:
            decode = self._mlx_runner.decode_batch_start(tokens, list(batch.rows))
            return tokens, [], [], decode, "decode"
        return self._async_extend_batch(batch, tokens, prev.prefills if prev else [])

    def async_chained_decode_mlx(self, batch: ScheduleBatch, prev: MlxPendingDecode) -> Launch:
        """Launch a decode on ``prev``'s lazy tokens. Finalize ``prev`` before this one.

        ``batch`` is what the original lacks: it takes no slot for a chained step and advances no
        length in the scheduler (#30093).
        """
        self._build_logit_edit_rows(batch)
        tokens = LazyTokens(self.engine.run_batch(batch, prev.lazy_tokens.step))
        decode = self._mlx_runner.decode_batch_start_chained(tokens, prev)
        return tokens, [], [], decode, "decode"

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        """Block on a job's tokens and note them; in the order of its batch, [num_reqs].

        Of a failed step there is nothing to note: its requests end.
        """
        if job.lazy_tokens is None:
            return Result(())
        result = self.engine.wait_for(job.lazy_tokens.step)
        if result.error:
            return result
        runner, token_of = self._mlx_runner, {}
        for prefill in job.prefills:
            token_of[prefill.req_id] = runner.prefill_finalize(prefill)
        for extend in job.extends:
            token_of[extend.req_id] = runner.extend_finalize(extend)
        if job.decode is not None:
            tokens = runner.decode_batch_finalize(job.decode)
            token_of.update(zip(job.decode.req_ids, tokens, strict=True))
        return replace(result, tokens=[token_of[req.rid] for req in job.reqs])

    def _build_logit_edit_rows(self, batch: ScheduleBatch) -> None:
        """Masks and penalties, before the graph that they are to enter is built."""
        if self.engine.needs_mask(batch):
            self.engine.update_vocab_mask(batch)

    def _async_extend_batch(
        self, batch: ScheduleBatch, tokens: LazyTokens, begun: list[MlxPendingPrefill]
    ) -> Launch:
        """Sort the rows of a batch with prompts in it by what they are.

        ``begun`` are the prefills of the step before, which may not have been finalized.
        """
        begun_in = [prefill.cache for prefill in begun]
        runner = self._mlx_runner
        prefills: list[MlxPendingPrefill] = []
        extends: list[MlxPendingExtend] = []
        for at, row in enumerate(batch.rows[: batch.num_extend_reqs]):
            token = LazyTokens(tokens.step, slice(at, at + 1))
            if self._route_extend_request(row, begun_in) == "prefill":
                prefills.append(runner.prefill_start(token, row))
            else:
                extends.append(runner.extend_start(token, row))
        decode = None
        if decoding := list(batch.rows[batch.num_extend_reqs :]):
            rest = LazyTokens(tokens.step, slice(batch.num_extend_reqs, None))
            decode = runner.decode_batch_start(rest, decoding)
        return tokens, prefills, extends, decode, "extend"

    def _route_extend_request(self, row: Row, begun_in: list[Lease]) -> str:
        """``prefill`` or ``continuation``: whether the runner knows the request, or will, decides.

        Never the number of new tokens: a last chunk may be one token, and is no decode.
        """
        is_known = self._mlx_runner.has_request(row.req.rid, row.lease) or row.lease in begun_in
        return "continuation" if is_known else "prefill"

    def _cleanup_stale_rids(self) -> None:
        """Forget who has ended, or lost its memory, since the last fresh launch.

        Not when it ends: the step in flight still has a token for it. The original removes whoever
        is not in the decode batch; under a budget a batch may leave out who lives, so here the
        lease tells.
        """
        states = self._mlx_runner.states
        for rid in [rid for rid, state in states.items() if state.cache.is_released]:
            self._mlx_runner.remove_request(rid)
