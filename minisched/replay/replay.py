"""Recorded requests on the simulator, by their lengths alone, and what that shows as JSON."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

from ..core import Output, Request, ScheduleBatch
from ..devices.base import Array, Buffer, Device
from ..devices.cost import CostModel
from ..devices.sim import SimDevice, Vector
from ..engine.engine import Engine
from ..engine.frontend import Frontend, abort_on_interrupt
from ..engine.metrics import Metrics, Percentiles
from ..features import features_of
from ..loops.design import Design, find_loop
from ..loops.run import drive, fit_config
from ..loops.two_batch import TwoBatchWorker
from ..loops.vllm_pp import PipelineWorker
from ..models.base import ForwardBatch
from ..policy.rules import SPARED
from ..relay import make_relay
from ..relay.base import Relay, RelayShape
from ..scheduler import Scheduler, SchedulerConfig
from ..trace import NullRecorder, Recorder, Slice
from ..worker import Step, Worker
from .profiles import Profile
from .trace_file import Survey, Turn

# -- Settings with which every request of a trace can finish ---------------------------------------

CHUNK = 8192  # what SGLang gives GPUs of this class (cli/presets.py: h100)
MAX_RUNNING_REQUESTS = 256  # the largest decode batch that it captures as a graph there
MOST_PAGES = 2**24  # of a pool: the simulation keeps a number for each
MOST_RUNNING = 2**20


def config_for(survey: Survey, profile: Profile, given: Mapping[str, Any]) -> SchedulerConfig:
    """The settings ``given`` by name, and what suits a trace on a machine for the others.

    The KV pool is what the machine has room for; if that is too small for the longest request, as
    much as that takes. Admission wants a page beyond what a request needs, and one that stays over.

    Raises:
        ValueError: a value is outside its limits, or would fill the memory of the machine that
            simulates.
    """
    page_size = given.get("page_size") or survey.page_size
    kv_pages = max(profile.kv_tokens // page_size, -(-survey.longest // page_size) + 2)
    usual = {
        "page_size": page_size,
        "kv_tokens": kv_pages * page_size,
        "max_running_requests": MAX_RUNNING_REQUESTS,
        "chunked_prefill_size": -(-CHUNK // page_size) * page_size,
        "context_len": survey.longest + SPARED,
    }
    config = SchedulerConfig(**{**usual, **given})
    if config.beam_width > 1:
        raise ValueError(
            f"beam_width is {config.beam_width}, but a replay has no tokens to choose beams from; "
            "leave it out."
        )
    for what, count, most in (
        ("pages", config.num_pages, MOST_PAGES),
        ("running requests", config.max_running_requests, MOST_RUNNING),
    ):
        if count > most:
            raise ValueError(
                f"{count} {what} are more than a simulation keeps ({most}): lower kv_tokens or "
                "max_running_requests, or raise page_size."
            )
    return config


# -- A recorder that adds up and keeps no slice, however long the run ------------------------------


class LaneTally(NullRecorder):
    """How long each lane was busy, and when the last slice ended, in nanoseconds.

    Slices of one lane never overlap, so their durations add up. While the host waits it is not
    busy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy_ns: Counter[str] = Counter()  # by lane
        self.end = 0
        self._lane_of: dict[int, str] = {}  # by op that runs

    def slice(self, item: Slice) -> None:
        """Add a slice's time."""
        self.add(item.lane, item.name, item.start, item.end)

    def launch(self, *args: Any, **options: Any) -> int:
        """Keep the lane of an op; no ``Slice`` is made, since none is kept."""
        op = super().launch(*args, **options)
        self._lane_of[op] = options["lane"]
        return op

    def ended(self, op: int, start: int, end: int) -> None:
        """Add an op's time."""
        self.add(self._lane_of.pop(op), "", start, end)

    def add(self, lane: str, name: str, start: int, end: int) -> None:
        """Add the time of a slice."""
        if name != "wait":
            self.busy_ns[lane] += end - start
        self.end = max(self.end, end)


# -- A model that computes nothing: every request gets as many tokens as the trace has -------------


class LengthModel:
    """For recorded workloads, of which only lengths are known (``models/base.py:Model``).

    A request that is numbered ``seed`` answers with one token over and over: the id
    ``first_output_id + seed``. No prompt has it, and no other answer, so that nothing is shared
    which was not shared in the recording. ``context_len``: the longest prompt and answer together.
    """

    name = "length"
    dtype = ""
    pad_to = 1
    eos_ids: frozenset[int] = frozenset()
    tokenizer: Any = None

    def __init__(self, first_output_id: int, num_requests: int, context_len: int) -> None:
        self.first_output_id = first_output_id
        self.vocab_size = first_output_id + num_requests
        self.context_len = context_len + SPARED

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Nothing: there is no KV."""

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> None:
        """Nothing: there are no logits."""

    def sample(self, logits: Array, batch: ForwardBatch) -> Vector:
        """Each request's token, [num_reqs]."""
        return Vector(self.first_output_id + params.seed for params, _, _ in batch.sampling)


