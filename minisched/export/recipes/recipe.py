"""A golden run: a small workload on the simulated device that shows one idea at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND, SIM_COST, CostModel
from ...devices.registry import open_device
from ...loops.run import fresh, run_loop
from ...models.hash import HashModel
from ...scheduler import SchedulerConfig
from ...trace import Trace


@dataclass(frozen=True)
class Recipe:
    """One run on sim with the hash model; ``options`` go to the loop."""

    loop: str
    requests: Sequence[Request]
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    relay: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    cost: CostModel = SIM_COST

    def run(self) -> Trace:
        """The run's trace, the same every time."""
        requests = [fresh(request) for request in self.requests]
        run = run_loop(
            self.loop, open_device("sim"), HashModel(), requests, self.config, self.cost,
            self.relay, **self.options,
        )  # fmt: skip
        return run.trace


def tokens(count: int, ignore_eos: bool = True) -> SamplingParams:
    """Exactly so many, greedily; or, where EOS may come, at most so many."""
    return SamplingParams(max_new_tokens=count, ignore_eos=ignore_eos)


def one_by_one(rids: str, prompt_len: int, count: int, ignore_eos: bool = True) -> list[Request]:
    """Requests that come 10 ms apart and share nothing."""
    return [
        Request(rid, range(20 * at, 20 * at + prompt_len), tokens(count, ignore_eos),
                arrival_time=10 * at * MILLISECOND)
        for at, rid in enumerate(rids)
    ]  # fmt: skip


def a_bit_of_everything(loop: str, relay: str = "", **options: Any) -> Recipe:
    """Five requests for comparing loops.

    Prompts that have to be chunked, greedy and sampled tokens, one request that stops early (c),
    and one that comes while the others run (e).
    """
    greedy = tokens(28)
    sampled = SamplingParams(0.8, max_new_tokens=28, ignore_eos=True)
    requests = [
        Request("a", range(10, 22), greedy),
        Request("b", range(30, 60), sampled),
        Request("c", range(40, 70), SamplingParams(max_new_tokens=28)),
        Request("d", range(70, 85), sampled),
        Request("e", range(90, 110), greedy, arrival_time=20 * MILLISECOND),
    ]
    return Recipe(loop, requests, SchedulerConfig(chunked_prefill_size=48), relay, options)


# -- The runs that several pictures share: every loop on one common workload -----------------------


@cache
def run_of(loop: str) -> Trace:
    """One loop on the common workload of five requests."""
    return a_bit_of_everything(loop).run()
