"""Drives a loop over requests of which only lengths are known, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import cast

from ..core import Output, Request
from ..devices.base import Device
from ..devices.cost import CostModel
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend, abort_on_interrupt
from ..engine.metrics import Metrics
from ..loops.design import Design, find_loop
from ..loops.run import drive, fit_config
from ..relay.registry import RelayShape, make_relay
from ..scheduler import Scheduler, SchedulerConfig
from .length import LengthModel
from .tally import Tally
from .worker import LengthWorker


@dataclass(frozen=True)
class Played:
    """A run that has ended: what its clients saw, and what it took."""

    loop: str
    config: SchedulerConfig
    metrics: Metrics
    tally: Tally
    num_steps: int
    peak_tokens: int  # of one step
    num_retractions: int
    host_seconds: float  # real ones

    @property
    def device_busy(self) -> float:
        """Share of the time since the first request came in which the forward stream worked."""
        duration = self.tally.end - (self.metrics.first_arrival or 0)
        return self.tally.busy_ns["forward"] / duration if duration > 0 else 0.0


def play(
    loop: str,
    model: LengthModel,
    requests: Iterator[Request],
    config: SchedulerConfig,
    cost: CostModel,
    on_output: Callable[[Output], None] = lambda output: None,
    tally: Tally | None = None,
    metrics: Metrics | None = None,
) -> Played:
    """Run requests, read as they arrive, through one loop on a fresh ``sim``.

    With ``FlatMetrics`` it takes no more memory however many there are, if a ``tally`` that
    records keeps nothing either.

    Raises:
        ValueError: the loop is unknown, or the requests are not in order of arrival.
        KeyboardInterrupt: somebody pressed Ctrl-C; the run has ended cleanly all the same.
    """
    began = perf_counter()
    frontend = Frontend(requests, on_output)
    tally = tally or Tally()
    engine, worker = make_length_engine(
        loop, model, config, frontend, cost, tally, metrics or Metrics()
    )
    with abort_on_interrupt(frontend):
        drive(find_loop(loop).start(engine), engine)
    if frontend.interrupted:
        raise KeyboardInterrupt
    scheduler = engine.scheduler
    return Played(
        loop,
        scheduler.config,
        engine.metrics,
        tally,
        worker.num_steps,
        worker.peak_tokens,
        scheduler.num_retractions,
        perf_counter() - began,
    )


def check_replayable(loop: str, spec: Design) -> None:
    """Whether steps of which only lengths are known take the time that this loop's would.

    Raises:
        ValueError: they do not; the sentence says why.
    """
    why = ""
    if spec.whole_run is not None:
        why = "it is two engines"
    elif spec.relays[0] == "token_pool":
        why = "its relay copies prompts, and there are none"
    elif any(op.name == "recv" for op in spec.recipe):
        why = "it cuts the model into stages, and there is none"
    if why:
        raise ValueError(f"loop {loop!r} can't be replayed: {why}; take another, such as overlap.")


def make_length_engine(
    loop: str,
    model: LengthModel,
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel,
    tally: Tally,
    metrics: Metrics,
) -> tuple[Engine, LengthWorker]:
    """What ``loops/run.py:make_engine`` makes, but with the worker that ships no tokens.

    Raises:
        ValueError: the loop is unknown, or is none that can be replayed.
    """
    spec = find_loop(loop)
    check_replayable(loop, spec)
    simulated, cost = SimDevice(tally), cost.of_loop(loop)
    simulated.keep_pace(cost.pace)
    device = cast(Device, simulated)
    relay = make_relay(loop, spec.relays, "", device, RelayShape(config.max_running_requests, 0))
    config = fit_config(replace(config, context_len=model.context_len), spec, relay, model)
    worker = LengthWorker(device, model, relay, spec.in_flight, cost)
    scheduler = Scheduler(config, tally)
    return Engine(scheduler, worker, device, frontend, cost, metrics), worker
