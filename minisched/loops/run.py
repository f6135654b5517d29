"""Runs requests through a loop: makes the engine of its design, and takes its turns.

``run_loop`` does all of it. ``wire`` makes scheduler, relay and worker for a device. ``drive``
resumes the generator until every request has ended. A ``Run`` has the requests with their outputs,
and the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

from ..core import NoBatch, Output, Request, SamplingParams, ScheduleBatch
from ..core.notebook import NotebookOutput
from ..core.text import distinct
from ..devices.base import Device, memory_for
from ..devices.cost import MILLISECOND, NO_COST, CostModel
from ..devices.registry import open_device
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend, abort_on_interrupt
from ..engine.metrics import Metrics
from ..engine.owner import give, refuse_if_owned, release
from ..features import features_of
from ..features.beam_search import BeamWorker, check_beams
from ..memory import self_check
from ..models.base import GraphModel, Model
from ..models.hash import HashModel
from ..models.tokenizer import text_codec_of
from ..relay import CARRIERS, make_relay
from ..relay.base import Relay, RelayShape
from ..scheduler import Scheduler, SchedulerConfig
from ..scheduler.verify import Drafts
from ..scheduler.wiring import check_run_ahead, mixes_chunks
from ..speculative.draft_model import make_drafter
from ..speculative.lookup import propose
from ..trace import Trace
from ..worker import Worker
from ..worker.verify import VerifyWorker
from .design import Design, LoopStuck, find_loop, line_of, own_line, take_turn
from .mini import UploadWorker


@dataclass(frozen=True, repr=False)
class Run:
    """One finished run: its requests with their outputs, and its trace.

    ``interrupted``: the user pressed Ctrl-C, and the remaining requests were aborted.
    """

    loop: str
    requests: tuple[Request, ...]
    trace: Trace
    interrupted: bool = False
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Return tokens by request id; a second request ``a`` is ``a (2)``, or the next number."""
        return {name: req.output_ids for name, req in self._by_name()}

    @property
    def errors(self) -> dict[str, str]:
        """Return the reasons of refused and failed requests, by id as in ``outputs``."""
        return {name: req.error for name, req in self._by_name() if req.error}

    def _by_name(self) -> Iterator[tuple[str, Request]]:
        names = distinct(req.name for req in self.requests)
        yield from zip(names, self.requests, strict=True)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the picture of its steps and the text, for a notebook."""
        return NotebookOutput.draw(self.trace, repr(self))

    def __repr__(self) -> str:
        trace, tokens = self.trace, sum(map(len, self.outputs.values()))
        failed = f", {len(self.errors)} of them with an error," if self.errors else ""
        count = len(self.requests)
        of = "1 request" if count == 1 else f"{count} requests"
        return (
            f"<{self.loop} on {trace.device} with {trace.model}: {tokens} tokens of "
            f"{of}{failed} in {trace.end / MILLISECOND:.1f} ms>"
        )


@dataclass(frozen=True)
class RunSetup:
    """The arguments of a run; ``spec`` is the loop's, with the options of this run."""

    loop: str
    spec: Design
    device: Device
    model: Model
    config: SchedulerConfig
    frontend: Frontend
    cost: CostModel = NO_COST
    relay: str = ""  # by default the first one of ``spec``
    requests: Sequence[Request] = ()


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
        spec = find_loop(loop, options)
        spec.check_device(loop, device.name)
        setup = RunSetup(loop, spec, device, model, config, frontend, cost, relay, requests)
        whole_run = spec.whole_run or one_engine
        with abort_on_interrupt(frontend):
            metrics = whole_run(setup, **spec.options)
    finally:
        device.close()
        release(model, device)
    trace = trace_of(loop, device, model)
    return Run(loop, requests, trace, frontend.interrupted, metrics)


def trace_of(loop: str, device: Device, model: Model) -> Trace:
    """Return the recorded trace; ``apart`` is only of a model that was measured when opened."""
    apart = getattr(model, "apart", None)
    return Trace.of(
        device.recorder, loop, device.name, model.name, device.clock, model.dtype, apart
    )


def one_engine(setup: RunSetup, **options: Any) -> Metrics:
    """Turn the loop on one engine, which most designs need."""
    engine = wire(setup)
    drive(setup.spec.start(engine), engine)
    return engine.metrics


MOST_EMPTY = 20_000  # consecutive turns that launch and process no step
MOST_EMPTY_S = 60.0  # and their seconds on a wall clock


