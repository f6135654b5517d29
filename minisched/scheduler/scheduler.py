"""receive, next_batch, chain, process, abort: every decision of the host, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import (
    FinishReason,
    Lease,
    NoBatch,
    Output,
    Request,
    Result,
    ScheduleBatch,
)
from ..policy import Plan
from ..trace import NullRecorder, Recorder
from . import stale_outputs, verify
from .commit import commit
from .config import SchedulerConfig
from .ending import Endings
from .grammar_manager import process_req_with_grammar
from .logprobs import deliver_logprobs


class SchedulerStuck(RuntimeError):
    """Requests are left, nothing is in flight and nothing can be scheduled: a scheduler bug."""


class Scheduler(Endings):
    """Decides what runs next and what a result means (SGLang ``managers/scheduler.py``).

    ``next_batch`` and ``chain`` *commit*: lengths advance to an upper bound, pages are reserved
    and every lease named is in flight until ``process`` takes the batch back. Every loop, however
    far ahead it runs, calls only these methods.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
        super().__init__(config, recorder or NullRecorder())

    # -- requests come and go ------------------------------------------------------------------

    def receive(self, reqs: Iterable[Request]) -> list[Output]:
        """Queue new requests; one that can never run ends here, with its reason."""
        outputs = []
        for req in reqs:
            problem = self.config.refusal(req)
            if req.rid in self.seen:
                problem = f"request id {req.rid!r} is already in use; each request needs its own."
            problem = problem or process_req_with_grammar(req, self.compile_grammar)
            if problem:
                outputs.append(self._finish(req, FinishReason.ERROR, error=problem))
                continue
            req.order = len(self.seen)
            model_stops = frozenset() if req.params.ignore_eos else self.config.eos_ids
            req.stop_ids = req.params.stop_token_ids | model_stops
            req.num_draft_tokens = self.config.num_draft_tokens
            if req.params.stop and self.listen is not None:
                req.hears_stop_string = self.listen(req.params.stop, self.config.late_stop_strings)
            self.seen.add(req.rid)
            self.live[req.rid] = req
            self.waiting_queue.add(req)
        return outputs

    def abort(self, rid: str) -> list[Output]:
        """End a request wherever it is; an id that is not live is none of our business."""
        req = self.live.get(rid)
        return [self._finish(req, FinishReason.ABORT)] if req else []

    # -- what runs next ------------------------------------------------------------------------

    def next_batch(self) -> ScheduleBatch | NoBatch:
        """Commit the next batch, or say why there is none.

        Raises:
            SchedulerStuck: there are requests, but no result in flight could ever help.
        """
        if self.batches_in_flight == 0 or not self.decode.running_reqs:
            self.retraction.starved = False
        plan = self.run_first.plan()
        if plan.prompts or plan.decodes:
            return commit(self, plan)
        self._give_up_hopeless()
        if not self.live:
            self.new_token_ratio.reset()
            return NoBatch.IDLE
        if not (self.batches_in_flight or self.outbox or self.awaits_others):
            raise SchedulerStuck(f"nothing can run, yet {len(self.live)} requests are not done")
        return NoBatch.WAIT

    def can_chain(self, batch: ScheduleBatch) -> bool:
        """Whether ``batch`` may be committed once more as it is, without scheduling.

        It is a decode batch whose composition is still right: nobody waits, nobody ended, every
        row may run and has room (SGLang ``hardware_backend/mlx/scheduler_mixin.py``).
        """
        if self.waiting_queue or self.prefill.chunked_req:
            return False
        return batch.reqs == self.decode.running_reqs and self.can_repeat(batch)

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Commit the rows of a decode batch once more; None where ``can_chain`` says no."""
        return self.repeat(batch) if self.can_chain(batch) else None

    def can_repeat(self, batch: ScheduleBatch) -> bool:
        """Whether a decode batch may run once more, whoever waits: all of it lives and has room."""
        reqs = batch.reqs
        if batch.num_extend_reqs or batch.anyone_left:
            return False
        has_room = all(req.device_len <= self.config.row_len for req in reqs)
        may_run = all(map(self.decode.may_run, reqs))
        return has_room and may_run and self.retraction.pages_short(reqs) <= 0

    def repeat(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Commit the same rows once more, deaf to all that wait (multi-step scheduling)."""
        return commit(self, Plan([], batch.reqs)) if self.can_repeat(batch) else None

    # -- what a result means -------------------------------------------------------------------

    def process(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """Take a batch back: deliver its tokens, end what is done, free what nobody names.

        Raises:
            RuntimeError: an earlier batch has not come back yet.
        """
        self.batches_in_flight -= 1
        self.leases.came_back(batch.step)
        if self.config.num_draft_tokens and not result.error:
            return self._process_verified(batch, result)
        tokens = [0] * len(batch.reqs) if result.error else result.tokens
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs = []
        columns = zip(batch.reqs, batch.leases, batch.delivers, tokens, strict=True)
        for req, lease, deliver, token in columns:
            if req.lease is not lease:  # ended or retracted while the step was running
                outputs += self._late(batch, req, None if result.error or not deliver else token)
            elif result.error:
                outputs.append(self._finish(req, FinishReason.ERROR, error=result.error))
            elif deliver:
                lease.settled_len = req.known_len  # as ``_deliver``, for every token passes here
                req.append_host(token)
                if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
                    outputs.append(self._end(req, token))
                else:
                    outputs.append(Output(req.rid, token))
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained)
        return outputs

    def _process_verified(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """The same for steps that may carry drafts: a row has several tokens."""
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs: list[Output] = []
        tokens_by_row = verify.accepted_tokens(batch, result)
        drafts_by_row = verify.drafts_by_row(batch, result)
        columns = zip(batch.rows, batch.sample_lens, tokens_by_row, drafts_by_row, strict=True)
        for row, num_samples, tokens, drafts in columns:
            req, lease = row.req, row.lease
            if req.lease is not lease:
                late = tokens if row.deliver else [None]
                for token in late:
                    outputs += self._late(batch, req, token)
            elif row.deliver:
                verify.settle(req, num_samples - 1, len(tokens), drafts)
                for token in tokens:
                    if not req.finished:
                        outputs.append(self._deliver(req, lease, token))
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained)
        return outputs

    def _deliver(self, req: Request, lease: Lease, token: int) -> Output:
        """A request learns its next token, and may end with it."""
        lease.settled_len = req.known_len
        req.append_host(token)
        if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
            return self._end(req, token)
        return Output(req.rid, token)

    def _came_back(self, batch: ScheduleBatch, drained: list[Request]) -> None:
        """Share what a step has computed, and let those resume of whom nothing is stale now."""
        self._cache_prompts(batch)
        for req in drained:
            if not req.finished:
                self.waiting_queue.add(req)

    def _cache_prompts(self, batch: ScheduleBatch) -> None:
        """Share the prompts, or the chunks, that a step has computed, if they still run."""
        for row in batch.rows[: batch.num_extend_reqs] if batch.num_extend_reqs else ():
            if row.req.lease is row.lease:
                row.lease.settled_len = row.end
                self.prefix_cache.cache_unfinished_req(row.req, row.lease)

    def take_outputs(self) -> list[Output]:
        """What ``next_batch`` had to say to clients."""
        outputs, self.outbox = self.outbox, []
        return outputs
