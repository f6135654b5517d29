"""One workload through a learner's lines: bounded, with everything that was heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from ..core import Output, Request, Result, SamplingParams, ScheduleBatch
from ..devices.cost import MILLISECOND, CostModel
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import Design, line_of
from ..loops.run import wire
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace
from ..worker import Step
from .guard import Mistake, TooLong, blame, bounded, unwatched
from .runs import VOCAB, alone, milliseconds, ordinal

# -- Small random workloads for learners' lines, and simpler ones, for counterexamples -------------

STOPS = frozenset(range(0, VOCAB, 9))  # tokens that end a request which has stop tokens


@dataclass(frozen=True)
class Asked:
    """One request: so many prompt tokens, so many new ones, and when it comes."""

    rid: str
    prompt: tuple[int, ...]
    new_tokens: int
    arrives_ms: int = 0
    may_stop: bool = False  # whether a stop token ends it early

    @property
    def truth(self) -> list[int]:
        """Its tokens, alone."""
        return alone(self.prompt, self.new_tokens, STOPS if self.may_stop else frozenset())

    def fresh(self) -> Request:
        """A request for the scheduler."""
        stops = STOPS if self.may_stop else frozenset[int]()
        params = SamplingParams(max_new_tokens=self.new_tokens, stop_token_ids=stops)
        return Request(self.rid, self.prompt, params, self.arrives_ms * MILLISECOND)


@dataclass(frozen=True)
class ExerciseWorkload:
    """Requests, how many may run at a time, and how many prompt tokens a step may take."""

    asked: tuple[Asked, ...]
    max_running_requests: int = 4
    chunk: int = -1  # -1: a whole prompt in one step

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler's settings."""
        return SchedulerConfig(
            kv_tokens=512,
            max_running_requests=self.max_running_requests,
            chunked_prefill_size=self.chunk,
            disable_radix_cache=True,
        )

    @property
    def about(self) -> str:
        """In words."""
        parts = [
            f"{one.rid} (prompt of {len(one.prompt)}, {one.new_tokens} new"
            + (f", comes after {one.arrives_ms} ms" if one.arrives_ms else "") + ")"
            for one in self.asked
        ]  # fmt: skip
        chunk = f"; prompts in chunks of {self.chunk}" if self.chunk > 0 else ""
        requests = "requests" if len(parts) > 1 else "request"
        return f"{len(parts)} {requests}: {', '.join(parts)}{chunk}"


@dataclass(frozen=True)
class WorkloadLimits:
    """What workloads of an exercise look like: the most of everything."""

    requests: int = 4
    prompt: int = 6
    new_tokens: int = 7
    arrives_ms: int = 60
    chunks: tuple[int, ...] = (-1,)
    may_stop: bool = True
    context: int = 1000  # of one request: its prompt and its new tokens

    def draw(self, seed: int) -> ExerciseWorkload:
        """The workload of a seed: the same one, always and everywhere."""
        random = Random(seed)
        count = random.randint(1, self.requests)
        asked = tuple(self._request(random, "abcdefgh"[at], at) for at in range(count))
        chunk = random.choice(self.chunks)
        return ExerciseWorkload(asked, random.randint(max(1, count), self.requests), chunk)

    def _request(self, random: Random, rid: str, at: int) -> Asked:
        prompt = tuple(random.randrange(VOCAB) for _ in range(random.randint(1, self.prompt)))
        arrives = random.choice([0, random.randint(1, self.arrives_ms)]) if at else 0
        may_stop = self.may_stop and random.random() < 0.5
        new_tokens = min(random.randint(1, self.new_tokens), self.context - len(prompt))
        return Asked(rid, prompt, new_tokens, arrives, may_stop)


def simpler(workload: ExerciseWorkload) -> Iterator[ExerciseWorkload]:
    """Workloads with one request less, or with less of one request, the boldest first."""
    asked = workload.asked
    for at in range(len(asked) if len(asked) > 1 else 0):
        rest = asked[:at] + asked[at + 1 :]
        yield replace(workload, asked=tuple(map(_renamed, rest, "abcdefgh")))
    for at, one in enumerate(asked):
        for less in _less(one):
            yield replace(workload, asked=(*asked[:at], less, *asked[at + 1 :]))


def _renamed(one: Asked, rid: str) -> Asked:
    """The same tokens under another name: they do not depend on it."""
    return replace(one, rid=rid)


