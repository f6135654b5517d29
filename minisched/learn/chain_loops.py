"""Loops on lazy tokens with a hole for a learner's lines: a whole turn, or one decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core import ScheduleBatch
from ..engine.engine import Engine
from ..worker import Step
from .blame import Mistake
from .step_notes import StepNotes
from .trial import Loop
from .wording import joined

Turn = Callable[[Engine, Step], Any]
MayChain = Callable[[Sequence[str], Sequence[str], Sequence[str]], Any]
Turns = Iterator[ScheduleBatch | None]


def loop_of_turns(turn: Turn) -> Loop:
    """A loop that calls ``turn`` as long as a step is in flight, and otherwise schedules."""

    def loop(engine: Engine) -> Turns:
        steps = StepNotes()
        steps.watch(engine)
        pending: Step | None = None
        while True:
            engine.recv_requests()
            if pending is not None:
                pending = _after_a_turn(steps, pending, turn(engine, pending))
            if pending is None:
                pending = launch_fresh(engine)
            yield pending.batch if pending else None

    return loop


def loop_that_asks(may_chain: MayChain, waited: list[tuple[int, str]]) -> Loop:
    """A loop that chains where ``may_chain`` says so; notes (step, request) of who waited then."""

    def loop(engine: Engine) -> Turns:
        pending: Step | None = None
        while True:
            engine.recv_requests()
            following = None
            if pending is not None:
                if may_chain(*_state(engine, pending)):
                    following = _chain(engine, pending, waited)
                engine.process_batch_result(pending)
            pending = following or launch_fresh(engine)
            yield pending.batch if pending else None

    return loop


def launch_fresh(engine: Engine) -> Step | None:
    """Nothing is in flight, so the scheduler may decide as it likes."""
    batch = engine.get_next_batch_to_run()
    if batch:
        return engine.run_batch(batch)
    engine.on_idle()
    return None


def _state(engine: Engine, pending: Step) -> tuple[list[str], list[str], list[str]]:
    """Ids of who is in the step in flight, of who waits, and of who in that step has ended."""
    batch, waiting = pending.batch, engine.scheduler.waiting_queue
    ended = [req.rid for req in batch.reqs if req.finished]
    return list(batch.rids), [req.rid for req in waiting], ended


def _chain(engine: Engine, pending: Step, waited: list[tuple[int, str]]) -> Step | None:
    """The same rows once more, whoever waits; None for a prompt, which cannot be repeated."""
    batch, waiting, ended = _state(engine, pending)
    if ended:
        raise Mistake(
            f"after step {pending.batch.step} your loop chained on with {joined(batch)}, but "
            f"request {ended[0]} has ended: its place and its memory may belong to somebody "
            "else by then"
        )
    following = engine.advance_step(pending)
    if following is not None:
        waited += [(following.batch.step, rid) for rid in waiting]
    return following


def _after_a_turn(steps: StepNotes, pending: Step, given: Any) -> Step | None:
    """The step that a turn gave back, or None.

    Raises:
        Mistake: it gave something else, or left a step behind.
    """
    if given is not None and not isinstance(given, Step):
        kind = type(given).__name__
        raise Mistake(f"`turn` gave back a {kind}, but it must give the step it launched, or None")
    step = pending.batch.step
    if step in steps.in_flight and given is not pending:
        raise Mistake(f"`turn` never processed `pending`, which was step {step}")
    if steps.in_flight and given is None:
        raise Mistake(f"`turn` launched step {steps.in_flight[0]} but gave back None")
    return given
