"""Our half of the lockstep: what a loop of ours makes of a case, and which rule is to blame.

The loop is the real one, and so is the scheduler that it turns. The device is not there: a step's
tokens are those that the case says, and they are back as soon as the loop waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, cast

from ..checks import case as of_checks
from ..core import NoBatch, Output, Request, Result, SamplingParams, ScheduleBatch
from ..engine.engine import Engine
from ..loops.design import find_loop
from ..policy.rules import DELIBERATE, Rules
from ..scheduler import Scheduler, SchedulerConfig
from ..scheduler.scheduler import SchedulerStuck
from .case import (
    EOS,
    LONGEST,
    MOST_TURNS,
    NOTHING,
    QUIET,
    VOCAB_SIZE,
    Arrival,
    FidelityCase,
    Rows,
    Schedule,
    ScheduledStep,
    first_difference,
    step_at,
    trimmed,
)

AHEAD = ("host",)  # the one relay that waits for tokens (relay/base.py)
MOST_TRIALS = 1000  # cases that are looked at for a smaller one
USUAL = SchedulerConfig()
UNNEEDED = ("random_seed", "max_prefill_tokens", "schedule_conservativeness", "schedule_policy")
Side = Callable[[FidelityCase], Schedule]

# -- ours ------------------------------------------------------------------------------------------


@dataclass
class Pending:
    """A step on its way, which has in fact arrived."""

    batch: ScheduleBatch
    copy_done: None = None
    delay_sample_func: None = None


class LockstepEngine:
    """What a loop asks of its engine: a real scheduler, and no device (``engine/engine.py``)."""

    def __init__(self, case: FidelityCase, rules: str) -> None:
        spec = find_loop(case.loop)
        run_ahead = spec.relays[0] not in AHEAD and spec.depth > 1
        config = replace(
            case.config, **{**spec.settings}, rules=rules, run_ahead=run_ahead,
            overrun=spec.overrun, context_len=LONGEST, vocab_size=VOCAB_SIZE,
            eos_ids=frozenset({EOS}),
        )  # fmt: skip
        self.case, self.turn = case, 0
        self.arrivals = {arrival.rid: arrival for arrival in case.arrivals}
        self.waiting = list(case.arrivals)
        self.scheduler = Scheduler(config)
        self.reqs: dict[str, Request] = {}
        self.step = NOTHING
        self.worker = SimpleNamespace(relay=SimpleNamespace(most_in_flight=None), depth=spec.depth)
        recorder = SimpleNamespace(mark=lambda name, **attrs: None)
        self.device = SimpleNamespace(recorder=recorder)
        self.loop = spec.run(cast(Engine, self), **spec.options)

    def take_turn(self) -> ScheduledStep:
        """One turn of the loop, and what it launched."""
        self.step = NOTHING
        lost = {rid: req.retractions for rid, req in self.reqs.items()}
        next(self.loop)
        self.turn += 1
        retracted = sorted(
            rid for rid, req in self.reqs.items() if req.retractions > lost.get(rid, 0)
        )
        return self.step._replace(retracted=tuple(retracted))

    @property
    def is_done(self) -> bool:
        """Whether everybody has come and gone."""
        scheduler = self.scheduler
        return not (self.waiting or scheduler.live or scheduler.batches_in_flight)

    # What loops call.

    def recv_requests(self) -> None:
        """Take in those whose turn has come."""
        while self.waiting and self.waiting[0].turn <= self.turn:
            arrival = self.waiting.pop(0)
            req = self.reqs[arrival.rid] = request_of(arrival)
            refused = self.scheduler.receive([req])
            assert not refused, refused[0].error

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch, and note it."""
        batch = self.scheduler.next_batch()
        self.scheduler.take_outputs()
        if batch:
            self.step = step_of(batch, self.scheduler.config.in_force.run_first == "unified")
        return batch

    def run_batch(self, batch: ScheduleBatch, delay_sample: bool = False) -> Pending:
        """It has run."""
        return Pending(batch)

    def wait_for(self, pending: Pending) -> Result:
        """The tokens that the case says."""
        rows = pending.batch.rows
        return Result([self.arrivals[row.req.rid].token(row.end) for row in rows])

    def process_result(self, pending: Pending, result: Result) -> list[Output]:
        """Let the scheduler say what they mean."""
        return self.scheduler.process(pending.batch, result)

    def process_batch_result(self, pending: Pending) -> None:
        """Both."""
        self.process_result(pending, self.wait_for(pending))

    def must_delay_sample(self, batch: ScheduleBatch) -> bool:
        """Nobody has a grammar here, or a penalty; the same goes for the next three."""
        return False

    needs_mask = must_delay_sample

    def missing_history(self, batch: ScheduleBatch) -> str:
        """None."""
        return ""

    def launch_batch_sample_if_needed(self, pending: Pending) -> None:
        """It has sampled."""

    def on_idle(self) -> None:
        """Nobody waits for a clock."""


