"""How requests end: each once, with a reason, and with its memory on its way back."""

from __future__ import annotations

from ..core import FinishReason, Output, Request, ScheduleBatch
from .state import SchedulerState


class Endings(SchedulerState):
    """The part of the scheduler that ends requests, and hears of rows that came too late."""

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
        if lease is not None:
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

    def _is_stale(self, req: Request) -> bool:
        """Whether output of a lease that is gone still counts for the request."""
        return self.config.keep_stale_outputs and not req.finished

    def _late(
        self, batch: ScheduleBatch, req: Request, token: int | None, error: str = ""
    ) -> list[Output]:
        """A row whose request had lost its memory by now: stale output, or good for nothing.

        Where stale output counts, the failure of its step does too: the steps behind it, which may
        be on their way, took their tokens from it.
        """
        if error and self._is_stale(req):
            return [self._finish(req, FinishReason.ERROR, error=error)]
        if error or token is None or not self._is_stale(req):
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
