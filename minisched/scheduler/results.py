"""What a step's result means to the requests that were in it."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import FinishReason, Lease, Output, Request, Result, ScheduleBatch
from . import stale_outputs, verify
from .ending import Endings
from .grammar_manager import record_accepted
from .logprobs import deliver_logprobs


class Results(Endings):
    """The part of the scheduler that takes batches back."""

    def process(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """Take a batch back: deliver its tokens, end what is done, free what nobody names.

        Raises:
            RuntimeError: an earlier batch has not come back yet.
        """
        self.batches_in_flight -= 1
        self.leases.came_back(batch.step)
        if result.error:
            self._spoil(batch.leases)
        if self.config.num_draft_tokens and not result.error:
            return self._process_verified(batch, result)
        tokens = [0] * len(batch.reqs) if result.error else result.tokens
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs: list[Output] = []
        for at in sorted(result.not_numbers):
            outputs += self._end_if_nan(batch, batch.reqs[at], batch.leases[at])
        columns = zip(batch.reqs, batch.leases, batch.delivers, tokens, strict=True)
        for at, (req, lease, deliver, token) in enumerate(columns):
            if req.lease is not lease:  # ended or retracted while the step was running
                outputs += self._late(batch, req, lease, token if deliver else None, result.error)
            elif result.error:
                outputs.append(self._finish(req, FinishReason.ERROR, error=result.error))
            elif deliver:
                lease.settled_len = req.known_len  # as ``_deliver``, for every token passes here
                req.append_host(token)
                if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
                    outputs.append(self._end(req, token))
                else:
                    outputs.append(Output(req.rid, token))
                    if req.device_len == req.max_device_len:
                        self._last_is_launched(req, lease)
            if at < batch.num_extend_reqs:
                self._cache_prompt(batch, at)
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained, outputs)
        return outputs

    def _process_verified(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """The same for steps that may carry drafts: a row has several tokens."""
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs: list[Output] = []
        tokens_by_row = verify.accepted_tokens(batch, result)
        drafts_by_row = verify.drafts_by_row(batch, result)
        broken = verify.rows_with_nan(batch, result)
        columns = zip(batch.rows, batch.sample_lens, tokens_by_row, drafts_by_row, strict=True)
        for at, (row, num_samples, tokens, drafts) in enumerate(columns):
            req, lease = row.req, row.lease
            had = len(req.output_ids)
            if req.lease is not lease:
                is_stale = row.deliver and self._is_stale(req)
                for token in tokens if is_stale else [None]:
                    if token is None or not req.finished:
                        outputs += self._late(batch, req, lease, token)
            elif row.deliver:
                verify.settle(req, num_samples - 1, len(tokens), drafts)
                for token in tokens:
                    if not req.finished:
                        outputs.append(self._deliver(req, lease, token))
            outputs += self._end_if_nan(batch, req, lease) if at in broken else []
            if at < batch.num_extend_reqs:
                self._cache_prompt(batch, at)
            if num_samples > 1 and (gained := len(req.output_ids) - had):
                self._verified(batch, req, num_samples - 1, gained - 1)
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained, outputs)
        return outputs

    def _end_if_nan(self, batch: ScheduleBatch, req: Request, lease: Lease) -> list[Output]:
        """End one whose token was chosen from NaN; the other rows are as good as ever.

        After a chunk too: all that comes behind it would read what it has written.
        """
        if req.lease is not lease and not self._is_stale(req):
            return []
        if lease.is_spoiled:
            return []  # it was computed from nothing, and is computed again
        error = f"its logits are not numbers (NaN) in step {batch.step}."
        self._spoil([lease])
        return [self._finish(req, FinishReason.ERROR, error=error)]

    def _spoil(self, leases: Sequence[Lease]) -> None:
        """What a step was to write for these is not there; whoever reads it computes again."""
        if self.prefix_cache.unsettled is None:
            return  # nobody reads what has not come back
        self.prefix_cache.spoil(leases)
        for req in list(self.live.values()):
            if req.lease is not None and req.lease.is_spoiled and req.lease not in leases:
                self.retraction.retract(req, "failed prefix")

    def _verified(self, batch: ScheduleBatch, req: Request, drafts: int, accepted: int) -> None:
        """Say what became of a row's drafts (added up in ``checks/drafts.py``)."""
        self.recorder.mark(
            "verified", step=batch.step, rid=req.rid, drafts=drafts, accepted=accepted
        )

    def _deliver(self, req: Request, lease: Lease, token: int) -> Output:
        """A request learns its next token, and may end with it."""
        lease.settled_len = req.known_len
        req.append_host(token)
        if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
            return self._end(req, token)
        return Output(req.rid, token)

    def _came_back(
        self, batch: ScheduleBatch, drained: list[Request], outputs: list[Output]
    ) -> None:
        """Say what grammars have taken, and let those resume of whom nothing is stale now."""
        self.prefix_cache.came_back(batch.step)
        if batch.has_wishes and self.recorder.is_on:
            record_accepted(self.recorder, batch, outputs)
        if self.prefix_cache.shares_outputs:
            self._cache_outputs(batch)
        for req in drained:
            if not req.finished:
                self.waiting_queue.add(req)

    def _cache_prompt(self, batch: ScheduleBatch, at: int) -> None:
        """Share the prompt, or the chunk, that a row has computed, if it still runs.

        Not a chunk, where that is for the next step to do (``PrefixCache.cache_chunk``), or for the
        last of its chunks (``policy/rules.py:chunks_enter``).
        """
        req, lease, rules = batch.reqs[at], batch.leases[at], self.config.in_force
        is_chunk = not batch.delivers[at]
        is_later = is_chunk and rules.enters_cache == "launched"
        if req.lease is not lease or self._has_let_go(lease) or is_later:
            return
        lease.settled_len = batch.starts[at] + len(batch.ids[at])
        if not (is_chunk and rules.chunks_enter == "whole_prompt"):
            self.prefix_cache.cache_unfinished_req(req, lease)

    def _cache_outputs(self, batch: ScheduleBatch) -> None:
        """Share what those have computed who decode, and still run."""
        first = batch.num_extend_reqs
        for req, lease in zip(batch.reqs[first:], batch.leases[first:], strict=True):
            if req.lease is lease and not self._has_let_go(lease):
                self.prefix_cache.cache_unfinished_req(req, lease)
