"""The runs behind the golden traces: for each topic a small workload that shows it at work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, SIM_COST
from ..devices.registry import open_device
from ..loops.run import run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace


@dataclass(frozen=True)
class Recipe:
    """One run on sim with the hash model."""

    loop: str
    requests: list[Request]
    config: SchedulerConfig
    relay: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Trace:
        """The run's trace, the same every time."""
        device, model = open_device("sim"), HashModel()
        run = run_loop(
            self.loop, device, model, self.requests, self.config, SIM_COST, self.relay,
            **self.options,
        )  # fmt: skip
        return run.trace


def a_bit_of_everything(loop: str) -> Recipe:
    """Five requests for comparing loops.

    Prompts that have to be chunked, greedy and sampled tokens, one request that stops early (c),
    and one that comes while the others run (e).
    """
    greedy = SamplingParams(max_new_tokens=28, ignore_eos=True)
    sampled = SamplingParams(0.8, max_new_tokens=28, ignore_eos=True)
    requests = [
        Request("a", range(10, 22), greedy),
        Request("b", range(30, 60), sampled),
        Request("c", range(40, 70), SamplingParams(max_new_tokens=28)),
        Request("d", range(70, 85), sampled),
        Request("e", range(90, 110), greedy, arrival_time=20 * MILLISECOND),
    ]
    return Recipe(loop, requests, SchedulerConfig(chunk_size=48))


def prefill() -> Recipe:
    """A long prompt in chunks, and two short ones that have to wait for it."""
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    prompts = {"long": range(100), "short": range(8), "late": range(20)}
    requests = [Request(rid, prompt, params) for rid, prompt in prompts.items()]
    return Recipe("overlap", requests, SchedulerConfig(chunk_size=32))


def decode() -> Recipe:
    """Three requests in a pool for two: one is retracted, waits, and starts again."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [Request(rid, range(at, at + 8), params) for at, rid in enumerate("abc")]
    return Recipe("overlap", requests, SchedulerConfig(num_pages=44, new_token_ratio=0.0))


def future_map() -> Recipe:
    """A ring for two requests, lapped every third step."""
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    requests = [Request(rid, range(at, at + 5), params) for at, rid in enumerate("abc")]
    return Recipe("overlap", requests, SchedulerConfig(max_running_requests=2), relay="ring")


LOOPS = ("serial", "overlap", "mlx_async")


def recipes() -> dict[str, Recipe]:
    """Every golden run, by topic."""
    return {
        **{loop: a_bit_of_everything(loop) for loop in LOOPS},
        "prefill": prefill(),
        "decode": decode(),
        "future_map": future_map(),
    }
