"""Puts scheduler, worker and device together and drives a loop until every request has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..core import NoBatch, Output, Request, ScheduleBatch
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.interrupt import abort_on_interrupt
from ..engine.metrics import Metrics
from ..models.base import Model
from ..relay import Relay
from ..relay.registry import RelayShape, make_relay
from ..scheduler import Scheduler, SchedulerConfig
from ..trace import Trace
from .registry import find_loop
from .spec import LoopSpec


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


def fit_config(
    config: SchedulerConfig, spec: LoopSpec, relay: Relay, model: Model
) -> SchedulerConfig:
    """``config`` with what the loop, its relay and the model decide."""
    return replace(
        config,
        **spec.settings,
        run_ahead=relay.run_ahead,
        overrun=spec.overrun,
        context_len=min(config.context_len, model.context_len),
        row_len=row_len_of(config, spec, model),
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
    )


def row_len_of(config: SchedulerConfig, spec: LoopSpec, model: Model) -> int:
    """Positions in a row of the page table: the context, and what a loop runs past it."""
    return min(config.context_len + max(0, spec.overrun - 1), model.context_len)


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
        ValueError: the loop is unknown, or device or relay do not fit it.
    """
    spec = find_loop(loop)
    spec.check_device(loop, device.name)
    row_len = row_len_of(config, spec, model) + config.page_size  # the last page may stick out
    shape = RelayShape(config.max_running_requests, row_len)
    made = make_relay(loop, spec.relays, relay, device, shape)
    config = fit_config(config, spec, made, model)
    worker = spec.worker(
        device,
        model,
        made,
        num_slots=config.num_slots + config.page_size,  # page 0 is padding
        max_running_requests=config.max_running_requests,
        max_len=row_len,
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
        ValueError: the loop is unknown, or device or relay do not fit it.
    """
    requests = tuple(requests)
    try:
        frontend = Frontend(requests, on_output)
        engine = make_engine(
            loop, device, model, config or SchedulerConfig(), frontend, cost, relay
        )
        with abort_on_interrupt(frontend):
            drive(find_loop(loop).start(engine, **options), engine)
    finally:
        device.close()
    trace = device.recorder.trace(loop, device.name, model.name, device.clock)
    return Run(loop, requests, trace, frontend.interrupted, engine.metrics)