def drive(turns: Iterator[ScheduleBatch | NoBatch], engine: Engine) -> None:
    """Take turns of the loop until every request has ended and every step has returned.

    Raises:
        LoopStuck: the turns ended before that, or launched and processed no step for long.
        MemoryLeak: memory is missing, or still held, after that.
        Exception: the source of requests raised it.
    """
    engine.device.recorder.line = line_of(turns)
    scheduler, empty, before = engine.scheduler, 0, (0, 0, 0)
    since = monotonic()
    while not engine.is_done:
        take_turn(turns)
        now = scheduler.leases.launched_step, scheduler.batches_in_flight, len(scheduler.live)
        if now != before:
            empty, before, since = 0, now, monotonic()
        elif (empty := empty + 1) % MOST_EMPTY == 0 and (
            engine.device.clock == "virtual" or monotonic() - since > MOST_EMPTY_S
        ):
            left = ", ".join(scheduler.live) or "a step in flight"
            raise LoopStuck(f"{empty} turns in a row do nothing; these have not ended: {left}")
    self_check(engine.scheduler.leases)
    if engine.frontend.failure is not None:
        raise engine.frontend.failure


# -- The engine that a loop turns ------------------------------------------------------------------


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
    """Return the engine of a loop that will be started with these ``options``.

    Raises:
        ValueError: the loop is unknown, or device or relay do not fit it.
    """
    spec = find_loop(loop, options)
    return wire(RunSetup(loop, spec, device, model, config, frontend, cost, relay))


def wire(
    setup: RunSetup,
    scheduler_class: Callable[..., Scheduler] | None = None,
    engine_class: Callable[..., Engine] = Engine,
) -> Engine:
    """Make the engine of a design, which need not be among ``LOOPS``.

    Raises:
        ValueError: device or relay do not fit it, the device has no memory for it, or another
            engine computes with the model.
    """
    loop, spec, device, model, config = (
        setup.loop, setup.spec, setup.device, setup.model, setup.config
    )  # fmt: skip
    spec.check_device(loop, device.name)
    refuse_if_owned(model)
    cost = setup.cost.of_loop(loop)
    if isinstance(device, SimDevice):
        device.keep_pace(cost.pace)
    relays, wants = relays_for(loop, spec, config.speculative_algorithm)
    rows = config.max_running_requests
    row_len = row_len_of(config, spec, model) + config.page_size  # and a last page that ends later
    what = f"a KV pool of {config.num_slots} slots and {rows} rows of {row_len} positions"
    with memory_for(what, device.name):
        shape = RelayShape(rows, row_len, config.num_draft_tokens, spec.in_flight)
        made = make_relay(loop, relays, setup.relay, device, shape, wants)
        config = fit_config(config, spec, made, model)
        check_run_ahead(loop, config)
        pins, drafter = spec.pins, make_drafter(config, device.name, model)
        worker_class = spec.worker
        if worker_class is Worker and made.gives_every_input:
            worker_class = UploadWorker
        if config.speculative_algorithm:
            worker_class = partial(
                VerifyWorker, drafter=drafter, num_draft_tokens=config.num_draft_tokens
            )
            pins = max(2, pins)
        if config.beam_width > 1:
            is_on_sim = isinstance(device, SimDevice) and isinstance(model, HashModel)
            check_beams(loop, config, is_on_sim)
            worker_class = partial(BeamWorker, width=config.beam_width)
        worker = worker_class(
            device,
            model,
            made,
            num_slots=config.num_slots + config.page_size,  # page 0 is padding
            max_running_requests=rows,
            max_len=row_len,
            page_size=config.page_size,
            depth=spec.in_flight,
            cost=cost,
            pins=pins,
        )
        if drafter is not None:
            drafter.allocate(device, config.num_slots + config.page_size, rows, row_len)
        if isinstance(model, GraphModel):
            limit = config.cuda_graph_max_bs
            max_bs = rows if limit is None else min(rows, limit)
            table = model.init_cuda_graphs(device, worker.page_table, max_bs)
            worker.page_table = worker.page_tables[""] = table
        features = features_of(config, model, device.recorder)
        if config.speculative_algorithm:
            on_host = propose if config.speculative_algorithm == "NGRAM" else None
            features.append(Drafts(config.num_draft_tokens, on_host))
        make_scheduler = scheduler_class or spec.scheduler
        scheduler = make_scheduler(config, device.recorder, features)
    if device.recorder.is_on:
        worker.touches.committed = lambda: scheduler.leases.launched_step
        scheduler.allocator.on_free = worker.touches.free_pages
        scheduler.table.on_free = worker.touches.free_row
    engine = engine_class(scheduler, worker, device, setup.frontend, cost)
    give(model, engine)
    return engine


# -- The configuration that follows from loop, relay and model -------------------------------------

WANTS_CARRIER = (
    "with speculation a relay that carries drafts and lengths: the host itself, or the "
    "pool-indexed FutureMap, which has a cell for each"
)


