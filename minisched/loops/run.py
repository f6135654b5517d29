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
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .current_line import line_of
from .registry import find_loop
from .wiring import wire


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


class RunStopped(RuntimeError):
    """A loop stopped with an error; ``traces`` are of the runs so far, and the last one is its."""

    def __init__(self, loop: str, error: Exception, trace: Trace) -> None:
        super().__init__(f"{loop} stopped with {type(error).__name__}: {error}")
        self.traces = [trace]


def make_engine(
    loop: str,
    device: Device,
    model: Model,
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    **options: object,
) -> Engine:
    """Everything a loop needs, wired; with the ``options`` that it will be started with.

    Raises:
        ValueError: the loop is unknown, or device or relay do not fit it.
    """
    spec = find_loop(loop)
    spec = replace(spec, options={**spec.options, **options})
    return wire(loop, spec, device, model, config, frontend, cost, relay)


def drive(turns: Iterator[ScheduleBatch | NoBatch], engine: Engine) -> None:
    """Turn the loop until every request has ended and every step has come back.

    Raises:
        MemoryLeak: memory is missing, or still held, after that.
    """
    engine.device.recorder.line = line_of(turns)
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
    frontend, config = Frontend(requests, on_output), config or SchedulerConfig()
    try:
        spec = find_loop(loop)
        spec.check_device(loop, device.name)
        with abort_on_interrupt(frontend):
            if spec.whole_run is not None:
                metrics = spec.whole_run(
                    spec, device, model, requests, config, frontend, cost, relay,
                    **{**spec.options, **options},
                )  # fmt: skip
            else:
                engine = make_engine(loop, device, model, config, frontend, cost, relay, **options)
                drive(spec.start(engine, **options), engine)
                metrics = engine.metrics
    finally:
        device.close()
    trace = device.recorder.trace(loop, device.name, model.name, device.clock, model.dtype)
    return Run(loop, requests, trace, frontend.interrupted, metrics)
