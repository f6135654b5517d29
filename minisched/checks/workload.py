"""A workload small enough to look at: requests, when each comes, who gives up, how much room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..core import FinishReason, Request
from ..scheduler import SchedulerConfig

VOCAB = 19  # few tokens, so that stop tokens come up by chance


class Failure(NamedTuple):
    """The first step that computes this position of this request goes wrong, if any does.

    Position and not number of the step, so that it is the same misfortune on every loop: in a chunk
    of the prompt, for a token of the answer, or behind the last one, where the step is wasted.
    """

    rid: str
    position: int
    kind: str  # the name of a fault, as in ``faults/in_step.py:STEP_FAULTS``


@dataclass
class Workload:
    """Requests with the turn each arrives in, aborts by turn, and the scheduler's sizes.

    In the turns of ``flushes`` somebody asks for the cache to be forgotten. A run fills in whom its
    ``failures`` have ``struck``, by request id, and what the device said.
    """

    requests: list[Request]
    arrivals: list[int]  # [num_reqs] turn
    aborts: dict[int, str]  # turn -> request id
    config: SchedulerConfig
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    vocab_size: int = VOCAB
    flushes: frozenset[int] = frozenset()  # turns
    failures: tuple[Failure, ...] = ()
    struck: dict[str, set[str]] = field(default_factory=dict)

    def has_failed(self, req: Request) -> bool:
        """Whether a request has ended because of a step that was to fail.

        The prefill side of ``pd`` knows it by its room.
        """
        says = {
            part for name in (req.name, req.bootstrap_room) for part in self.struck.get(name, ())
        }
        return req.finish_reason is FinishReason.ERROR and any(part in req.error for part in says)


def fresh(workload: Workload) -> Workload:
    """The same workload with requests that have not run."""
    requests = [
        Request(req.rid, req.prompt, req.params, priority=req.priority) for req in workload.requests
    ]
    return replace(workload, requests=requests, struck={})
