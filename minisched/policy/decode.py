"""The running requests: which of them decode in the next step, and how many tokens to expect.

A request joins when its prompt is computed and leaves when it finishes or is retracted. Each step
asks ``DecodeManager.schedule_next_batch`` which requests can run, and allocates pages for them. If
pages are short, a request is retracted (``retraction.py``). To make that rare, admission reserves
memory for the tokens that running requests are expected to generate (``NewTokenRatio``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..core import Request
from ..trace import Recorder
from .sglang import RETRACT_DECODE_STEPS


@dataclass
class DecodeManager:
    """The set of running requests (mini-sglang ``scheduler/decode.py``), as the keys of a dict.

    All tensor-parallel ranks must see the same order, and a ``set`` would order by address (museum:
    ``ranks_disagree``). Each step computes anew whether a request can run; nothing stores it.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``overrun``: steps that may be launched past ``max_new_tokens``: 0 if the loop foresees a length
    stop, 1 for SGLang's overlap loop up to 0.5.21 (it wastes that row), N - 1 for bursts of N.
    ``ends_in_flight``: a loop's own test for "every step is launched" (``loops/vllm_async.py``).
    """

    run_ahead: bool = False
    overrun: int = 0
    ends_in_flight: Callable[[Request], bool] | None = None
    running_reqs: dict[Request, None] = field(default_factory=dict)

    def add_reqs(self, reqs: Iterable[Request], mixed: bool = False) -> None:
        """Add requests after their prompt is computed.

        If ``mixed``, they go before the others, as in the step launched now (SGLang
        ``mix_with_running``).
        """
        joining = [req for req in reqs if req not in self.running_reqs]
        others = list(self.running_reqs) if mixed else []
        if others:
            self.running_reqs.clear()
        self.running_reqs.update(dict.fromkeys([*joining, *others]))

    def remove_req(self, req: Request) -> None:
        """Remove a request, if present."""
        self.running_reqs.pop(req, None)

    def schedule_next_batch(self) -> list[Request]:
        """Return the requests that can run now, in the order in which they joined."""
        return self.runnable(self.running_reqs, self.run_ahead)

    def may_run(self, req: Request) -> bool:
        """Return whether a step for ``req`` can be launched now."""
        return bool(self.runnable((req,), self.run_ahead))

    def is_ending(self, req: Request) -> bool:
        """Return whether every step of ``req`` is already launched."""
        return not self.runnable((req,), run_ahead=True)

    def runnable(self, reqs: Iterable[Request], run_ahead: bool) -> list[Request]:
        """Return requests with a step left to launch; unless ``run_ahead``, with a known input."""
        overrun, ends_in_flight = self.overrun, self.ends_in_flight
        found = []
        for req in reqs:
            if (run_ahead or req.computed_len < req.known_len) and not (
                req.device_len >= req.max_device_len + overrun
                if ends_in_flight is None
                else ends_in_flight(req)
            ):
                found.append(req)
        return found


INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600


class NewTokenRatio:
    """The share of their remaining tokens that running requests are expected to generate.

    Most requests stop early, so it starts below 1 and decays with every decode step. A retraction
    resets it to the share really used so far (SGLang ``schedule_batch.py:retract_decode``).
    """

    def __init__(self, conservativeness: float, recorder: Recorder) -> None:
        self.init = min(INIT * conservativeness, 1.0)
        self.min = self.init * MIN_FACTOR
        self.decay = (self.init - self.min) / DECAY_STEPS
        self.current = self.init
        self.recorder = recorder

    def on_decode(self) -> None:
        """Decay after a decode step without retraction."""
        if self.current > self.min:
            self.current = max(self.current - self.decay, self.min)

    def on_retraction(self, remaining: Collection[Request]) -> None:
        """Re-estimate from the requests that were kept."""
        produced = sum(len(req.output_ids) for req in remaining)
        wanted = sum(req.params.max_new_tokens for req in remaining)
        estimate = (produced + RETRACT_DECODE_STEPS * len(remaining)) / (wanted + 1)
        self._set(min(1.0, estimate))

    def reset(self) -> None:
        """Start again once nothing runs."""
        if self.current != self.init:
            self._set(self.init)

    def _set(self, value: float) -> None:
        self.current = value
        self.recorder.mark("new token ratio", value=round(value, 6))
