"""Rows that are not plain decodes when their result arrives: late, failed, or to be shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core import FinishReason, Lease, Request, ScheduleBatch
from ..memory import PrefixCache
from ..policy import Retraction
from .config import SchedulerConfig

# -- Rows of requests that have lost their memory, and rows with NaN logits ------------------------


@dataclass
class OutputProcessor:
    """Handles the rows of a result, besides their tokens (SGLang ``scheduler_output_processor``).

    ``finish`` ends a request; ``hear`` adds a token to it.
    """

    config: SchedulerConfig
    live: dict[str, Request]
    prefix_cache: PrefixCache
    retraction: Retraction
    lets_go_early: bool  # a lease may be released before its request ends
    finish: Callable[..., None]
    hear: Callable[[Request, int], None]

    def came_back(self, batch: ScheduleBatch) -> None:
        """Share the pages of a step, where the cache shares them before their request ends."""
        self.prefix_cache.came_back(batch.step)
        if self.prefix_cache.shares_outputs:
            self.cache_outputs(batch)

    def give_up_hopeless(self) -> None:
        """End a request that is alone and still finds no memory (SGLang ``retract_decode``)."""
        leases = self.retraction.leases
        for req in self.retraction.hopeless:
            need = leases.allocator.pages_for(req.device_len)
            left = leases.available_pages + (len(req.lease.pages) if req.lease else 0)
            error = f"it needs {need} pages of KV memory, but only {left} are available."
            self.finish(req, FinishReason.ERROR, error=error)
        self.retraction.hopeless.clear()

    def late(self, batch: ScheduleBatch, req: Request, lease: Lease, token: int | None) -> None:
        """Deliver or drop the result of a request that no longer holds its lease."""
        recorder = self.retraction.recorder
        if token is None or lease.is_spoiled or not self.is_stale(req):
            recorder.mark("wasted row", rid=req.rid, step=batch.step)
        else:
            recorder.mark("stale output", rid=req.rid, step=batch.step)
            req.device_len += 1  # a placeholder for it is gone with the lease
            self.hear(req, token)

    def fail(self, batch: ScheduleBatch, error: str) -> None:
        """End every request in a failed step, except those that already left it.

        Where late tokens count, the failure counts too: the next steps took their tokens from it.
        """
        for req, lease in zip(batch.reqs, batch.leases, strict=True):
            if req.lease is lease or self.is_stale(req):
                self.finish(req, FinishReason.ERROR, error=error)
            else:
                self.retraction.recorder.mark("wasted row", rid=req.rid, step=batch.step)

    def is_stale(self, req: Request) -> bool:
        """Return whether output of a lost lease still counts for the request."""
        return not req.finished and any(part.keeps_late for part in req.parts)

    def end_if_nan(self, batch: ScheduleBatch, req: Request, lease: Lease) -> None:
        """End a request with a token sampled from NaN; the other rows are valid.

        After a chunk too: all later positions would read what it has written.
        """
        if req.lease is not lease and not self.is_stale(req):
            return
        if lease.is_spoiled:
            return  # it was computed from nothing, and is computed again
        error = f"its logits are not numbers (NaN) in step {batch.step}."
        self.spoil([lease])
        self.finish(req, FinishReason.ERROR, error=error)

    def spoil(self, leases: Sequence[Lease]) -> None:
        """Compute again all requests that may have read pages of a failed step.

        These began with a cached prefix, and are in this step or in a later one.
        """
        if not self.prefix_cache.shares_planned:
            return  # no request reads pages of a step in flight
        failed = self.retraction.leases.returned_step
        held = {lease: req for req in self.live.values() if (lease := req.lease)}
        readers = {
            lease: req
            for lease, req in held.items()
            if req.admission.hit_len and lease.last_step >= failed
        }
        self.prefix_cache.spoil([*leases, *readers], held)
        for lease, req in readers.items():
            if lease not in leases:
                self.retraction.retract(req, "failed prefix")

    def last_is_launched(
        self, req: Request, lease: Lease, leaves: Callable[[Request], None]
    ) -> None:
        """Close the lease of a request after the launch of its last token, as mini-sglang does.

        With more than two steps in flight, several tokens arrive after that launch.
        """
        if lease.is_released:
            return
        self.retraction.recorder.mark("last launch", rid=req.rid)
        self.prefix_cache.cache_finished_req(req, lease)
        leaves(req)
        self.retraction.leases.close(lease)

    def cache_prompt(self, batch: ScheduleBatch, at: int) -> None:
        """Share the prompt, or the chunk, that a row has computed, if its request still runs."""
        req, lease = batch.reqs[at], batch.leases[at]
        if self._still_runs(req, lease):
            end = batch.starts[at] + len(batch.ids[at])
            self.prefix_cache.cache_prompt(req, lease, end, req is batch.chunked_req)

    def cache_outputs(self, batch: ScheduleBatch) -> None:
        """Share the pages of the decoding rows, if their requests still run."""
        first = batch.num_extend_reqs
        for req, lease in zip(batch.reqs[first:], batch.leases[first:], strict=True):
            if self._still_runs(req, lease):
                self.prefix_cache.cache_unfinished_req(req, lease)

    def _still_runs(self, req: Request, lease: Lease) -> bool:
        return req.lease is lease and not (self.lets_go_early and lease.is_released)
