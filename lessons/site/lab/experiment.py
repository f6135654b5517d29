"""One experiment: settings from the sliders to one workload, run through two loops and serial.

It runs in the browser (Pyodide), and in any other Python; ``tests/repo/test_site.py`` compares
the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minisched.comparison import Comparison, compare_loops
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from minisched.loops.design import LOOPS
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig

DECODE_PHASES = ("schedule", "prepare", "launch", "process", "output")
HOST_STEP = sum(SIM_COST.host[phase] for phase in DECODE_PHASES)  # of one serial decode step, ns
NEEDS = {  # what the next step has to know
    "nothing": {},
    "grammar": {"regex": "[a-z ]{20,40}"},
    "penalties": {"frequency_penalty": 0.5},
}


@dataclass(frozen=True)
class Settings:
    """What the page lets one choose; times in milliseconds."""

    loops: tuple[str, str] = ("serial", "overlap")
    host: float = HOST_STEP / MILLISECOND  # the host's work for one decode step
    forward: float = SIM_COST.forward_base / MILLISECOND  # and so much more for each token
    copy: float = SIM_COST.copy / MILLISECOND
    requests: int = 4
    prompt: int = 24  # tokens
    tokens: int = 16  # new ones, for each request
    needs: str = "nothing"
    stops: bool = False  # whether a request may also end by a token that nobody could foresee

    @property
    def cost(self) -> CostModel:
        """The usual costs; every phase of the host is scaled alike."""
        factor = self.host * MILLISECOND / HOST_STEP
        return replace(
            SIM_COST,
            host={phase: whole_us(cost * factor) for phase, cost in SIM_COST.host.items()},
            forward_base=whole_us(self.forward * MILLISECOND),
            copy=whole_us(self.copy * MILLISECOND),
        )

    @property
    def workload(self) -> list[Request]:
        """Requests that come together; no two prompts begin alike, so none is found cached."""
        params = SamplingParams(
            max_new_tokens=self.tokens, ignore_eos=not self.stops, stop_token_ids=self.stop_tokens,
            **NEEDS[self.needs],
        )  # fmt: skip
        return [
            Request(f"r{at}", [(97 + 7 * at + 11 * i) % 256 for i in range(self.prompt)], params)
            for at in range(self.requests)
        ]

    @property
    def stop_tokens(self) -> frozenset[int]:
        """One token of sixteen ends a request, if it may stop."""
        return frozenset(range(0, 256, 16)) if self.stops else frozenset()

    @property
    def config(self) -> SchedulerConfig:
        """Room for everybody at once: memory is another story."""
        length = self.prompt + self.tokens + 2
        return SchedulerConfig(
            kv_tokens=(length + 1) * self.requests + 1,
            context_len=length,
            max_running_requests=self.requests,
        )


def whole_us(nanoseconds: float) -> int:
    """Rounded to a microsecond, so that times can be read."""
    return round(nanoseconds / MICROSECOND) * MICROSECOND


def run(settings: Settings) -> Comparison:
    """Serial first, then the loops that were chosen.

    Raises:
        ValueError: a loop's original does not combine with it what the workload needs.
    """
    return compare_loops(
        settings.loops, "sim", HashModel(), settings.workload, settings.config, settings.cost
    )


def loop_names() -> list[str]:
    """The loops that run on the simulator."""
    return [name for name, spec in LOOPS.items() if "sim" in spec.devices]


def settled_step(settings: Settings) -> tuple[float, float]:
    """Milliseconds of a settled decode step, with one step in flight and with two.

    Host h, device d, copy c: d + h + c, and max(d, h, c, (d + h + c) / 2).
    """
    cost = settings.cost
    device = (cost.forward(settings.requests) + cost.sample) / MILLISECOND
    host, copy = settings.host, cost.copy / MILLISECOND
    together = device + host + copy
    return together, max(device, host, copy, together / 2)
