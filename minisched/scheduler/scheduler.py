"""The scheduler: every decision of the host, and nothing else. No device, no tensors, no clock.

``next_batch`` chooses the requests of the next step and *commits* it: their lengths advance to the
values after the step, pages are reserved, and the batch keeps the state of this moment. So the
following step can be chosen before the tokens of this one are known, and every loop calls the same
few methods, however far it runs ahead. ``process`` handles the result of a batch: each request
learns its token, and may end with it. ``receive`` and ``abort`` begin and end requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core import FinishReason, ForwardMode, NoBatch, Request, Result, ScheduleBatch
from ..core.batch import Output, Outputs
from ..core.feature import Feature
from ..memory import LeasePool, RadixCache
from ..policy import DecodeManager, Plan, PrefillManager, Retraction
from ..policy.admission import Work, mix_with_running
from ..trace import NullRecorder, Recorder
from .config import SchedulerConfig
from .input_processor import InputProcessor
from .output_processor import OutputProcessor
from .wiring import make_memory, make_policies

DECODE = ForwardMode.DECODE  # looked up once, because the look-up of an enum's member takes time


class SchedulerStuck(RuntimeError):
    """Requests are left, nothing is in flight and nothing can be scheduled: a scheduler bug."""


class Scheduler:
    """Decides what runs next and what a result means (SGLang ``managers/scheduler.py``).

    It owns memory and policies (``wiring.py``). A request without memory is in ``waiting_queue``, a
    request that decodes in ``running_batch``.
    """

    awaits_others = False  # something from outside may help the waiting requests (``pd.py``)

    def __init__(
        self,
        config: SchedulerConfig,
        recorder: Recorder | None = None,
        features: Iterable[Feature] = (),
    ) -> None:
        self.config = config
        self.recorder = recorder or NullRecorder()
        self.leases: LeasePool = make_memory(config, self.recorder)
        self.allocator, self.table = self.leases.allocator, self.leases.table
        self.page_cache = self.leases.cache
        self.tree = self.page_cache if isinstance(self.page_cache, RadixCache) else None
        policies = make_policies(config, self.leases, self.recorder)
        self.decode: DecodeManager = policies.decode
        self.prefill: PrefillManager = policies.prefill
        self.retraction: Retraction = policies.retraction
        self.new_token_ratio, self.unified = policies.new_token_ratio, policies.unified
        self.waiting_queue, self.prefix_cache = self.prefill.waiting_queue, self.prefill.cache
        self.eviction = self.retraction.eviction
        self.decodes_first = policies.decodes_first
        self.lets_go_early = policies.lets_go_early
        self.live: dict[str, Request] = {}  # received and not ended
        self.input_processor = InputProcessor(config, features, self.live, self.recorder)
        self.output_processor = OutputProcessor(
            config, self.live, self.prefix_cache, self.retraction, self.lets_go_early,
            self._finish, self._hear,
        )  # fmt: skip
        # Three parts of a step that a feature may replace:
        self.batch_class: type[ScheduleBatch] = ScheduleBatch
        self.add_decodes, self.deliver = self._add_decodes, self._deliver
        self.shares_early = self.prefix_cache.shares_early
        self.outputs = Outputs()  # outputs to deliver
        self.on_commit: Callable[[ScheduleBatch], None] | None = None  # called for each step
        for feature in self.input_processor.features:
            feature.attach(self)

    @property
    def batches_in_flight(self) -> int:
        """Return the number of steps without a processed result."""
        return self.leases.launched_step - self.leases.returned_step

    @property
    def running_batch(self) -> list[Request]:
        """Return the requests that decode, in the order in which they would form a batch."""
        return list(self.decode.running_reqs)

    @property
    def num_used_tokens(self) -> int:
        """Return the KV slots that can neither be allocated nor evicted."""
        used = self.allocator.num_pages - self.leases.available_pages
        return used * self.allocator.page_size

    # -- requests enter, and are aborted -----------------------------------------------------------

    def receive(self, reqs: Iterable[Request]) -> None:
        """Queue new requests, or refuse them.

        An id is in use until its request ends. Then a new request may have it, even while a step in
        flight has a row of the old one.
        """
        for req in reqs:
            if problem := self.input_processor.accept(req):
                self._refuse(req, problem)
            else:
                self.live[req.rid] = req
                self.waiting_queue.add(req)

    def _refuse(self, req: Request, problem: str) -> None:
        """End a request that did not enter."""
        self.outputs.add(self.input_processor.refuse(req, problem))

    def abort(self, rid: str, error: str = "") -> None:
        """End the live request that has this id, if there is one."""
        if (req := self.live.get(rid)) is not None:
            self._finish(req, FinishReason.ABORT, error=error)

    # -- what runs next ----------------------------------------------------------------------------

    def next_batch(self) -> ScheduleBatch | NoBatch:
        """Commit the next batch, or return why there is none.

        Raises:
            SchedulerStuck: there are requests, but nothing in flight that could help them.
        """
        if self.retraction.starved and not (self.batches_in_flight and self.decode.running_reqs):
            self.retraction.starved = False
        if (chunked := self.prefill.chunked_req) is not None:
            self.prefix_cache.cache_chunk(chunked)
        prompts, decodes = self.plan()
        if decodes or prompts:
            return self.commit(prompts, decodes)
        if self.retraction.hopeless:
            self.output_processor.give_up_hopeless()
        if not self.live:
            if not self.batches_in_flight:
                self.new_token_ratio.reset()
            return NoBatch.IDLE
        if not (self.batches_in_flight or self.outputs or self.awaits_others):
            left = len(self.live)
            stuck = "1 request is" if left == 1 else f"{left} requests are"
            raise SchedulerStuck(f"nothing can run, yet {stuck} not done")
        return NoBatch.WAIT

    def plan(self) -> Plan:
        """Choose prompts and decodes of the next step by the rule ``run_first``; retract if needed.

        Lengths do not advance yet, but an admitted request has its memory. SGLang
        (``get_next_batch_to_run``) runs a prompt whenever one can be admitted, MindIE under memory
        pressure only if no request can decode (``DecidePDPriority``). vLLM has one budget for both.
        """
        if self.unified is not None:
            return self.unified.schedule()
        queue, num_retractions = self.waiting_queue, self.retraction.num_retractions
        prompts: Work = []
        decodes = self.update_running_batch() if self.decodes_first else []
        if decodes:
            self.prefill.skip("those who decode run first")
        elif self.retraction.starved:
            self.prefill.skip("a decode step waits for memory that is on its way back")
        elif self.prefill.chunked_req or (
            (queue.waiting or queue.aside) and self.prefill.may_start
        ):
            prompts, decodes = self.get_new_batch_prefill()
        if not (prompts or decodes):
            decodes = self.update_running_batch()
        if not (prompts or decodes) and self.retraction.num_retractions > num_retractions:
            return self.plan()  # the retracted requests left room for others
        return prompts, decodes

    def get_new_batch_prefill(self) -> tuple[Work, list[Request]]:
        """Return the prompts that can be admitted, with decodes if batches are mixed."""
        running, is_mixed = list(self.decode.running_reqs), self.config.enable_mixed_chunk
        mixed = self.decode.schedule_next_batch() if is_mixed else []
        prompts = self.prefill.schedule_next_batch(
            running,
            self.new_token_ratio.current,
            len(running) if is_mixed else 0,  # even those that can't decode now
            lambda victim: self.retraction.retract(victim, "priority"),
        )
        still_there = [req for req in mixed if req.lease is not None] if prompts else []
        decodes = mix_with_running(prompts, still_there, self.leases)
        if decodes:
            self.prefill.mark_open()
        elif still_there:
            self.recorder.mark("not mixed", running=len(still_there))
        return prompts, decodes

    def update_running_batch(self) -> list[Request]:
        """Return the requests that decode now; retract some of them if memory is short."""
        reqs = self.decode.schedule_next_batch()
        if self.leases.pages_short(reqs) > 0:
            return self.retraction.make_room(reqs)
        if reqs:
            self.new_token_ratio.on_decode()
            self.retraction.starved = False
        return reqs

    def take_outputs(self) -> Outputs:
        """Return the outputs since the last call."""
        outputs, self.outputs = self.outputs, Outputs()
        return outputs

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Commit the rows of a decode batch once more, without scheduling (``repeat.py``)."""
        return self.commit([], batch.reqs)

    # -- a plan becomes a batch, and its step is in flight -----------------------------------------

    def commit(self, prompts: Work, decodes: list[Request]) -> ScheduleBatch:
        """Advance lengths, reserve pages, and freeze what is true now."""
        step = self.leases.launched_step = self.leases.launched_step + 1
        used = self.input_processor.in_use
        batch = self.batch_class(step, DECODE, len(prompts), [], [], [], [], {}, None, used)
        if prompts:
            batch.mode = ForwardMode.MIXED if decodes else ForwardMode.EXTEND
            self._add_prompts(batch, prompts, bool(decodes))
        self.add_decodes(batch, decodes)
        if self.recorder.is_on:  # rows of the table, and the row of a prompt in chunks
            rows, chunked = tuple(lease.row for lease in batch.leases), batch.chunked_req
            more = {"chunks": (rows[batch.reqs.index(chunked)],)} if chunked else {}
            self.recorder.mark("commit", step=step, rows=rows, **more)
        for feature in batch.features:
            feature.on_commit(batch)
        if self.on_commit is not None:
            self.on_commit(batch)
        return batch

    def _add_prompts(self, batch: ScheduleBatch, prompts: Work, mixed: bool) -> None:
        """Advance each by its tokens in the plan. After its last chunk a request joins the set."""
        self.eviction.before_prompts(self.leases, [extend_len for _, extend_len in prompts])
        done = []
        for index, (req, extend_len) in enumerate(prompts):
            lease, start, end = req.lease, req.computed_len, req.computed_len + extend_len
            assert lease is not None
            batch.new_pages[index] = self.leases.extend(lease, end)
            self.prefix_cache.cache_scheduled_req(req, lease, end, batch.step)
            batch.reqs.append(req)
            batch.leases.append(lease)
            batch.starts.append(start)
            batch.ids.append(req.tokens(start, end))
            lease.last_step = batch.step
            req.computed_len = end
            if end < req.device_len:
                batch.chunked_req = req
            else:
                req.device_len += 1  # the token that this step samples will exist
                done.append(req)
        self.decode.add_reqs(done, mixed=mixed and self.config.enable_mixed_chunk)

    def _add_decodes(self, batch: ScheduleBatch, reqs: list[Request]) -> None:
        """Advance each by one position."""
        page_size, step = self.allocator.page_size, batch.step
        leases, starts, ids = batch.leases, batch.starts, batch.ids
        if len(reqs) > len(self.allocator.free_pages):
            self.eviction.before_decodes(self.leases, len(reqs))
        for req in reqs:
            lease, start, end = req.lease, req.computed_len, req.device_len
            assert lease is not None
            if lease.sent_pages * page_size < end:
                batch.new_pages[len(leases)] = self.leases.extend(lease, end)
            lease.last_step = step
            leases.append(lease)
            starts.append(start)
            ids.append((req.output_ids[-1] if start < req.known_len else None,))
            req.computed_len, req.device_len = end, end + 1
        batch.reqs += reqs

    # -- the result of a step ----------------------------------------------------------------------

    def process(self, batch: ScheduleBatch, result: Result) -> Outputs:
        """Deliver the tokens of a step, end the requests that are done, and release memory.

        Raises:
            RuntimeError: an earlier step has no processed result yet.
        """
        self.leases.came_back(batch.step)
        outputs = self.outputs
        if result.error:
            self.output_processor.spoil(batch.leases)
        for feature in batch.features:
            feature.on_return(batch)
        if result.error:
            self.output_processor.fail(batch, result.error)
        else:
            self.deliver(batch, result)
        for feature in batch.features:
            feature.on_result(batch, result, outputs)
        if self.shares_early:
            self.output_processor.came_back(batch)
        self.outputs = Outputs()
        return outputs

    def _deliver(self, batch: ScheduleBatch, result: Result) -> None:
        """Let each request learn its token."""
        rows, outputs, lets_go_early = self.output_processor, self.outputs, self.lets_go_early
        rids, tokens, chunked = outputs.rids, outputs.tokens, batch.chunked_req
        for at in sorted(result.nan_samples) if result.nan_samples else ():
            rows.end_if_nan(batch, batch.reqs[at], batch.leases[at])
        prompts_left = batch.num_extend_reqs  # they come first
        for req, lease, token in zip(batch.reqs, batch.leases, result.tokens, strict=True):
            if req.lease is not lease:  # ended or retracted while the step was running
                rows.late(batch, req, lease, None if req is chunked else token)
            elif req is not chunked:
                lease.settled_len = req.known_len  # the KV up to there is written
                if reason := req.append_host(token):
                    self._finish(req, reason, token, req.error)
                else:
                    rids.append(req.rid)
                    tokens.append(token)
                    if lets_go_early and req.device_len == req.max_device_len:
                        rows.last_is_launched(req, lease, self.decode.remove_req)
            if prompts_left:
                rows.cache_prompt(batch, batch.num_extend_reqs - prompts_left)
                prompts_left -= 1

    def _hear(self, req: Request, token: int) -> None:
        """Let a request learn a token, maybe its last."""
        if reason := req.append_host(token):
            self._finish(req, reason, token, req.error)
        else:
            self.outputs.add(Output(req.rid, token))

    # -- the end of a request: once, with a reason; its lease is closed ----------------------------

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> None:
        """End a request that waits or runs."""
        req.finish_reason, req.error = reason, error
        self.recorder.mark("finish", rid=req.rid, reason=reason.value, outputs=len(req.output_ids))
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        if self.live.get(req.rid) is req:
            del self.live[req.rid]
            self.input_processor.leave(req)
        lease, req.lease = req.lease, None
        if lease is not None and not (self.lets_go_early and lease.is_released):
            if reason is not FinishReason.ERROR:
                self.prefix_cache.cache_finished_req(req, lease)
            self.leases.close(lease)
        self.outputs.add(Output(req.rid, token, reason, error))
