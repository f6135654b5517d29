"""Who runs in the next step: prompts, those who decode, or both; and who gives way for memory.

``RunFirst`` asks for one or the other first, as the rules say. SGLang runs prompts whenever one can
be admitted, with ``enable_mixed_chunk`` and those who decode beside them in one batch; vLLM takes
both from one budget (``unified.py``). What comes of it is a ``Plan``: nothing has advanced yet but
what admission holds (``admission.py``), and the scheduler commits it.

A request joins those who decode when its prompt is done, and leaves when it ends or loses its
memory. Each step asks who may run now (``DecodeManager.schedule_next_batch``), and looks for a page
for each (``Retraction.make_room``). Mostly there is one; else somebody gives up theirs, and starts
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import PrefillManager, mix_with_running
from .budget import hold_back
from .rules import Rules

Work = list[tuple[Request, int]]


@dataclass(slots=True)
class Plan:
    """Prompts, with the tokens of each to compute, and those of whom one more is computed.

    ``draft_lens`` are the drafts that each of the latter may carry, [num_decodes], where a budget
    limits them; None: whatever ``Request.next_draft_len`` says.
    """

    prompts: Work
    decodes: list[Request]
    draft_lens: Sequence[int] | None = None


@dataclass
class RunFirst:
    """The rule that chooses between prompts and decodes (``Rules.run_first``).

    ``prefill``: prompts whenever one can be admitted (SGLang ``get_next_batch_to_run``), with
    ``enable_mixed_chunk`` those who run beside them. ``decode``: prompts only while nobody can
    decode (MindIE's ``DecidePDPriority`` under pressure). ``unified``: both from one budget (vLLM).
    """

    rules: Rules
    enable_mixed_chunk: bool
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    unified: Callable[[], Plan]

    def plan(self) -> Plan:
        """The next step's work; retracts whoever has to give way."""
        first, num_retractions = self.rules.run_first, self.retraction.num_retractions
        prefill, queue = self.prefill, self.prefill.waiting_queue
        plan = Plan([], [])
        if first == "unified":
            plan = self.unified()
        elif first == "decode" and (decodes := self._decodes()):
            plan.decodes = decodes
            self._hold_back("those who decode run first")
        else:
            if self.retraction.starved:
                self._hold_back("a decode step waits for memory that is on its way back")
            elif prefill.chunked_req or ((queue.waiting or queue.aside) and prefill.may_start):
                plan = self._prompts()
            if not plan.prompts:
                plan.decodes = self._decodes()
        if plan.prompts or plan.decodes or self.retraction.num_retractions == num_retractions:
            return plan
        stays_empty = first == "unified" and self.rules.plans_again == "no"
        return plan if stays_empty else self.plan()  # there may be room now for whom they gave way

    def _decodes(self) -> list[Request]:
        """Those who run now, less whoever has to give up its memory for the others."""
        return self.retraction.make_room(self.decode.schedule_next_batch())

    def _prompts(self) -> Plan:
        """Those that can be admitted, and beside them those who decode, if batches are mixed."""
        running = list(self.decode.running_reqs)
        mixed = self.decode.schedule_next_batch() if self.enable_mixed_chunk else []
        num_mixed = len(running) if self.enable_mixed_chunk else 0  # whether they decode or not
        ratio = self.retraction.new_token_ratio.current
        prompts = self.prefill.schedule_next_batch(
            running, ratio, num_mixed, lambda victim: self.retraction.retract(victim, "priority")
        )
        still_there = [req for req in mixed if req.lease is not None] if prompts else []
        decodes = mix_with_running(prompts, still_there, self.leases)
        if decodes:
            self.prefill.mark_open()
        elif still_there:
            self.retraction.recorder.mark("not mixed", running=len(still_there))
        return Plan(prompts, decodes)

    def _hold_back(self, reason: str) -> None:
        hold_back(self.retraction.recorder, self.prefill.waiting_queue.first(), reason)


# -- Those who decode -----------------------------------------------------------------------------


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
    ``ends_in_flight``: a design's own rule of who is left out, because what is in flight brings the
    last token (``loops/vllm_async.py``); without one it is the length that counts.
    """

    run_ahead: bool = False
    overrun: int = 0
    ends_in_flight: Callable[[Request], bool] | None = None
    running_reqs: dict[Request, None] = field(default_factory=dict)

    def add_reqs(self, reqs: Iterable[Request], mixed: bool = False) -> None:
        """Let those join whose prompt is done; who is there already keeps its place.

        ``mixed``: others decode behind these in the step that is launched now, as they will in the
        next (SGLang ``mix_with_running`` appends ``running_batch`` to the prompts and keeps what
        comes of it).
        """
        new = {req: None for req in reqs if req not in self.running_reqs}
        if mixed:
            self.running_reqs = new | self.running_reqs
        else:
            self.running_reqs.update(new)

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        self.running_reqs.pop(req, None)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        if not self.run_ahead and req.known_len <= req.computed_len:
            return False
        return not self.is_ending(req)

    def is_ending(self, req: Request) -> bool:
        """Whether every step of ``req`` is launched."""
        if self.ends_in_flight is not None:
            return self.ends_in_flight(req)
        return req.device_len >= req.max_device_len + self.overrun

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
        if self.ends_in_flight is not None:
            return list(filter(self.may_run, self.running_reqs))
        overrun = self.overrun
        return [
            req
            for req in self.running_reqs
            if req.device_len < req.max_device_len + overrun
            and (self.run_ahead or req.computed_len < req.known_len)
        ]


# -- When memory runs out -------------------------------------------------------------------------

INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_DECODE_STEPS = 20  # for which those who stay have memory after a retraction, if they may


class NewTokenRatio:
    """The share of their remaining tokens that requests are expected to use.

    Most requests stop early, so it starts below 1 and sinks with every decode step; a retraction
    shows that it was too low, and sets it to what the running requests have really used so far
    (SGLang ``managers/scheduler.py`` and ``schedule_batch.py:retract_decode``).
    """

    def __init__(self, conservativeness: float, recorder: Recorder) -> None:
        self.init = min(INIT * conservativeness, 1.0)
        self.min = self.init * MIN_FACTOR
        self.decay = (self.init - self.min) / DECAY_STEPS
        self.current = self.init
        self.recorder = recorder

    def on_decode(self) -> None:
        """One more decode step without a retraction."""
        self.current = max(self.current - self.decay, self.min)

    def on_retraction(self, remaining: Collection[Request]) -> None:
        """Estimate it anew from those who were kept."""
        produced = sum(len(req.output_ids) for req in remaining)
        wanted = sum(req.params.max_new_tokens for req in remaining)
        estimate = (produced + RETRACT_DECODE_STEPS * len(remaining)) / (wanted + 1)
        self._set(min(1.0, estimate))

    def reset(self) -> None:
        """Nothing runs any more."""
        if self.current != self.init:
            self._set(self.init)

    def _set(self, value: float) -> None:
        self.current = value
        self.recorder.mark("new token ratio", value=round(value, 6))


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
    new_token_ratio: NewTokenRatio
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
            if any(map(self.decode.is_ending, self.decode.running_reqs)):
                reqs = []  # its memory will come back
                break
            if self.evicts_ahead:
                self.leases.make_free(short + self.leases.available_pages)
            victim = chunked or self.choose_victim()
            self.retract(victim, "memory")
            retracted = True
            reqs = [req for req in reqs if req is not victim]
        if retracted:
            self.new_token_ratio.on_retraction(self.decode.running_reqs)
        elif reqs:
            self.new_token_ratio.on_decode()
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

    def choose_victim(self) -> Request:
        """Who has to give way, by the rules (``Rules.victim``)."""
        if self.prefill.rules.victim == "newest":
            return self.decode.newest
        return choose_victim(self.decode.running_reqs)
