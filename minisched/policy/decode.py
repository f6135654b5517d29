"""Those who decode: who they are, who of them may run now, and how much they may still say.

A request joins when its prompt is done, and leaves when it ends or loses its memory. Each step asks
who may run now (``DecodeManager.schedule_next_batch``), and looks for a page for each. Mostly there
is one; else somebody gives up theirs, and starts again (``retraction.py``). So that this is rare,
admission keeps memory back for what those who run are expected to say (``NewTokenRatio``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..core import Request
from ..trace import Recorder
from .retraction import RETRACT_DECODE_STEPS

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
        """Return the requests that can decode now, in the order in which they joined.

        Every rank of a tensor-parallel engine needs the same order: each has its own scheduler and
        computes a part of every row. A Python ``set`` of requests would follow their addresses,
        which differ between processes (museum: ``ranks_disagree``).

        The body repeats ``may_run``, because every running request passes here in every step.
        """
        if self.ends_in_flight is not None:
            return list(filter(self.may_run, self.running_reqs))
        overrun, run_ahead = self.overrun, self.run_ahead
        reqs = []
        for req in self.running_reqs:
            is_known = run_ahead or req.computed_len < req.known_len
            if is_known and req.device_len < req.max_device_len + overrun:
                reqs.append(req)
        return reqs


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
