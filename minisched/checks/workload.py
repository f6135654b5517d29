"""A workload small enough to look at: requests, when each comes, who gives up, how much room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..core import Request
from ..scheduler import SchedulerConfig

VOCAB = 19  # few tokens, so that stop tokens come up by chance


@dataclass
class Workload:
    """Requests with the turn each arrives in, aborts by turn, and the scheduler's sizes.

    In the turns of ``flushes`` somebody asks for the cache to be forgotten.
    """

    requests: list[Request]
    arrivals: list[int]  # [num_reqs] turn
    aborts: dict[int, str]  # turn -> request id
    config: SchedulerConfig
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    vocab_size: int = VOCAB
    flushes: frozenset[int] = frozenset()  # turns


def fresh(workload: Workload) -> Workload:
    """The same workload with requests that have not run."""
    requests = [
        Request(req.rid, req.prompt, req.params, priority=req.priority) for req in workload.requests
    ]
    return replace(workload, requests=requests)
