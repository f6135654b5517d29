"""PD separation's two schedulers: one admits prompts, the other one has those who decode.

They know nothing of each other: ``loops/pd.py`` has a device for each, and tells of the way that a
request takes through both. What is special to them is memory that a transfer needs. Pages on either
side have to stay while KV is read from them or written to them, whatever becomes of the request
meanwhile. So its lease is *held*, beside the steps that name it, and goes back when it is closed
and no transfer holds it any more.
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
    """A scheduler whose leases a transfer may hold."""

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
        """A transfer reads or writes its pages: until it ends, nobody else may have them."""
        self.num_transfers[lease] += 1
        self.recorder.mark("row hold", row=lease.row, rid=lease.rid)

    def let_go(self, lease: Lease) -> None:
        """A transfer has ended."""
        self.num_transfers[lease] -= 1
        if not self.num_transfers[lease]:
            del self.num_transfers[lease]
        self.recorder.mark("row let go", row=lease.row, rid=lease.rid)
        self.leases.free_retired()
        if lease in self.leases.returning:
            self.leases.release(lease)


# -- The prefill side: prompts in, first tokens and KV out -----------------------------------------


class Prefilled(NamedTuple):
    """A request that the prefill side is done with. ``token`` None: it failed, or was given up."""

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
        self.heard_before: dict[str, bool] = {}  # by a request that has not come here: may it run?
        self.done: deque[Prefilled] = deque()  # ended, and not sent yet

    @property
    def awaits_others(self) -> bool:
        """A reservation, or the end of a transfer, may help those who wait."""
        return bool(self.bootstrap_queue or self.leases.returning or self.leases.retired)

    def receive(self, reqs: Iterable[Request]) -> None:
        """Queue new requests; they can't run yet."""
        reqs = list(reqs)
        super().receive(reqs)
        for req in reqs:
            may_run = self.heard_before.pop(req.rid, None)
            if may_run is False:
                self.abort(req.rid)
            elif not may_run and req in self.waiting_queue:
                self.waiting_queue.remove(req)
                self.bootstrap_queue[req.rid] = req

    def bootstrapped(self, rid: str) -> None:
        """The decode side has room for it: it may be computed (SGLang ``pop_bootstrapped``)."""
        req = self.bootstrap_queue.pop(rid, None)
        if req is not None:
            self.waiting_queue.add(req)
        elif rid not in self.live:  # two clocks: the decode side may see a request first
            self.heard_before.setdefault(rid, True)

    def give_up(self, rid: str) -> None:
        """End a request that the decode side has given up, now or when it comes."""
        if rid in self.live:
            self.abort(rid)
        else:
            self.heard_before[rid] = False

    def answered(self, rid: str) -> None:
        """Forget a request: the decode side has its answer, so no message about it matters."""
        self.heard_before.pop(rid, None)

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


# -- The decode side: a request joins those who decode when its KV is there ------------------------


class DecodeScheduler(TransferScheduler):
    """SGLang ``disaggregation/decode.py``.

    ``prealloc_queue``: those without pages. ``transfer_queue``: those with pages that the prefill
    side fills. A lease in it is held until the prefill side has answered, however its request ends
    meanwhile. Both know a request by its room, which is its alone (SGLang ``bootstrap_room``): its
    id may have come back before the answer. Pages are reserved first come, first served, where the
    longest outputs of everybody still fit, so nobody is ever retracted (the original reserves 512
    tokens each, and moves the KV of a retracted request to the host).
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
        self.unanswered: dict[str, Request] = {}  # the prefill side owes an answer for these
        self.given_up: deque[str] = deque()  # rooms of who ended without it, to be told

    @property
    def awaits_others(self) -> bool:
        """Whoever does not decode waits for the prefill side."""
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
        """Pages that nobody who is here will ever need."""
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
