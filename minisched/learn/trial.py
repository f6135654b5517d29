"""One workload through a learner's lines: bounded, with everything that was heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import Output, Result, ScheduleBatch
from ..devices.cost import CostModel
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import Design, line_of
from ..loops.run import wire
from ..models.hash import HashModel
from ..trace import Trace
from .blame import blame
from .guard import TooLong, bounded, unwatched
from .simulate import VOCAB, milliseconds
from .step_notes import StepNotes
from .workload import ExerciseWorkload

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
