"""receive, next_batch, chain, process, abort: every decision of the host, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import (
    FinishReason,
    NoBatch,
    Output,
    Request,
    ScheduleBatch,
)
from ..policy import Plan
from ..trace import NullRecorder, Recorder
from .commit import commit
from .config import SchedulerConfig
from .grammar_manager import process_req_with_grammar, record_grammar
from .results import Results


class SchedulerStuck(RuntimeError):
    """Requests are left, nothing is in flight and nothing can be scheduled: a scheduler bug."""


class Scheduler(Results):
    """Decides what runs next and what a result means (SGLang ``managers/scheduler.py``).

    ``next_batch`` and ``chain`` *commit*: lengths advance to an upper bound, pages are reserved
    and every lease named is in flight until ``process`` takes the batch back. Every loop, however
    far ahead it runs, calls only these methods.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
        super().__init__(config, recorder or NullRecorder())

    # -- requests come and go ------------------------------------------------------------------

    def receive(self, reqs: Iterable[Request]) -> list[Output]:
        """Queue new requests; one that can never run ends here, with its reason.

        A refusal is that request's alone. An id is in use from here to its request's end; then it
        may come back, also while a step in flight still has a row for the request that has ended.
        """
        outputs = []
        for req in reqs:
            problem = (
                self.config.refusal(req)
                or self._is_taken(req)
                or process_req_with_grammar(req, self.compile_grammar)
            )
            if problem:
                outputs.append(self._refuse(req, problem))
                continue
            record_grammar(self.recorder, req)
            self.num_received += 1
            model_stops = frozenset() if req.params.ignore_eos else self.config.eos_ids
            req.stop_ids = req.params.stop_token_ids | model_stops
            req.num_draft_tokens = self.config.num_draft_tokens
            if req.params.stop and self.listen is not None:
                req.hears_stop_string = self.listen(req.params.stop, self.config.late_stop_strings)
            self.live[req.rid] = req
            if req.params.has_wishes:
                self.wishing.add(req.rid)
            self.waiting_queue.add(req)
        return outputs

    def abort(self, rid: str, error: str = "") -> list[Output]:
        """End a request wherever it is; an id that is not live is none of our business."""
        req = self.live.get(rid)
        return [self._finish(req, FinishReason.ABORT, error=error)] if req else []

    # -- what runs next ------------------------------------------------------------------------

    def next_batch(self) -> ScheduleBatch | NoBatch:
        """Commit the next batch, or say why there is none.

        Raises:
            SchedulerStuck: there are requests, but no result in flight could ever help.
        """
        if self.batches_in_flight == 0 or not self.decode.running_reqs:
            self.retraction.starved = False
        if (chunked := self.prefill.chunked_req) is not None:
            self.prefix_cache.cache_chunk(chunked.req)
        plan = self.run_first.plan()
        if plan.prompts or plan.decodes:
            return commit(self, plan)
        self._give_up_hopeless()
        if not self.live:
            if not self.batches_in_flight:
                self.new_token_ratio.reset()
            return NoBatch.IDLE
        if not (self.batches_in_flight or self.outbox or self.awaits_others):
            left = len(self.live)
            stuck = "1 request is" if left == 1 else f"{left} requests are"
            raise SchedulerStuck(f"nothing can run, yet {stuck} not done")
        return NoBatch.WAIT

    def can_chain(self, batch: ScheduleBatch) -> bool:
        """Whether ``batch`` may be committed once more as it is, without scheduling.

        It is a decode batch whose composition is still right: nobody waits, nobody ended, every
        row may run and has room (SGLang ``hardware_backend/mlx/scheduler_mixin.py``).
        """
        if self.waiting_queue or self.prefill.chunked_req:
            return False
        return batch.reqs == self.decode.running_reqs and self.can_repeat(batch)

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Commit the rows of a decode batch once more, of which ``can_chain`` has said yes."""
        return commit(self, Plan([], batch.reqs))

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

    def take_outputs(self) -> list[Output]:
        """What ``next_batch`` had to say to clients."""
        outputs, self.outbox = self.outbox, []
        return outputs
