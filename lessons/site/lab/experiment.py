"""An experiment: the sliders' settings give one workload, which two loops and serial run.

The module runs in the browser (Pyodide), and in any other Python. ``tests/repo/test_site.py``
compares the two.
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
NEEDS = {  # the data that the next step needs
    "nothing": {},
    "grammar": {"regex": "[a-z ]{20,40}"},
    "penalties": {"frequency_penalty": 0.5},
}


@dataclass(frozen=True)
class Settings:
    """The settings of the page; times in milliseconds."""

    loops: tuple[str, str] = ("serial", "overlap")
    host: float = HOST_STEP / MILLISECOND  # the host's work for one decode step
    forward: float = SIM_COST.forward_base / MILLISECOND  # the base; each token adds to it
    copy: float = SIM_COST.copy / MILLISECOND
    requests: int = 4
    prompt: int = 24  # tokens
    tokens: int = 16  # new ones, for each request
    needs: str = "nothing"
    stops: bool = False  # True: a stop token may end a request

    @property
    def cost(self) -> CostModel:
        """Return the usual costs, with every phase of the host scaled alike."""
        factor = self.host * MILLISECOND / HOST_STEP
        return replace(
            SIM_COST,
            host={phase: whole_us(cost * factor) for phase, cost in SIM_COST.host.items()},
            forward_base=whole_us(self.forward * MILLISECOND),
            copy=whole_us(self.copy * MILLISECOND),
        )

    @property
    def workload(self) -> list[Request]:
        """Return requests with one arrival time; their prompts differ, so none is cached."""
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
        """Return the stop tokens: one of sixteen, if a request may stop."""
        return frozenset(range(0, 256, 16)) if self.stops else frozenset()

    @property
    def config(self) -> SchedulerConfig:
        """Return settings with memory for all requests at the same time."""
        length = self.prompt + self.tokens + 2
        return SchedulerConfig(
            kv_tokens=(length + 1) * self.requests + 1,
            context_len=length,
            max_running_requests=self.requests,
        )


def whole_us(nanoseconds: float) -> int:
    """Round to a microsecond, so that times are readable."""
    return round(nanoseconds / MICROSECOND) * MICROSECOND


def run(settings: Settings) -> Comparison:
    """Run serial, then the chosen loops.

    Raises:
        ValueError: a loop's original refuses a feature of the workload.
    """
    return compare_loops(
        settings.loops, "sim", HashModel(), settings.workload, settings.config, settings.cost
    )


def loop_names() -> list[str]:
    """Return the loops that run on the simulator."""
    return [name for name, spec in LOOPS.items() if "sim" in spec.devices]


def settled_step(settings: Settings) -> tuple[float, float]:
    """Return the milliseconds of a settled decode step, with one and with two in flight.

    Host h, device d, copy c: d + h + c, and max(d, h, c, (d + h + c) / 2).
    """
    cost = settings.cost
    device = (cost.forward(settings.requests) + cost.sample) / MILLISECOND
    host, copy = settings.host, cost.copy / MILLISECOND
    together = device + host + copy
    return together, max(device, host, copy, together / 2)