# -- A worker that takes time on the device, and next to none on the host that simulates it --------


class LengthWorker(Worker[Step]):
    """Launches the same three ops as ``Worker``, at the same cost, but ships no tokens with them.

    No page table is filled and no id resolved: the length model looks at neither. So a step costs
    the simulation what its rows cost, not what their prompts would.
    """

    def __init__(
        self, device: Device, model: LengthModel, relay: Relay, depth: int, cost: CostModel
    ) -> None:
        super().__init__(
            device, model, relay,
            num_slots=0, max_running_requests=0, max_len=0, depth=depth, cost=cost,
        )  # fmt: skip
        self.num_steps = 0
        self.peak_tokens = 0  # computed in one step: what activations need memory for

    def prepare(self, step: Step, previous: Step | None = None) -> None:
        """Host: there is nothing to lay out, unless a loop does that by itself."""
        self.ship(step)

    def ship(self, step: Step) -> None:
        """Count the step; there is nothing to ship."""
        self.num_steps += 1
        self.peak_tokens = max(self.peak_tokens, step.batch.size[1])

    def launch_forward(self, step: Step) -> None:
        """Queue a pass that computes nothing and takes the time of its rows."""
        batch = step.batch
        extents = zip(batch.starts, map(len, batch.ids), strict=True)
        step.logits_output = self.queue(
            step, "forward", lambda: None,
            on=self.forward_stream, cost=self.cost.forward_rows(extents),
        )  # fmt: skip

    def launch_sample(self, step: Step) -> None:
        """Queue the sampling."""
        step.next_token_ids = self.queue(
            step, "sample", self.sample_rows, step.batch,
            on=self.sample_stream, cost=self.cost.sample_rows(len(step.batch.reqs)),
        )  # fmt: skip
        self.copy_stream.wait(step.next_token_ids)

    def sample_rows(self, batch: ScheduleBatch) -> Vector:
        """Return each row's token, [num_reqs], on the device."""
        first = cast(LengthModel, self.model).first_output_id
        return Vector([first + req.params.seed for req in batch.reqs])

    def launch_copy(self, step: Step) -> None:
        """Queue the copy, which passes the tokens on."""
        assert step.next_token_ids is not None
        step.copy_done = self.queue(
            step, "copy", lambda tokens: tokens, step.next_token_ids,
            on=self.copy_stream, cost=self.cost.copy, after=("copy", step.next_token_ids),
        )  # fmt: skip


# -- Drives a loop over requests of which only lengths are known, in virtual time ------------------


@dataclass(frozen=True)
class ReplayedRun:
    """A run that has ended: what its clients saw, and what it took."""

    loop: str
    config: SchedulerConfig
    metrics: Metrics
    tally: LaneTally
    num_steps: int
    peak_tokens: int  # of one step
    host_seconds: float  # real ones

    @property
    def makespan_ns(self) -> int:
        """Time from the first arrival to the end of the last slice."""
        return self.tally.end - (self.metrics.first_arrival or 0)

    @property
    def device_busy(self) -> float:
        """Share of the makespan in which the forward stream worked."""
        return self.tally.busy_ns["forward"] / self.makespan_ns if self.makespan_ns > 0 else 0.0

    @property
    def throughput(self) -> float:
        """Tokens a second over the makespan."""
        tokens = self.metrics.output_tokens
        return tokens * 1e9 / self.makespan_ns if self.makespan_ns > 0 else 0.0


