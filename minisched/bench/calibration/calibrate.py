"""Measures what steps cost on this machine: a few designed workloads, their traces, a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from ...devices.cost import NO_COST, CostModel, MeasuredCost
from ...loops.run import Run, run_to_end, warm_up
from ...models.base import Model
from ...replay.length import LengthModel
from ...scheduler import SchedulerConfig
from ...trace import Trace
from .design import USUAL, Design, Load
from .fitted import fit_cost
from .listener import Listener
from .observed import Observed


def observe(
    loop: str,
    device: str,
    model: Model,
    load: Load,
    cost: CostModel = NO_COST,
    config: SchedulerConfig | None = None,
) -> Observed:
    """Run a load through a loop and take its trace apart.

    Raises:
        KeyboardInterrupt: somebody cut the run short.
        RunStopped: it stopped with an error.
    """
    listener = Listener(cost.with_host_work(load.work))
    requests, config = load.make(model.vocab_size), config or load.config
    run = run_to_end(loop, device, model, requests, config, cast(CostModel, listener))
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


def fit_costs(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
    design: Design = USUAL,
) -> MeasuredCost:
    """Costs of steps, of the device once and of the host for every loop.

    ``cost`` is what steps of ``sim`` cost, should that be the device: then it comes back.
    """
    warm_up(device, model, design.config or design.serial[0].config)
    runs: list[Observed] = []
    for repetition in range(repetitions):
        report(f"repetition {repetition + 1} of {repetitions}")
        runs += observe_all(device, model, loops, cost, report, design, repetition)
    return fit_cost(runs, model.pad_to)


def observe_all(
    device: str,
    model: Model,
    loops: Sequence[str],
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
    design: Design = USUAL,
    turn: int = 0,
) -> list[Observed]:
    """Every workload of a calibration, once; which of the loops begins is a matter of the turn."""
    report("calibrating: serial")
    take = partial(observe, device=device, model=model, cost=cost, config=design.config)
    runs = [take("serial", load=load) for load in design.serial]
    for load in design.loops:  # loops in turn: what one takes is compared with what serial takes
        for loop in rotated(["serial", *loops], turn):
            report(f"calibrating: {loop}")
            runs.append(take(loop, load=load))
    return runs


def rotated(loops: Sequence[str], turn: int) -> list[str]:
    """Each loop once, another one first in each turn: the first pays for what is cold by then."""
    each = list(dict.fromkeys(loops))
    first = turn % len(each)
    return each[first:] + each[:first]


def check_model(model: Model) -> None:
    """Whether a model takes these workloads.

    Raises:
        ValueError: its context is too short.
    """
    if model.context_len < USUAL.context_len:
        raise ValueError(
            f"model {model.name!r} has a context of {model.context_len} tokens, but calibrating "
            f"takes {USUAL.context_len}."
        )
