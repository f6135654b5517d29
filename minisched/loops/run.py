"""Puts scheduler, worker and device together and drives a loop until every request has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..core import NoBatch, Output, Request, ScheduleBatch
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..models.base import Model
from ..relay import Relay
from ..scheduler import Scheduler, SchedulerConfig
from ..trace import Trace
from ..worker import Worker
from .engine import Engine
from .frontend import Frontend
from .interrupt import abort_on_interrupt
from .metrics import Metrics
from .registry import RELAYS, LoopSpec, find_loop


@dataclass(frozen=True)
class Run:
    """One finished run: its requests, with what they produced, and its trace.

    ``interrupted``: somebody pressed Ctrl-C, and the requests that were left were aborted.
    """

    loop: str
    requests: tuple[Request, ...]
    trace: Trace
    interrupted: bool = False
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Tokens by request id."""
        outputs: dict[str, list[int]] = {}
        for req in self.requests:  # of two with one id, only the first one ran
            outputs.setdefault(req.rid, req.output_ids)
        return outputs

    @property
    def errors(self) -> dict[str, str]:
        """Reasons of the requests that were refused or failed, by id."""
        return {req.rid: req.error for req in self.requests if req.error}


def make_relay(spec: LoopSpec, name: str, device: Device, max_running_requests: int) -> Relay:
    """The relay of that name, if it fits the loop.

    Raises:
        ValueError: it does not, or there is none of that name.
    """
    if name not in spec.relays:
        raise ValueError(f"relay {name!r} does not fit; this loop takes {', '.join(spec.relays)}.")
    return RELAYS[name](device, max_running_requests)


def fit_config(
    config: SchedulerConfig, spec: LoopSpec, relay: Relay, model: Model
) -> SchedulerConfig:
    """``config`` with what the loop, its relay and the model decide."""
    return replace(
        config,
        run_ahead=relay.run_ahead,
        foresee_length=spec.foresee_length,
        context_len=min(config.context_len, model.context_len),
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
    )


def make_engine(
    loop: str,
    device: Device,
    model: Model,
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
) -> Engine:
    """Everything a loop needs, wired. ``config`` gets the loop's run-ahead and the model's limits.

    Raises:
        ValueError: the loop is unknown, or the relay does not fit it.
    """
    spec = find_loop(loop)
    made = make_relay(spec, relay or spec.relays[0], device, config.max_running_requests)
    config = fit_config(config, spec, made, model)
    worker = Worker(
        device,
        model,
        made,
        num_slots=config.num_slots + config.page_size,  # page 0 is padding
        max_running_requests=config.max_running_requests,
        max_len=config.context_len + config.page_size,  # the last page may stick out
        page_size=config.page_size,
        depth=spec.depth,
        cost=cost,
    )
    return Engine(Scheduler(config, device.recorder), worker, device, frontend, cost)


def drive(turns: Iterator[ScheduleBatch | NoBatch], engine: Engine) -> None:
    """Turn the loop until every request has ended and every step has come back.

    Raises:
        MemoryLeak: memory is missing, or still held, after that.
    """
    while not engine.is_done:
        next(turns)
    engine.scheduler.self_check()


def run_loop(
    loop: str,
    device: Device,
    model: Model,
    requests: Iterable[Request],
    config: SchedulerConfig | None = None,
    cost: CostModel = NO_COST,
    relay: str = "",
    on_output: Callable[[Output], None] = lambda output: None,
    **options: object,
) -> Run:
    """Run requests through one loop on one device; the device is closed at the end.

    Raises:
        ValueError: the loop is unknown, or the relay does not fit it.
    """
    requests = tuple(requests)
    try:
        frontend = Frontend(requests, on_output)
        engine = make_engine(
            loop, device, model, config or SchedulerConfig(), frontend, cost, relay
        )
        with abort_on_interrupt(frontend):
            drive(find_loop(loop).run(engine, **options), engine)
    finally:
        device.close()
    trace = device.recorder.trace(loop, device.name, model.name, device.clock)
    return Run(loop, requests, trace, frontend.interrupted, engine.metrics)