def request_of(arrival: Arrival) -> Request:
    """The request of an arrival, not yet run."""
    params = SamplingParams(max_new_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos)
    return Request(arrival.rid, arrival.prompt, params, priority=arrival.priority)


def step_of(batch: ScheduleBatch, is_unified: bool) -> ScheduledStep:
    """A batch as it is compared."""
    rows = [Rows(row.req.rid, row.start, row.end) for row in batch.rows]
    if is_unified:
        return ScheduledStep("step", tuple(sorted(rows)))
    count = batch.num_extend_reqs
    return ScheduledStep(
        batch.mode.value, tuple(rows[:count]), tuple(sorted(row.rid for row in rows[count:]))
    )


def our_schedule(case: FidelityCase, rules: str) -> Schedule:
    """What our loop launches, turn by turn, until everybody is served or nobody ever will be."""
    steps: Schedule = []
    quiet = 0
    try:
        engine = LockstepEngine(case, rules)
        while not engine.is_done and quiet < QUIET and len(steps) < MOST_TURNS:
            steps.append(engine.take_turn())
            is_quiet = steps[-1] == NOTHING and engine.turn > case.last_turn
            quiet = quiet + 1 if is_quiet else 0
    except SchedulerStuck:
        pass  # it says so, where the original waits for ever
    except Exception as error:  # a difference like any other
        steps.append(ScheduledStep(f"{type(error).__name__}: {error}"))
    return trimmed(steps)


# -- differences, and which rule is to blame -------------------------------------------------------

UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class ScheduleDifference:
    """A case in which two schedules part: where, how, and by which rule."""

    case: FidelityCase
    turn: int
    theirs: Schedule
    ours: Schedule
    rule: str  # NAME=ANSWER with which they agree; several are joined by " + "

    @property
    def is_explained(self) -> bool:
        """Whether a rule that differs on purpose says why."""
        return self.rule != UNEXPLAINED


def compare(case: FidelityCase, system: str, theirs: Schedule) -> ScheduleDifference | None:
    """Play a case by a system's rules beside the original's schedule; None where both are equal.

    If they differ, it is played again with those rules that differ on purpose answered as the
    original answers them: one at a time, then all together. What is left then is unexplained.
    """
    ours = our_schedule(case, system)
    turn = first_difference(theirs, ours)
    if turn is None:
        return None
    switches = switches_of(system)
    for switch in switches:
        if our_schedule(case, f"{system},{switch}") == theirs:
            return ScheduleDifference(case, turn, theirs, ours, switch)
    ours_switched = our_schedule(case, switched(system))
    left = first_difference(theirs, ours_switched)
    if left is not None:
        return ScheduleDifference(case, left, theirs, ours_switched, UNEXPLAINED)
    for switch in list(switches):  # those that it takes
        fewer = [each for each in switches if each != switch]
        if our_schedule(case, ",".join((system, *fewer))) == theirs:
            switches = fewer
    return ScheduleDifference(case, turn, theirs, ours, " + ".join(switches))


def switches_of(system: str) -> list[str]:
    """The rules in which a preset differs on purpose, as its original answers them."""
    return [f"{name}={item.answer}" for name, item in DELIBERATE.get(system, {}).items()]


def switched(system: str) -> str:
    """A preset with all of them."""
    return ",".join((system, *switches_of(system)))


def agreeing(found: ScheduleDifference, system: str) -> list[str]:
    """Single answers, whoever gives them, with which ours would do as theirs in this case."""
    answers = {item.name: item.metadata["answers"] for item in fields(Rules)}
    return [
        switch
        for switch in (f"{name}={answer}" for name, each in answers.items() for answer in each)
        if our_schedule(found.case, f"{switched(system)},{switch}") == found.theirs
    ]


