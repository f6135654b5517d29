"""The two schedulers of PD separation: one computes prompts, the other one decodes.

They do not know each other. ``loops/pd.py`` has a device for each, and describes the way of a
request through both. A transfer reads pages on one side and writes pages on the other, so they must
stay even if their request ends. The transfer *holds* the lease: it is released when it is closed,
no step in flight refers to it, and no transfer holds it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from ..core import FinishReason, Lease, Logprobs, Request
from ..core.feature import Feature
from ..trace import Recorder
from .config import SchedulerConfig
from .scheduler import Scheduler

# -- Both sides: memory stays while KV is on its way -----------------------------------------------


class TransferScheduler(Scheduler):
    """A scheduler with leases that a transfer may hold."""

    def __init__(
        self,
        config: SchedulerConfig,
        recorder: Recorder | None = None,
        features: Iterable[Feature] = (),
    ) -> None:
        super().__init__(config, recorder, features)
        self.num_transfers = Counter[Lease]()  # copies of its KV that have not ended
        self.leases.is_held = self.num_transfers.__contains__

    def hold(self, lease: Lease) -> None:
        """Keep the pages of a lease for a transfer, which reads or writes them."""
        self.num_transfers[lease] += 1
        self.recorder.mark("row hold", row=lease.row, rid=lease.rid)

    def let_go(self, lease: Lease) -> None:
        """End a transfer of a lease."""
        self.num_transfers[lease] -= 1
        if not self.num_transfers[lease]:
            del self.num_transfers[lease]
        self.recorder.mark("row let go", row=lease.row, rid=lease.rid)
        self.leases.free_retired()
        if lease in self.leases.returning:
            self.leases.release(lease)


# -- The prefill side: prompts in, first tokens and KV out -----------------------------------------


class Prefilled(NamedTuple):
    """A request that the prefill side has ended. ``token`` None: it failed, or was aborted."""

    req: Request
    lease: Lease | None  # held, if there is a token
    token: int | None
    error: str


class PrefillScheduler(TransferScheduler):
    """SGLang ``disaggregation/prefill.py``.

    Its requests ask for one token (as the original's do), so each ends with the first. Its lease
    is closed then, and held until the KV has been copied. A prompt waits in ``bootstrap_queue``
    until the decode side has reserved pages for it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        recorder: Recorder | None = None,
        features: Iterable[Feature] = (),
    ) -> None:
        super().__init__(config, recorder, features)
        self.bootstrap_queue: dict[str, Request] = {}
        self.done: deque[Prefilled] = deque()  # ended, and not sent yet

    @property
    def awaits_others(self) -> bool:  # type: ignore[override]
        """Return whether a reservation or the end of a transfer may help."""
        return bool(self.bootstrap_queue or self.leases.returning or self.leases.retired.entries)

    def receive(self, reqs: Iterable[Request]) -> None:
        """Queue new requests; they can't run yet."""
        reqs = list(reqs)
        super().receive(reqs)
        for req in reqs:
            if req in self.waiting_queue:
                self.waiting_queue.remove(req)
                self.bootstrap_queue[req.rid] = req

    def bootstrapped(self, rid: str) -> None:
        """Queue a request that has pages on the decode side (SGLang ``pop_bootstrapped``)."""
        req = self.bootstrap_queue.pop(rid, None)
        if req is not None:  # otherwise it has ended
            self.waiting_queue.add(req)

    def _refuse(self, req: Request, problem: str) -> None:
        super()._refuse(req, problem)
        self.done.append(Prefilled(req, None, None, problem))

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> None:
        self.bootstrap_queue.pop(req.rid, None)
        lease = req.lease
        if lease is not None and token is not None:
            self.hold(lease)
        super()._finish(req, reason, token, error)
        self.done.append(Prefilled(req, lease, token, error or reason.value))


# -- The decode side: a request decodes when its KV has arrived ------------------------------------