def _less(one: Asked) -> Iterator[Asked]:
    if one.may_stop:
        yield replace(one, may_stop=False)
    if one.arrives_ms:
        yield replace(one, arrives_ms=0)
        yield replace(one, arrives_ms=one.arrives_ms // 2)
    if len(one.prompt) > 1:
        yield replace(one, prompt=one.prompt[: len(one.prompt) // 2])
        yield replace(one, prompt=one.prompt[:-1])
    if one.new_tokens > 1:
        yield replace(one, new_tokens=one.new_tokens // 2)
        yield replace(one, new_tokens=one.new_tokens - 1)


# -- Which steps a learner's loop launched and processed, noted turn by turn -----------------------


@dataclass
class StepNotes:
    """Steps that were launched and processed, and what the loop did with its turns."""

    launched: list[int] = field(default_factory=list)
    processed: set[int] = field(default_factory=set)
    deepest: tuple[int, int] = (0, 0)  # most steps in flight, and the first that made it so many
    calls: int = 0  # of run_batch, process_batch_result and on_idle
    empty_turns: int = 0  # with none of these

    @property
    def in_flight(self) -> list[int]:
        """Steps that were launched and have not been processed."""
        return [step for step in self.launched if step not in self.processed]

    def watch(self, engine: Engine) -> None:
        """Note the calls of an engine's phases, and refuse what no phase can do.

        Raises (where a phase is called):
            Mistake: there is nothing to run, or a step has been processed before.
        """
        run, process, on_idle = engine.run_batch, engine.process_batch_result, engine.on_idle

        def run_batch(batch: Any, *rest: Any, **options: Any) -> Step:
            self.calls += 1
            if not batch:
                raise Mistake(
                    f"`run_batch` got {batch!r}: there was nothing to run; test `batch` first"
                )
            pending = run(batch, *rest, **options)
            self.launched.append(pending.batch.step)
            count = len(self.in_flight)
            if count > self.deepest[0]:
                self.deepest = count, pending.batch.step
            return pending

        def process_batch_result(step: Step) -> None:
            self.calls += 1
            number = step.batch.step
            if number in self.processed:
                raise Mistake(f"step {number} has already been processed")
            process(step)
            self.processed.add(number)

        def idle() -> None:
            self.calls += 1
            on_idle()

        engine.run_batch = run_batch  # type: ignore[method-assign]
        engine.process_batch_result = process_batch_result  # type: ignore[method-assign]
        engine.on_idle = idle  # type: ignore[method-assign]


MOST_TURNS = 300  # of a loop; no workload here needs a third of it
COST = milliseconds(host=6, device=10, copy=1)
SECOND = 1_000_000_000
PHASES = ("recv_requests", "get_next_batch_to_run", "chain", "run_batch", "process_batch_result",
          "wait_for", "process_result", "on_idle")  # fmt: skip
Loop = Callable[[Engine], Iterator[Any]]


class LearnerToken(NamedTuple):
    """A token that a client heard, and the step that it came from."""

    rid: str
    token: int
    step: int


@dataclass
class Trial:
    """What became of a workload. ``problem`` is a sentence on what cut the run short, if it was."""

    workload: ExerciseWorkload
    trace: Trace
    heard: list[LearnerToken] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)  # request id -> its error, or ""
    problem: str = ""
    is_endless: bool = False
    steps: StepNotes = field(default_factory=StepNotes)
    parts: dict[str, Any] = field(default_factory=dict)  # what an exercise wants to look at later

    def tokens(self, rid: str) -> list[LearnerToken]:
        """What one client heard."""
        return [one for one in self.heard if one.rid == rid]


def play(
    workload: ExerciseWorkload,
    loop: Loop,
    relay: str = "ring",
    patch: Callable[[Engine], None] = lambda engine: None,
    cost: CostModel = COST,
    name: str = "your loop",
    overrun: int = 1,
) -> Trial:
    """Turn a loop on the simulated device until every request has ended, or it will never be.

    ``patch`` puts a learner's lines into the engine. Nothing that goes wrong is raised. With
    ``overrun`` 1 a request is launched once more than its length needs while its last token is on
    its way, as the loops did that the rings and chains of the lessons come from; with 0 only a stop
    token leaves a step behind it.
    """
    device, spec = (
        open_device("sim"),
        Design(loop, (relay,), depth=2, overrun=overrun, pins=2),
    )
    trial = Trial(workload, Trace(name, "sim", "hash", "virtual", (), (), (), ()))
    hear = _listener(trial)
    frontend = Frontend([one.fresh() for one in workload.asked], hear)
    model = HashModel(VOCAB, eos_ids=frozenset())
    engine = wire(name, spec, device, model, workload.config, frontend, cost)
    _note_tokens(engine, trial)
    trial.steps.watch(engine)
    for phase in PHASES:
        setattr(engine, phase, unwatched(getattr(engine, phase)))
    try:
        patch(engine)
        with bounded():
            _turn(loop, engine, trial)
    except (Exception, TooLong) as error:
        trial.problem, trial.is_endless = blame(error), isinstance(error, TooLong)
        with suppress(Exception, TooLong):  # what is on its way still runs, and is drawn
            device.idle_until(device.now() + SECOND)
    trial.trace = device.recorder.trace(name, "sim", "hash", "virtual")
    return trial


def _turn(loop: Loop, engine: Engine, trial: Trial) -> None:
    turns = loop(engine)
    if not isinstance(turns, Iterator):
        trial.problem = "Your loop gave back no turns: it needs a `yield` at the end of each one."
        return
    engine.device.recorder.line = line_of(turns)
    try:
        _turn_until_done(turns, engine, trial)
    finally:
        with suppress(Exception, TooLong):  # still counted: an `except` of theirs may go on
            turns.close()  # type: ignore[attr-defined]


def _turn_until_done(turns: Iterator[Any], engine: Engine, trial: Trial) -> None:
    for turn in range(MOST_TURNS):
        if engine.is_done:
            engine.scheduler.leases.self_check()
            return
        before = trial.steps.calls
        try:
            next(turns)
        except StopIteration:
            trial.problem = f"Your loop came to its end after {turn} turns; it must go on for ever."
            return
        trial.steps.empty_turns += trial.steps.calls == before
    trial.is_endless = True
    trial.problem = f"After {MOST_TURNS} turns of the loop {_left(trial)}."


def _left(trial: Trial) -> str:
    """What a loop has left undone."""
    if trial.steps.in_flight:
        return f"step {trial.steps.in_flight[0]} was launched and never processed"
    waiting = sorted(one.rid for one in trial.workload.asked if one.rid not in trial.ended)
    return f"request {waiting[0]!r} had not ended" if waiting else "a step was never processed"


def _listener(trial: Trial) -> Callable[[Output], None]:
    def hear(output: Output) -> None:
        if output.finish_reason:
            trial.ended[output.rid] = output.error

    return hear


def _note_tokens(engine: Engine, trial: Trial) -> None:
    """Note which step each token comes from, when the scheduler delivers it."""
    process = engine.scheduler.process

    def noting(batch: ScheduleBatch, result: Result) -> list[Output]:
        outputs = process(batch, result)
        trial.heard += [
            LearnerToken(one.rid, one.token, batch.step) for one in outputs if one.token is not None
        ]
        return outputs

    engine.scheduler.process = noting  # type: ignore[method-assign]


# -- What must be true of every trial, and the first thing that is not -----------------------------


@dataclass(frozen=True)
class BrokenLaw:
    """A law that does not hold: its name, a sentence, and the step at which it shows (0: none)."""

    law: str
    sentence: str
    step: int = 0
    rid: str = ""


def broken(trial: Trial) -> BrokenLaw | None:
    """The first law that a trial breaks: every token is right, and every request ends.

    A wrong token goes before whatever else went wrong later: it is the nearest to the cause.
    """
    if wrong := wrong_token(trial):
        return wrong
    if trial.problem:
        return BrokenLaw("ends", trial.problem, last_step(trial))
    for rid, error in trial.ended.items():
        if error:
            return BrokenLaw(
                "error", f"Request {rid} ended with an error: {error}", last_step(trial)
            )
    return too_few(trial)


def wrong_token(trial: Trial) -> BrokenLaw | None:
    """The first token that its request would not have got alone."""
    truths = {one.rid: one.truth for one in trial.workload.asked}
    heard = dict.fromkeys(truths, 0)
    for rid, token, step in trial.heard:
        at, truth = heard[rid], truths[rid]
        heard[rid] += 1
        which = f"request {rid}'s {ordinal(at + 1)} token"
        if at >= len(truth):
            return BrokenLaw(
                "identity", f"{which} is one too many: it should have ended.", step, rid
            )
        if token != truth[at]:
            sentence = f"{which} is {token}, should be {truth[at]}: step {step} sampled it."
            return BrokenLaw("identity", sentence, step, rid)
    return None


def too_few(trial: Trial) -> BrokenLaw | None:
    """A request that ended before it had all of its tokens."""
    for one in trial.workload.asked:
        got, wanted = len(trial.tokens(one.rid)), len(one.truth)
        if got < wanted:
            sentence = f"request {one.rid} got {got} tokens, should get {wanted}."
            return BrokenLaw("identity", sentence, last_step(trial), one.rid)
    return None


def last_step(trial: Trial) -> int:
    """The newest step that ran, or 0."""
    return max((item.step for item in trial.trace.slices if item.name == "forward"), default=0)