def relays_for(loop: str, spec: Design, algorithm: str) -> tuple[tuple[str, ...], str]:
    """Return the relays that fit a loop with this algorithm, and its reason to refuse others.

    Raises:
        ValueError: the original does not speculate in this way; the message has the reason.
    """
    if not algorithm:
        return spec.relays, spec.refuses.get("other relays", "")
    if algorithm in spec.refuses:
        raise ValueError(
            f"loop {loop!r} does not speculate with {algorithm}: {spec.refuses[algorithm]}."
        )
    carriers = tuple(name for name in spec.relays if name in CARRIERS)
    if not carriers:  # the loop's name asks for another one
        raise ValueError(
            f"relay {spec.relays[0]!r} does not fit loop {loop!r}: the loop wants {WANTS_CARRIER}."
        )
    return carriers, WANTS_CARRIER


def fit_config(
    config: SchedulerConfig, spec: Design, relay: Relay, model: Model
) -> SchedulerConfig:
    """Return ``config`` with the settings that follow from the loop, its relay and the model.

    A second stream may write memory of a request: the token pool of a relay, or KV that comes over
    a network. Then no stream orders the next owner's writes after the last step. There memory is
    released by the lease rule, unless the user has chosen another one.

    With a relay that runs ahead, the host does not know how many drafts of a step in flight are
    accepted. So all of them may exceed a request's length.

    Raises:
        ValueError: drafts would fill the model's context, or the KV pool.
    """
    slack = config.num_draft_tokens * (spec.in_flight - 1) if relay.run_ahead else 0
    for limit, what in (
        (model.context_len, f"the context of {model.context_len} tokens"),
        (config.num_slots, f"the KV pool of {config.num_slots} slots"),
    ):
        if slack >= limit:
            raise ValueError(
                f"speculative_num_draft_tokens is {config.num_draft_tokens}, but then drafts in "
                f"flight could reach {slack} positions past a request, and leave nothing of {what}."
            )
    has_two_writers = relay.gives_every_input or spec.second_writer
    waits = "lease" if has_two_writers and "free_rule=" not in config.rules else ""
    return replace(
        config,
        **{
            "rules": config.rules or spec.rules,
            "free_rule": config.free_rule or waits,
            "enable_mixed_chunk": mixes_chunks(config, spec.rules),
            **spec.settings,
        },
        run_ahead=relay.run_ahead,
        overrun=spec.overrun,
        refuses=spec.refusals(relay.name),
        draft_slack=slack,
        context_len=min(config.context_len, model.context_len - slack),
        row_len=row_len_of(config, spec, model),
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
        has_logits=hasattr(model, "logprobs"),
        has_tokenizer=text_codec_of(model.name, model.tokenizer) is not None,
    )


def row_len_of(config: SchedulerConfig, spec: Design, model: Model) -> int:
    """Return the positions in a row of the page table: the context and a loop's overrun."""
    past = max(0, spec.overrun - 1) + config.num_draft_tokens * (spec.in_flight - 1)
    return min(config.context_len + past, model.context_len)


# -- Runs on a device of their own -----------------------------------------------------------------


class RunStopped(RuntimeError):
    """A loop stopped with an error; ``traces`` has the runs so far, and this one as the last."""

    def __init__(self, loop: str, error: Exception, trace: Trace) -> None:
        reason, (place, _) = str(error), own_line(error, find_loop(loop))
        reason = f"{reason.rstrip('.')}{place}" if place else reason
        super().__init__(f"{loop} stopped with {type(error).__name__}: {reason}")
        self.traces = [trace]


@contextmanager
def traced_stop(loop: str, device: Device, model: Model) -> Iterator[None]:
    """Replace an error that stops a run inside the block by one with its trace.

    Raises:
        RunStopped: the run stopped after an op had run, or in a user's own loop.
    """
    try:
        yield
    except Exception as error:  # a broken scheduler may stop in any way
        device.recorder.mark("stopped", error=f"{type(error).__name__}: {error}")
        trace = trace_of(loop, device, model)
        is_the_loop = isinstance(error, LoopStuck) or own_line(error, find_loop(loop))[0]
        if not (trace.slices or is_the_loop):
            raise  # bad input: no op has run
        raise RunStopped(loop, error, trace) from error


def run_to_end(
    loop: str,
    device: str,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    cost: CostModel = NO_COST,
    on_output: Callable[[Output], None] = lambda output: None,
) -> Run:
    """Run on a fresh device; an interrupted run gives no result.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C, after which the run ended cleanly.
        RunStopped: it stopped with an error after an op had run.
    """
    opened = open_device(device)
    with traced_stop(loop, opened, model):
        run = run_loop(loop, opened, model, requests, config, cost, on_output=on_output)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def warm_up(device: str, model: Model, config: SchedulerConfig) -> None:
    """Run some steps before a measurement, because libraries compile and allocate in them."""
    opened = open_device(device)
    opened.close()
    if opened.clock == "virtual":
        return
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"warm up {i}", [0] * 8, params) for i in range(2)]
    run_to_end("serial", device, model, requests, config)


def fresh(request: Request) -> Request:
    """Return the same request, not yet run."""
    rid, prompt, params = request.rid, request.prompt, request.params
    return Request(rid, prompt, params, request.arrival_time, priority=request.priority)