class DecodeScheduler(TransferScheduler):
    """SGLang ``disaggregation/decode.py``.

    A request in ``prealloc_queue`` has no pages. The pages of one in ``transfer_queue`` are filled
    by the prefill side; its lease is held until that side has answered. Both sides know a request
    by its room (SGLang ``bootstrap_room``), because a new request may have its id before the
    answer. Pages are reserved in order of arrival, and only if the longest outputs of all requests
    fit, so no request is ever retracted. (The original reserves 512 tokens each, and moves the KV
    of a retracted request to the host.)
    """

    def __init__(
        self,
        config: SchedulerConfig,
        recorder: Recorder | None = None,
        features: Iterable[Feature] = (),
    ) -> None:
        super().__init__(config, recorder, features)
        self.prealloc_queue: dict[str, Request] = {}
        self.transfer_queue: dict[str, Lease] = {}
        self.unanswered: dict[str, Request] = {}  # without an answer of the prefill side
        self.given_up: deque[str] = deque()  # rooms of requests that ended without it

    @property
    def awaits_others(self) -> bool:  # type: ignore[override]
        """Return whether a request waits for the prefill side."""
        return len(self.live) > len(self.running_batch) or bool(self.leases.returning)

    def receive(self, reqs: Iterable[Request]) -> None:
        """Queue new requests for pages."""
        reqs = list(reqs)
        super().receive(reqs)
        for req in reqs:
            if self.live.get(req.name) is req:
                if req not in self.waiting_queue:
                    continue  # it was sent twice
                self.waiting_queue.remove(req)
                self.unanswered[req.admission.bootstrap_room] = req
                self.prealloc_queue[req.admission.bootstrap_room] = req
            elif req.admission.bootstrap_room:
                self.given_up.append(
                    req.admission.bootstrap_room
                )  # refused here; its prompt was sent there

    def pop_preallocated(self) -> list[tuple[Request, Lease]]:
        """Reserve pages for the prompts of those that fit; the first that does not stops the rest.

        SGLang ``DecodePreallocQueue.pop_preallocated``.
        """
        found = []
        for room, req in list(self.prealloc_queue.items()):
            need = self.allocator.pages_for(req.max_device_len)
            if not self.table.available_size or need > self.allocatable_pages:
                break
            lease = req.lease = self.leases.open(rid=req.rid)
            self.allocator.alloc(lease, self.allocator.pages_for(len(req.prompt)))
            self.hold(lease)
            self.transfer_queue[room] = lease
            del self.prealloc_queue[room]
            found.append((req, lease))
        return found

    @property
    def allocatable_pages(self) -> int:
        """Return the pages that no request with a lease will ever need."""
        promised = sum(
            self.leases.pages_lacking(req.lease, req.max_device_len)
            for req in self.live.values()
            if req.lease is not None
        )
        return self.leases.available_pages - promised

    def answered(
        self, room: str, token: int | None, error: str = "", logprobs: Logprobs | None = None
    ) -> None:
        """The prefill side is done with a request: with ``token`` all of its KV is here.

        SGLang ``DecodeTransferQueue.pop_transferred`` and ``process_batch_result_prebuilt``.
        """
        self.prealloc_queue.pop(room, None)
        lease, req = self.transfer_queue.pop(room, None), self.unanswered.pop(room, None)
        if lease is not None:
            self.let_go(lease)
        if req is None or req.finished:
            return
        if token is None:
            self._finish(req, FinishReason.ERROR, error=error)
            return
        req.computed_len = len(req.prompt)
        req.device_len += 1
        self._hear(req, token)
        if not req.finished:
            self.decode.add_reqs([req])
        if logprobs is not None:
            for part in req.parts:
                part.on_transfer(logprobs)
            self.outputs[-1].logprobs = logprobs

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> None:
        if self.live.get(req.rid) is req:
            self.prealloc_queue.pop(req.admission.bootstrap_room, None)
            if req.admission.bootstrap_room in self.unanswered:
                self.given_up.append(req.admission.bootstrap_room)
        super()._finish(req, reason, token, error)
