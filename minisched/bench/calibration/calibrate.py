"""Measures what steps cost on this machine: a few designed workloads, their traces, a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ...compare import run_to_end, warm_up
from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND, NO_COST, CostModel
from ...devices.measured_cost import MeasuredCost
from ...loops.run import Run
from ...models.base import Model
from ...models.length import LengthModel
from ...scheduler import SchedulerConfig
from ...trace import Trace
from .fitted import fit_cost
from .listener import Listener
from .observed import Observed

MOST_TOKENS = 128  # of prompts in one step
LEAD = 500 * MILLISECOND  # before the first arrival: an engine takes time to be made


@dataclass(frozen=True)
class Load:
    """A workload by its figures: requests alike, ``every`` nanoseconds apart.

    ``work`` is pure-Python work added to each step, in nanoseconds.
    """

    requests: int
    prompt: int
    new: int
    work: int = 0
    every: int = 0

    def make(self, vocab: int) -> list[Request]:
        """The requests; each runs to its length."""
        params = SamplingParams(max_new_tokens=self.new, ignore_eos=True)
        return [
            Request(
                f"r{at}",
                [(31 * at + 7 * place) % (vocab - 8) + 5 for place in range(self.prompt)],
                params,
                arrival_time=LEAD + at * self.every if self.every else 0,
            )
            for at in range(self.requests)
        ]

    @property
    def config(self) -> SchedulerConfig:
        """Room for all of them at once."""
        length = self.prompt + self.new
        return SchedulerConfig(
            max_running_requests=self.requests,
            kv_tokens=(length + 2) * self.requests + 1,
            context_len=length,
            chunked_prefill_size=MOST_TOKENS,
        )


WORK = 20 * MILLISECOND
SERIAL = (  # every batch size and prompt that the line of the forward pass bends at
    Load(1, 32, 12), Load(2, 16, 8), Load(4, 32, 10), Load(8, 16, 8), Load(16, 4, 8),
    Load(1, 160, 3),
)  # fmt: skip
LOOPS = (Load(4, 8, 12), Load(4, 8, 12, WORK), Load(8, 6, 6))  # through every loop


def observe(
    loop: str, device: str, model: Model, load: Load, cost: CostModel = NO_COST
) -> Observed:
    """Run a load through a loop and take its trace apart.

    Raises:
        KeyboardInterrupt: somebody cut the run short.
        RunStopped: it stopped with an error.
    """
    listener = Listener(cost.with_host_work(load.work))
    requests = load.make(model.vocab_size)
    run = run_to_end(loop, device, model, requests, load.config, cast(CostModel, listener))
    return Observed(run, listener.heard, load.work)


def makespan(trace: Trace) -> int:
    """Nanoseconds from when the first request is taken in to the end."""
    first = min((item.start for item in trace.slices if item.name == "receive"), default=0)
    return trace.end - first


def stand_in(model: Model) -> Model:
    """For ``sim``: as many tokens and as long a context, and nothing is computed."""
    return cast(Model, LengthModel(model.vocab_size - 1, 1, model.context_len))


def predict(loop: str, model: Model, load: Load, cost: CostModel) -> Run:
    """The same load on ``sim``, with a model there in the place of the real one."""
    requests = load.make(model.vocab_size)
    return run_to_end(loop, "sim", model, requests, load.config, cost.with_host_work(load.work))


def calibrate(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
) -> MeasuredCost:
    """Costs of steps, of the device once and of the host for every loop.

    ``cost`` is what steps of ``sim`` cost, should that be the device: then it comes back.
    """
    warm_up(device, model, SERIAL[0].config)
    runs: list[Observed] = []
    for repetition in range(repetitions):
        report(f"repetition {repetition + 1} of {repetitions}")
        runs += observe_all(device, model, loops, cost, report)
    return fit_cost(runs, model.pad_to)


def observe_all(
    device: str,
    model: Model,
    loops: Sequence[str],
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Observed]:
    """Every workload of a calibration, once."""
    report("calibrating: serial")
    runs = [observe("serial", device, model, load, cost) for load in SERIAL]
    for load in LOOPS:  # loops in turn: what one takes is compared with what serial takes
        for loop in dict.fromkeys(["serial", *loops]):
            report(f"calibrating: {loop}")
            runs.append(observe(loop, device, model, load, cost))
    return runs


def check_model(model: Model) -> None:
    """Whether a model takes these workloads.

    Raises:
        ValueError: its context is too short.
    """
    longest = max(load.config.context_len for load in (*SERIAL, *LOOPS))
    if model.context_len < longest:
        raise ValueError(
            f"model {model.name!r} has a context of {model.context_len} tokens, but calibrating "
            f"takes {longest}."
        )
