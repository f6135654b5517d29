"""How much of what running requests may still produce admission keeps memory back for."""

from __future__ import annotations

from collections.abc import Collection

from ..core import Request
from ..trace import Recorder

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