def kind_of(theirs: ScheduledStep, ours: ScheduledStep) -> str:
    """In which respect two steps differ."""
    if theirs.mode != ours.mode:
        return "mode"
    if theirs.retracted != ours.retracted:
        return "retracted"
    if theirs.rids != ours.rids:
        return "who"
    return "order" if sorted(theirs.prompts) == sorted(ours.prompts) else "range"


# -- the smallest case -----------------------------------------------------------------------------


def smallest(
    found: ScheduleDifference, left: Side, right: Side, most: int = MOST_TRIALS
) -> ScheduleDifference:
    """The smallest case found in so many trials in which both still part in the same respect."""
    wanted = respect(found)

    def differs(case: FidelityCase) -> bool:
        part = part_ways(case, left, right)
        return part is not None and respect(part) == wanted

    return part_ways(of_checks.smallest(found.case, simpler, differs, most), left, right) or found


def respect(found: ScheduleDifference) -> str:
    """In which respect the two first differ."""
    return kind_of(step_at(found.theirs, found.turn), step_at(found.ours, found.turn))


def part_ways(case: FidelityCase, left: Side, right: Side) -> ScheduleDifference | None:
    """Where two schedulers part on a case."""
    theirs, ours = left(case), right(case)
    turn = first_difference(theirs, ours)
    return None if turn is None else ScheduleDifference(case, turn, theirs, ours, UNEXPLAINED)


def simpler(case: FidelityCase) -> Iterator[FidelityCase]:
    """Every case that is simpler by one thing and in which everybody can be served alone."""
    for small in candidates(case):
        if all(small.config.refusal(request_of(arrival)) is None for arrival in small.arrivals):
            yield small


def candidates(case: FidelityCase) -> Iterator[FidelityCase]:
    """Every case that is simpler by one thing; what takes off most comes first."""
    arrivals = case.arrivals
    for at in range(len(arrivals) if len(arrivals) > 1 else 0):
        yield replace(case, arrivals=arrivals[:at] + arrivals[at + 1 :])
    for at, arrival in enumerate(arrivals):
        for smaller in simpler_arrivals(arrival):
            yield replace(case, arrivals=in_order((*arrivals[:at], smaller, *arrivals[at + 1 :])))
    config, page = case.config, case.config.page_size
    changes: list[dict[str, Any]] = [
        {name: getattr(USUAL, name)}
        for name in UNNEEDED
        if getattr(config, name) != getattr(USUAL, name)
    ]
    for name, unit in (("kv_tokens", page), ("chunked_prefill_size", page)):
        changes += [{name: value} for value in lower(getattr(config, name), unit, unit)]
    for name in ("max_running_requests", "max_prefill_tokens"):
        changes += [{name: value} for value in lower(getattr(config, name), 1)]
    for change in changes:
        yield replace(case, config=replace(config, **change))


def in_order(arrivals: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """By turn; of one turn as they were."""
    return tuple(sorted(arrivals, key=lambda arrival: arrival.turn))


def simpler_arrivals(arrival: Arrival) -> Iterator[Arrival]:
    """The request earlier, with a shorter prompt, with fewer tokens, or without a wish."""
    for turn in lower(arrival.turn, 0):
        yield replace(arrival, turn=turn)
    for length in lower(len(arrival.prompt), 1):
        yield replace(arrival, prompt=arrival.prompt[:length])
        yield replace(arrival, prompt=arrival.prompt[-length:])
    for length in lower(len(arrival.outputs), 1):
        outputs = arrival.outputs[len(arrival.outputs) - length :]
        yield replace(
            arrival,
            outputs=outputs,
            max_new_tokens=arrival.max_new_tokens - (len(arrival.outputs) - length),
        )
    for most in lower(arrival.max_new_tokens, len(arrival.outputs)):
        yield replace(arrival, max_new_tokens=most)
    if arrival.priority:
        yield replace(arrival, priority=0)


def lower(value: int, least: int, unit: int = 1) -> Iterator[int]:
    """Numbers below ``value``: half of what is above the least, and one unit less."""
    half = least + (value - least) // 2 // unit * unit
    yield from sorted({half, value - unit} - {value}) if value > least else ()
