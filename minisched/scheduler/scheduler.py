"""receive, next_batch, chain, process, abort: every decision of the host, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core import (
    Batch,
    ChunkedReq,
    FinishReason,
    ForwardMode,
    NoBatch,
    Output,
    Request,
    Result,
    Row,
)
from ..memory import LeasePool, PageAllocator, ReqToTokenPool
from ..policy import DecodeManager, PrefillManager, Retraction
from ..trace import NullRecorder, Recorder
from .config import SchedulerConfig


class SchedulerStuck(RuntimeError):
    """Requests are left, nothing is in flight and nothing can be scheduled: a scheduler bug."""


class Scheduler:
    """Decides what runs next and what a result means (SGLang ``managers/scheduler.py``).

    ``next_batch`` and ``chain`` *commit*: lengths advance to an upper bound, pages are reserved
    and every lease named is in flight until ``process`` takes the batch back. Every loop, however
    far ahead it runs, calls only these methods.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
        self.config = config
        self.recorder = recorder or NullRecorder()
        self.allocator = PageAllocator(config.num_pages, config.page_size)
        self.table = ReqToTokenPool(config.max_running_requests)
        self.leases = LeasePool(self.allocator, self.table)
        self.decode = DecodeManager(
            self.allocator, config.run_ahead, config.foresee_length, config.new_token_ratio
        )
        self.prefill = PrefillManager(config.chunk_size, self.decode, self.allocator, self.table)
        self.retraction = Retraction(self.decode, self.prefill, self.leases, self.recorder)
        self.live: dict[str, Request] = {}  # received and not ended
        self.seen: set[str] = set()
        self.batches_in_flight = 0
        self.step = 0

    # -- requests come and go ------------------------------------------------------------------

    def receive(self, reqs: Iterable[Request]) -> list[Output]:
        """Queue new requests; one that can never run ends here, with its reason."""
        outputs = []
        for req in reqs:
            problem = self.config.refusal(req)
            if req.rid in self.seen:
                problem = f"request id {req.rid!r} is already in use; each request needs its own."
            if problem:
                outputs.append(self._finish(req, FinishReason.ERROR, error=problem))
                continue
            req.order = len(self.seen)
            self.seen.add(req.rid)
            self.live[req.rid] = req
            self.prefill.pending_list.append(req)
        return outputs

    def abort(self, rid: str) -> list[Output]:
        """End a request wherever it is; an id that is not live is none of our business."""
        req = self.live.get(rid)
        return [self._finish(req, FinishReason.ABORT)] if req else []

    # -- what runs next ------------------------------------------------------------------------

    def next_batch(self) -> Batch | NoBatch:
        """Commit the next batch, prompts first; or say why there is none.

        Raises:
            SchedulerStuck: there are requests, but no result in flight could ever help.
        """
        if self.batches_in_flight == 0 or not self.decode.running_reqs:
            self.retraction.starved = False
        if not self.retraction.starved and (admitted := self.prefill.schedule_next_batch()):
            return self._commit(ForwardMode.EXTEND, admitted)
        if running := self.retraction.make_room(self.decode.schedule_next_batch()):
            return self._commit(ForwardMode.DECODE, [(req, 1) for req in running])
        if not self.live:
            return NoBatch.IDLE
        if self.batches_in_flight == 0:
            raise SchedulerStuck(f"nothing can run, yet {len(self.live)} requests are not done")
        return NoBatch.WAIT

    def can_chain(self, batch: Batch) -> bool:
        """Whether ``batch`` may be committed once more as it is, without scheduling.

        It is a decode batch whose composition is still right: nobody waits, nobody ended, every
        row may run and has room (SGLang ``hardware_backend/mlx/scheduler_mixin.py``).
        """
        reqs = [row.req for row in batch.rows]
        if batch.mode is not ForwardMode.DECODE or self.prefill.pending_list:
            return False
        if self.prefill.chunked_req or set(reqs) != self.decode.running_reqs:
            return False
        return all(map(self.decode.may_run, reqs)) and self.retraction.pages_short(reqs) <= 0

    def chain(self, batch: Batch) -> Batch | None:
        """Commit the rows of a decode batch once more; None where ``can_chain`` says no."""
        if not self.can_chain(batch):
            return None
        return self._commit(ForwardMode.DECODE, [(row.req, 1) for row in batch.rows])

    def _commit(self, mode: ForwardMode, work: Sequence[tuple[Request, int]]) -> Batch:
        self.step += 1
        self.batches_in_flight += 1
        batch = Batch(self.step, mode, tuple(self._row(req, length) for req, length in work))
        self.decode.filter_reqs(
            row.req if row.deliver else ChunkedReq(row.req) for row in batch.rows
        )
        return batch

    def _row(self, req: Request, extend_len: int) -> Row:
        """Advance one request by ``extend_len`` positions and freeze what is true now."""
        assert req.lease is not None
        start, end = req.computed_len, req.computed_len + extend_len
        slots_at, new_slots = self.leases.extend(req.lease, end)
        req.lease.in_flight += 1
        is_last = end == req.device_len
        ids = tuple(req.token_at(position) for position in range(start, end))
        if is_last:
            req.complete_one()
        else:
            req.computed_len = end
        return Row(req, req.lease, start, ids, tuple(new_slots), slots_at, deliver=is_last)

    # -- what a result means -------------------------------------------------------------------

    def process(self, batch: Batch, result: Result) -> list[Output]:
        """Take a batch back: deliver its tokens, end what is done, free what nobody names."""
        self.batches_in_flight -= 1
        outputs = []
        for index, row in enumerate(batch.rows):
            self.leases.came_back(row.lease)
            if row.req.lease is not row.lease:  # ended or retracted while the step was running
                self.recorder.mark("wasted row", rid=row.req.rid, step=batch.step)
            elif result.error:
                outputs.append(self._finish(row.req, FinishReason.ERROR, error=result.error))
            elif row.deliver:
                outputs.append(self._deliver(row.req, result.tokens[index]))
        return outputs

    def _deliver(self, req: Request, token: int) -> Output:
        req.append_host(token)
        stops = req.params.stop_token_ids
        if token in stops or (token in self.config.eos_ids and not req.params.ignore_eos):
            return self._finish(req, FinishReason.STOP, token)
        if len(req.output_ids) >= req.params.max_new_tokens:
            return self._finish(req, FinishReason.LENGTH, token)
        return Output(req.rid, token)

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> Output:
        req.finish_reason, req.error = reason, error
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        if self.live.get(req.rid) is req:
            del self.live[req.rid]
        self._close(req)
        return Output(req.rid, token, reason, error)

    def _close(self, req: Request) -> None:
        lease, req.lease = req.lease, None
        if lease is not None:
            self.leases.close(lease)
