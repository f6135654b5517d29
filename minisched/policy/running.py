"""Who decodes: the set of running requests, and who gives memory back when it runs out.

A request joins when its prompt is done and leaves when it ends or loses its memory. Each step asks
the set who may run now (``DecodeManager.schedule_next_batch``) and then looks for a page for each
(``Retraction.make_room``). Mostly there is one; else somebody gives up theirs, and starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import PrefillManager
from .budget import RETRACT_DECODE_STEPS

# -- The set of requests that produce tokens -------------------------------------------------------


@dataclass
class DecodeManager:
    """The set of running requests (mini-sglang ``scheduler/decode.py``).

    To join it, to leave it and to be found in it takes the same time however many run: it is a
    dict whose values say nothing. mini-sglang has a ``set``, and so had to sort each batch later
    (see ``schedule_next_batch``).

    A request leaves only when it ends or loses its lease. Whether it may run *now* is computed at
    each step and never stored: a set that drops a request on an optimistic length can forget it for
    ever.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``overrun``: how many steps a request may be launched past ``max_new_tokens``. A design that
    foresees a length stop has 0; one that only looks at ``finished`` (SGLang's overlap loop up to
    0.5.21) has 1, launches such a row once and wastes it; one that runs N steps at a time has
    N - 1.
    """

    run_ahead: bool = False
    overrun: int = 0
    running_reqs: dict[Request, None] = field(default_factory=dict)

    def add_reqs(self, reqs: Iterable[Request], mixed: bool = False) -> None:
        """Let those join whose prompt is done; who is there already keeps its place.

        ``mixed``: others decode behind these in the step that is launched now, as they will in the
        next (SGLang ``mix_with_running`` appends ``running_batch`` to the prompts and keeps what
        comes of it).
        """
        new = {req: None for req in reqs if req not in self.running_reqs}
        self.running_reqs = new | self.running_reqs if mixed else self.running_reqs | new

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        self.running_reqs.pop(req, None)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        if not self.run_ahead and req.known_len <= req.computed_len:
            return False
        return req.device_len < req.max_device_len + self.overrun

    @property
    def is_anyone_ending(self) -> bool:
        """Whether somebody runs for whom every step is launched: its memory will come back."""
        return any(req.device_len >= req.max_device_len + self.overrun for req in self.running_reqs)

    @property
    def newest(self) -> Request:
        """Who comes last in a batch of all."""
        return next(reversed(self.running_reqs))

    def schedule_next_batch(self) -> list[Request]:
        """The requests that may run now, as the rows of a batch: in the order in which they joined.

        This is where the set gets an order, and it must be the same in every process: the ranks of
        a tensor-parallel engine schedule for themselves, and each computes a part of every row. A
        Python ``set`` of requests would give each rank the order of its own addresses (museum:
        ``ranks_disagree``); a dict gives the order in which its keys came, and costs no sorting.

        ``may_run``, written out: everybody who runs passes here at every step.
        """
        overrun = self.overrun
        return [
            req
            for req in self.running_reqs
            if req.device_len < req.max_device_len + overrun
            and (self.run_ahead or req.computed_len < req.known_len)
        ]


def choose_victim(candidates: Iterable[Request]) -> Request:
    """The request with the fewest outputs; among equals the longest prompt, then the last listed.

    SGLang ``schedule_batch.py:retract_decode`` sorts the same way: the least work is lost.
    """
    latest = reversed(list(candidates))
    return min(latest, key=lambda req: (len(req.output_ids), -len(req.prompt)))


@dataclass
class Retraction:
    """Makes room for the next decode step (SGLang ``schedule_batch.py:retract_decode``).

    What is cached goes first, then a request. A victim's pages come back only when no launched
    step names them, so the step that starved may have to wait for them: nobody else is retracted
    while what is on its way back (``pages_returning``) is enough. Else everybody would be, one
    after the other, and for ever (vllm-ascend #16315). Until that step has run, or nothing is in
    flight, ``starved`` keeps everybody from being admitted: else the victim itself would take the
    pages again. Nor is anybody retracted while one who runs is about to end, its last step in
    flight; that step over, all begins anew.
    """

    decode: DecodeManager
    prefill: PrefillManager
    leases: LeasePool
    recorder: Recorder
    evicts_ahead: bool = True  # policy/rules.py: evicts
    starved: bool = False
    num_retractions: int = 0  # how often somebody has lost their memory so far
    num_by_reason: Counter[str] = field(default_factory=Counter)  # memory, priority, unified
    hopeless: list[Request] = field(default_factory=list)  # alone, and still too large

    def pages_short(self, reqs: Sequence[Request]) -> int:
        """Pages that one more step for each of ``reqs`` needs beyond those to be had."""
        available = self.leases.available_pages
        if len(reqs) <= available and not (reqs and reqs[0].num_draft_tokens):
            return 0  # nobody takes two for one position
        lacking = self.leases.pages_lacking
        need = sum(lacking(req.lease, req.reach) for req in reqs if req.lease is not None)
        return need - available

    def make_room(self, reqs: list[Request]) -> list[Request]:
        """Retract until the next step has pages; who is left in it, or nobody if it must wait."""
        retracted = False
        while (short := self.pages_short(reqs)) > 0:
            chunked = self.prefill.chunked_req
            nobody_else = len(self.decode.running_reqs) + bool(chunked) <= 1
            if nobody_else or short <= self.leases.pages_returning:
                reqs = self.wait(reqs)
                break
            if self.decode.is_anyone_ending:
                reqs = []
                break
            if self.evicts_ahead:
                self.leases.make_free(short + self.leases.available_pages)
            victim = chunked.req if chunked else self._victim()
            self.retract(victim, "memory")
            retracted = True
            reqs = [req for req in reqs if req is not victim]
        if retracted:
            self.prefill.new_token_ratio.on_retraction(self.decode.running_reqs)
        elif reqs:
            self.prefill.new_token_ratio.on_decode()
        self.starved = self.starved and not reqs
        return reqs

    def wait(self, reqs: list[Request]) -> list[Request]:
        """Let a step wait for memory; one that waits for nothing can never run."""
        self.starved = True
        leases = [req.lease for req in reqs if req.lease is not None]
        if not self.leases.returning and all(map(self.leases.is_settled, leases)):
            self.hopeless = list(reqs)
        return []

    def retract(self, req: Request, reason: str) -> None:
        """Take a request's memory and put it back into the queue, with what it has produced."""
        lease = req.lease
        pages = self.leases.pages_given_back(lease) if lease else 0
        self.recorder.mark(
            "retraction", rid=req.rid, reason=reason, outputs=len(req.output_ids), pages=pages
        )
        self.num_retractions += 1
        self.num_by_reason[reason] += 1
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        req.restart()
        if lease is not None:
            self.leases.close(lease)
        if self.evicts_ahead:
            steps = RETRACT_DECODE_STEPS * len(self.decode.running_reqs)
            pages = self.leases.allocator.pages_for(steps)
            self.leases.make_free(pages - self.leases.pages_returning)
        self.prefill.waiting_queue.add(req)

    def _victim(self) -> Request:
        """Who has to give way, by the rules (``Rules.victim``)."""
        if self.prefill.rules.victim == "newest":
            return self.decode.newest
        return choose_victim(self.decode.running_reqs)
