"""receive, next_batch, chain, process, abort: every decision of the host, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core import (
    Batch,
    ChunkedReq,
    FinishReason,
    ForwardMode,
    Lease,
    NoBatch,
    Output,
    Request,
    Result,
    Row,
)
from ..memory import PageAllocator, ReqToTokenPool
from ..policy import DecodeManager, PrefillManager, choose_victim
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
        self.decode = DecodeManager(
            self.allocator, config.run_ahead, config.foresee_length, config.new_token_ratio
        )
        self.prefill = PrefillManager(config.chunk_size, self.decode, self.allocator, self.table)
        self.live: dict[str, Request] = {}  # received and not ended
        self.seen: set[str] = set()
        self.batches_in_flight = 0
        self.returning: list[Lease] = []  # closed, but a launched batch still names them
        self.starved = False  # a retraction made room; admission waits until it was used
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
            self.starved = False
        if not self.starved and (admitted := self.prefill.schedule_next_batch()):
            return self._commit(ForwardMode.EXTEND, admitted)
        if running := self._make_room(self.decode.schedule_next_batch()):
            return self._commit(ForwardMode.DECODE, [(req, 1) for req in running])
        if not self.live:
            return NoBatch.IDLE
        if self.batches_in_flight == 0:
            raise SchedulerStuck(f"nothing can run, yet {len(self.live)} requests are not done")
        return NoBatch.WAIT

    def chain(self, batch: Batch) -> Batch | None:
        """Commit the rows of a decode batch once more, without scheduling; None if that can't be.

        The composition must still be right: nobody waits, nobody ended, every row may run and
        has room (SGLang ``hardware_backend/mlx/scheduler_mixin.py``, chain conditions).
        """
        reqs = [row.req for row in batch.rows]
        if batch.mode is not ForwardMode.DECODE or self.prefill.pending_list:
            return None
        if self.prefill.chunked_req or set(reqs) != self.decode.running_reqs:
            return None
        if not all(map(self.decode.may_run, reqs)):
            return None
        if self._pages_short(reqs) > 0:
            return None
        return self._commit(ForwardMode.DECODE, [(req, 1) for req in reqs])

    def _make_room(self, reqs: list[Request]) -> list[Request]:
        """Retract until the next step of ``reqs`` has pages; empty if it has to wait for them."""
        while self._pages_short(reqs) > 0:
            chunked = self.prefill.chunked_req
            nobody_else = len(self.decode.running_reqs) + bool(chunked) <= 1
            coming_back = sum(len(lease.pages) for lease in self.returning)
            if nobody_else or self._pages_short(reqs) <= coming_back:
                self.starved = True
                return []
            victim = chunked.req if chunked else choose_victim(self.decode.running_reqs)
            self._retract(victim)
            reqs = [req for req in reqs if req is not victim]
        self.starved = self.starved and not reqs
        return reqs

    def _pages_short(self, reqs: Sequence[Request]) -> int:
        """Pages that one more position for each of ``reqs`` needs beyond those that are free."""
        pages_for = self.allocator.pages_for
        need = sum(pages_for(req.device_len) - len(req.lease.pages) for req in reqs if req.lease)
        return need - self.allocator.available_pages

    def _retract(self, req: Request) -> None:
        self.recorder.mark("retraction", rid=req.rid)
        self._close(req)
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        req.restart()
        self.prefill.pending_list.insert(0, req)

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
        slots_at = len(self.table.req_to_token[req.lease.row])
        new_slots = self.allocator.extend(req.lease, end)
        self.table.write(req.lease.row, new_slots)
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
            row.lease.in_flight -= 1
            self._release(row.lease)
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
        """The request lets go of its lease; memory goes back once no launched batch names it."""
        lease, req.lease = req.lease, None
        if lease is not None:
            lease.is_open = False
            self.returning.append(lease)
            self._release(lease)

    def _release(self, lease: Lease) -> None:
        if lease.is_released:
            self.returning.remove(lease)
            self.allocator.free(lease)
            self.table.free(lease)
