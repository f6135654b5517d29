"""Puts scheduler, worker and device together and drives a loop until every request has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..core import NoBatch, Output, Request, SamplingParams, ScheduleBatch
from ..devices.base import Device
from ..devices.cost import MILLISECOND, NO_COST, CostModel
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import Frontend, abort_on_interrupt
from ..engine.metrics import Metrics
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .design import find_loop, line_of
from .wiring import wire


@dataclass(frozen=True, repr=False)
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
        """Tokens by request id; of those who share one, the second's under ``a (2)``, and so on."""
        return {name: req.output_ids for name, req in self._by_name()}

    @property
    def errors(self) -> dict[str, str]:
        """Reasons of the requests that were refused or failed, by id as in ``outputs``."""
        return {name: req.error for name, req in self._by_name() if req.error}

    def _by_name(self) -> Iterator[tuple[str, Request]]:
        said: Counter[str] = Counter()
        for req in self.requests:
            said[req.name] += 1
            yield req.name + (f" ({said[req.name]})" if said[req.name] > 1 else ""), req

    def __repr__(self) -> str:
        trace, tokens = self.trace, sum(map(len, self.outputs.values()))
        failed = f", {len(self.errors)} of them with an error," if self.errors else ""
        return (
            f"<{self.loop} on {trace.device} with {trace.model}: {tokens} tokens of "
            f"{len(self.requests)} requests{failed} in {trace.end / MILLISECOND:.1f} ms>"
        )


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


def run_to_end(
    loop: str,
    device: str,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    cost: CostModel = NO_COST,
    on_output: Callable[[Output], None] = lambda output: None,
) -> Run:
    """A run on a fresh device that is good for nothing if somebody cuts it short.

    Raises:
        KeyboardInterrupt: somebody did; the run has ended cleanly all the same.
        RunStopped: it stopped with an error after something had run.
    """
    opened = open_device(device)
    try:
        run = run_loop(loop, opened, model, requests, config, cost, on_output=on_output)
    except Exception as error:  # a broken scheduler may stop in any way
        opened.recorder.mark("stopped", error=f"{type(error).__name__}: {error}")
        about = (loop, opened.name, model.name, opened.clock, model.dtype)
        trace = opened.recorder.trace(*about)
        if not trace.slices:
            raise  # bad input: nothing has run
        raise RunStopped(loop, error, trace) from error
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def warm_up(device: str, model: Model, config: SchedulerConfig) -> None:
    """A short run that nobody times: libraries compile and allocate on their first steps."""
    opened = open_device(device)
    opened.close()
    if opened.clock == "virtual":
        return
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"warm up {i}", [0] * 8, params) for i in range(2)]
    run_to_end("serial", device, model, requests, config)


def fresh(request: Request) -> Request:
    """The same request, not yet run."""
    return Request(
        request.rid,
        request.prompt,
        request.params,
        request.arrival_time,
        priority=request.priority,
    )