class Conversations:
    """Requests in order of arrival, of which a later ``Turn`` waits for the answer before it.

    Its prompt is the conversation so far (prompt and answer of the turn before), and then what the
    turn adds. It arrives ``delay`` after that answer's end, and not before its own time. Source:
    AIPerf ``docs/reference/conversation-context-mode.md``, the default of ``mooncake_trace``.
    """

    def __init__(self, requests: Iterable[Request], on_output: Callable[[Output], None]) -> None:
        self.on_output = on_output
        self.waiting: dict[str, deque[Turn]] = {}  # by session, after a turn that has not ended
        self.newest: dict[str, Turn] = {}  # by session, the turn that was sent last
        self.ends: dict[str, int] = {}  # by session, when that one ended
        self.sessions: dict[str, str] = {}  # by id of a turn that has not ended
        self.frontend = Frontend(self._first(requests), self._hear)

    def _first(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests that wait for no answer."""
        for req in requests:
            if not isinstance(req, Turn):
                yield req
            elif req.session in self.newest:
                self.waiting.setdefault(req.session, deque()).append(req)
                if req.session in self.ends:
                    self._send_next(req.session)
            else:
                self.newest[req.session], self.sessions[req.rid] = req, req.session
                yield req

    def _hear(self, output: Output) -> None:
        """Receive an output; the end of a turn sends the one after it."""
        if output.finish_reason is not None and output.rid in self.sessions:
            session = self.sessions.pop(output.rid)
            self.ends[session] = self.frontend.now()
            if self.waiting.get(session) and not self.frontend.has_ended:
                self._send_next(session)
        self.on_output(output)

    def _send_next(self, session: str) -> None:
        turn, before = self.waiting[session].popleft(), self.newest[session]
        history = (*before.prompt, *before.output_ids, *turn.prompt)
        due = max(turn.arrival_time, self.ends.pop(session) + turn.delay, self.frontend.now())
        following = Turn(turn.rid, history, turn.params, session=session)
        self.newest[session], self.sessions[turn.rid] = following, session
        self.frontend.push(following, due)


def play(
    loop: str,
    model: LengthModel,
    requests: Iterable[Request],
    config: SchedulerConfig,
    cost: CostModel,
    on_output: Callable[[Output], None] = lambda output: None,
    recorder: Recorder | None = None,
) -> ReplayedRun:
    """Run requests, read as they arrive, through one loop on a fresh ``sim``.

    Raises:
        ValueError: the loop is unknown, or the requests are not in order of arrival.
        KeyboardInterrupt: Ctrl-C was pressed; the run has ended cleanly all the same.
    """
    began = perf_counter()
    spec = replayable(loop)
    frontend = Conversations(requests, on_output).frontend
    tally, cost = LaneTally(), cost.of_loop(loop)
    device = SimDevice(recorder or tally)
    device.keep_pace(cost.pace)
    relay = make_relay(loop, spec.relays, "", device, RelayShape(config.max_running_requests))
    config = fit_config(replace(config, context_len=model.context_len), spec, relay, model)
    worker = LengthWorker(device, model, relay, spec.in_flight, cost)
    features = features_of(config, model, recorder or tally)
    scheduler = Scheduler(config, recorder or tally, features)
    engine = Engine(scheduler, worker, device, frontend, cost)
    with abort_on_interrupt(frontend):
        drive(spec.start(engine), engine)
    if frontend.interrupted:
        raise KeyboardInterrupt
    if recorder:
        for item in recorder.slices:
            tally.slice(item)
    return ReplayedRun(
        loop,
        scheduler.config,
        engine.metrics,
        tally,
        worker.num_steps,
        worker.peak_tokens,
        perf_counter() - began,
    )


def replayable(loop: str) -> Design:
    """Return the loop's design, if steps by length alone take the time that its own would.

    Raises:
        ValueError: they do not, or there is no such loop.
    """
    spec, why = find_loop(loop), ""
    if spec.whole_run is not None:
        why = "it is two engines"
    elif spec.relays[0] == "token_pool":
        why = "its relay copies prompts, and there are none"
    elif getattr(spec.worker, "func", spec.worker) in (PipelineWorker, TwoBatchWorker):
        why = "it cuts the model into stages, and there is none"
    if why:
        raise ValueError(f"loop {loop!r} can't be replayed: {why}; take another, such as overlap.")
    return spec


def as_json(run: ReplayedRun, survey: Survey, profile: str) -> dict[str, Any]:
    """Return one replay as a JSON object.

    Times in ``..._ms`` are virtual milliseconds (``null`` where nothing happened). ``makespan_ns``
    begins with the first arrival and ends with the last slice. ``device_busy`` is a share of it,
    and ``tokens_per_second`` counts over it. ``cache_hit_rate`` is the share of the tokens of all
    admissions that the prefix cache gave. Only ``host_seconds``, the time of the simulation, and
    ``requests_per_second`` of that time are real. ``ignored`` names fields of the file without
    effect, and ``skipped`` counts its empty requests.
    """
    metrics, config, num_requests = run.metrics, run.config, survey.requests
    return {
        "format": survey.name,
        "ignored": [*survey.ignored],
        "skipped": survey.num_skipped,
        "requests": num_requests,
        "finished": metrics.num_finished,
        "ttft_ms": percentiles_ms(metrics.ttft),
        "itl_ms": percentiles_ms(metrics.itl),
        "queue_ms": percentiles_ms(metrics.queue),
        "cache_hit_rate": metrics.cache_hit_rate,
        "retractions": metrics.num_retractions,
        "device_busy": run.device_busy,
        "makespan_ns": run.makespan_ns,
        "tokens_per_second": run.throughput,
        "steps": run.num_steps,
        "peak_tokens": run.peak_tokens,
        "loop": run.loop,
        "policy": config.schedule_policy,
        "profile": profile,
        "kv_tokens": config.num_slots,
        "page_size": config.page_size,
        "host_seconds": run.host_seconds,
        "requests_per_second": num_requests / run.host_seconds if run.host_seconds else 0.0,
    }


def percentiles_ms(times: Percentiles | None) -> dict[str, float | None]:
    """Percentiles for JSON."""
    if times is None:
        return dict.fromkeys(Percentiles._fields)
    return {name: value / 1e6 for name, value in times._asdict().items()}
