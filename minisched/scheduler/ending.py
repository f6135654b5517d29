"""How requests end: each once, with a reason, and with its memory on its way back."""

from __future__ import annotations

from ..core import FinishReason, Lease, Output, Request, ScheduleBatch
from ..core.sampling_types import shown
from .state import SchedulerState


class Endings(SchedulerState):
    """The part of the scheduler that refuses and ends requests, and hears of rows too late."""

    def _is_taken(self, req: Request) -> str:
        """Why a request of good form can't come in now, or nothing."""
        if req.rid in self.live:
            return f"request id {shown(req.rid)} is already in use; each request needs its own."
        if req.finished:
            return f"request {shown(req.rid)} has run already; a new run needs a new Request."
        return ""

    def _refuse(self, req: Request, problem: str) -> Output:
        """End a request that never came in, and nobody else, whatever id it has.

        One that is sent once more keeps what has come of it.
        """
        reason, other = FinishReason.ERROR, self.live.get(req.name)
        if other is not req and not req.finished:
            req.finish_reason, req.error = reason, problem
        if other is None:
            self.recorder.mark("finish", rid=req.name, reason=reason.value, outputs=0)
        else:
            self.recorder.mark("refused", rid=req.name)
        return Output(req.name, None, reason, problem, namesake=other is not None)

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> Output:
        """End a request, wherever it is."""
        req.finish_reason, req.error = reason, error
        self.recorder.mark("finish", rid=req.rid, reason=reason.value, outputs=len(req.output_ids))
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        if self.live.get(req.rid) is req:
            del self.live[req.rid]
            self.wishing.discard(req.rid)
        lease, req.lease = req.lease, None
        if lease is not None and not self._has_let_go(lease):
            if reason is not FinishReason.ERROR:
                self.prefix_cache.cache_finished_req(req, lease)
            self.leases.close(lease)
        return Output(req.rid, token, reason, error)

    def _end(self, req: Request, token: int) -> Output:
        """A request got its last token; ``error`` is set where its grammar did not allow it."""
        if req.error:
            return self._finish(req, FinishReason.ERROR, token, req.error)
        is_stop = token in req.stop_ids or req.is_complete
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        return self._finish(req, reason, token)

    def _last_is_launched(self, req: Request, lease: Lease) -> None:
        """The step of a request's last token is in flight; mini-sglang frees its memory now."""
        if self.lets_go_early:
            self.prefix_cache.cache_finished_req(req, lease)
            self.decode.remove_req(req)
            self.leases.close(lease)

    def _has_let_go(self, lease: Lease) -> bool:
        """Whether a request gave its memory back before it ended."""
        return self.lets_go_early and lease.is_released

    def _is_stale(self, req: Request) -> bool:
        """Whether output of a lease that is gone still counts for the request."""
        return self.config.keep_stale_outputs and not req.finished

    def _late(
        self, batch: ScheduleBatch, req: Request, lease: Lease, token: int | None, error: str = ""
    ) -> list[Output]:
        """A row whose request had lost its memory by now: stale output, or good for nothing.

        Where stale output counts, the failure of its step does too: the steps behind it, which may
        be on their way, took their tokens from it.
        """
        if error and self._is_stale(req):
            return [self._finish(req, FinishReason.ERROR, error=error)]
        if error or token is None or lease.is_spoiled or not self._is_stale(req):
            self.recorder.mark("wasted row", rid=req.rid, step=batch.step)
            return []
        self.recorder.mark("stale output", rid=req.rid, step=batch.step)
        req.append_stale(token)
        if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
            return [self._end(req, token)]
        return [Output(req.rid, token)]

    def _give_up_hopeless(self) -> None:
        """End a request that is alone and still finds no memory (SGLang ``retract_decode``)."""
        for req in self.retraction.hopeless:
            need = self.allocator.pages_for(req.device_len)
            held = len(req.lease.pages) if req.lease else 0
            left = held + self.leases.available_pages
            error = f"it needs {need} pages of KV memory, but only {left} can be had."
            self.outbox.append(self._finish(req, FinishReason.ERROR, error=error))
        self.retraction.hopeless.clear()
