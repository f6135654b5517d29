"""Who runs in the next step: prompts, those who decode, or both.

``RunFirst`` asks for one or the other first, as the rules say. SGLang runs prompts whenever one can
be admitted, with ``enable_mixed_chunk`` and those who decode beside them in one batch; vLLM takes
both from one budget (``unified.py``). What comes of it is a ``Plan``: nothing has advanced yet but
what admission holds (``admission.py``), and the scheduler commits it.

A request joins those who decode when its prompt is done, and leaves when it ends or loses its
memory. Each step asks who may run now (``DecodeManager.schedule_next_batch``), and looks for a page
for each. Mostly there is one; else somebody gives up theirs, and starts again (``retraction.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import PrefillManager, mix_with_running
from .prefill_adder import AddReqResult, refuse
from .retraction import RETRACT_DECODE_STEPS, Retraction
from .rules import Rules

Work = list[tuple[Request, int]]


Plan = tuple[Work, list[Request], Sequence[int] | None]
"""Prompts, with the tokens of each to compute; those who decode; and the drafts that each of these
may carry, [num_decodes], where a budget limits them. (None: as ``Request.next_draft_len`` says.)
"""


@dataclass
class RunFirst:
    """The rule that chooses between prompts and decodes (``Rules.run_first``).

    ``prefill``: prompts whenever one can be admitted (SGLang ``get_next_batch_to_run``).
    ``decode``: prompts only while nobody can decode (MindIE's ``DecidePDPriority`` under pressure).
    ``unified``: both from one budget (vLLM).
    """

    rules: Rules
    enable_mixed_chunk: bool
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    new_token_ratio: NewTokenRatio
    unified: Callable[[], Plan]

    def plan(self) -> Plan:
        """The next step's work; retracts whoever has to give way."""
        first, retraction, prefill = self.rules.run_first, self.retraction, self.prefill
        num_retractions, queue = retraction.num_retractions, prefill.waiting_queue
        recorder = retraction.recorder
        if first == "unified":
            plan = self.unified()
        elif first == "decode" and (decodes := self._decodes()):
            plan = [], decodes, None
            refuse(recorder, queue.first(), AddReqResult.OTHER, "those who decode run first")
        else:
            prompts: Work = []
            if retraction.starved:
                reason = "a decode step waits for memory that is on its way back"
                refuse(recorder, queue.first(), AddReqResult.OTHER, reason)
            elif prefill.chunked_req or ((queue.waiting or queue.aside) and prefill.may_start):
                prompts, decodes = self._prompts()
            plan = prompts, decodes if prompts else self._decodes(), None
        if plan[1] or plan[0] or retraction.num_retractions == num_retractions:
            return plan
        # there may be room now for whom they gave way; vLLM admits nobody in a step that preempts
        return plan if first == "unified" else self.plan()

    def _decodes(self) -> list[Request]:
        """Those who run now, less whoever has to give up its memory for the others."""
        reqs = self.decode.schedule_next_batch()
        if self.leases.pages_short(reqs) > 0:
            return self.retraction.make_room(reqs)
        if reqs:
            self.new_token_ratio.on_decode()
            self.retraction.starved = False
        return reqs

    def _prompts(self) -> tuple[Work, list[Request]]:
        """Those that can be admitted, and beside them those who decode, if batches are mixed."""
        running = list(self.decode.running_reqs)
        mixed = self.decode.schedule_next_batch() if self.enable_mixed_chunk else []
        num_mixed = len(running) if self.enable_mixed_chunk else 0  # whether they decode or not
        ratio = self.new_token_ratio.current
        prompts = self.prefill.schedule_next_batch(
            running, ratio, num_mixed, lambda victim: self.retraction.retract(victim, "priority")
        )
        still_there = [req for req in mixed if req.lease is not None] if prompts else []
        decodes = mix_with_running(prompts, still_there, self.leases)
        if decodes:
            self.prefill.mark_open()
        elif still_there:
            self.retraction.recorder.mark("not mixed", running=len(still_there))
        return prompts, decodes


# -- Those who decode -----------------------------------------------------------------------------


@dataclass
class DecodeManager:
    """The set of running requests (mini-sglang ``scheduler/decode.py``), a dict without values.

    To join it, to leave it and to be found in it takes the same time however many run. A request
    leaves only when it ends or loses its lease. Whether it may run *now* is computed at each step:
    a set that drops a request on an optimistic length can forget it for ever.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``overrun``: how many steps a request may be launched past ``max_new_tokens``. A design that
    foresees a length stop has 0; one that only looks at ``finished`` (SGLang's overlap loop up to
    0.5.21) has 1 and wastes such a row; one that runs N steps at a time has N - 1.
    ``ends_in_flight``: a design's own rule of who is left out (``loops/vllm_async.py``).
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
        joining = [req for req in reqs if req not in self.running_reqs]
        others = list(self.running_reqs) if mixed else []
        if others:
            self.running_reqs.clear()
        self.running_reqs.update(dict.fromkeys([*joining, *others]))

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        self.running_reqs.pop(req, None)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        is_known = self.run_ahead or req.computed_len < req.known_len
        return is_known and not self.is_ending(req)

    def is_ending(self, req: Request) -> bool:
        """Whether every step of ``req`` is launched."""
        if self.ends_in_flight is not None:
            return self.ends_in_flight(req)
        return req.device_len >= req.max_device_len + self.overrun

    def schedule_next_batch(self) -> list[Request]:
        """The requests that may run now, as the rows of a batch: in the order in which they joined.

        It must be the same order in every process: the ranks of a tensor-parallel engine schedule
        for themselves, and each computes a part of every row. A Python ``set`` would give each the
        order of its own addresses (museum: ``ranks_disagree``).

        ``may_run``, written out: everybody who runs passes here at every step.
        """
        if self.ends_in_flight is not None:
            return list(filter(self.may_run, self.running_reqs))
        overrun, run_ahead = self.overrun, self.run_ahead
        return [
            req
            for req in self.running_reqs
            if req.device_len < req.max_device_len + overrun
            and (run_ahead or req.computed_len < req.known_len)
        ]


# -- How much of what they may still say those who run are expected to say -------------------------

INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600


class NewTokenRatio:
    """The share of their remaining tokens that requests are expected to use.

    Most requests stop early, so it starts below 1 and sinks with every decode step; a retraction
    sets it to what they have really used so far (SGLang ``schedule_batch.py:retract_decode``).
    """

    def __init__(self, conservativeness: float, recorder: Recorder) -> None:
        self.init = min(INIT * conservativeness, 1.0)
        self.min = self.init * MIN_FACTOR
        self.decay = (self.init - self.min) / DECAY_STEPS
        self.current = self.init
        self.recorder = recorder

    def on_decode(self) -> None:
        """One more decode step without a retraction."""
        if self.current > self.min:
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
