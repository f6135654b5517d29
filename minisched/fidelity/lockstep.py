"""Our half of the lockstep: the schedule of our loop for a case, and the rule that differs.

Loop, scheduler and engine are the real ones, on the simulator, without costs. Only the model is
replaced: the tokens of a step come from the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

from ..checks import case as of_checks
from ..checks.case import Workload, lower
from ..checks.judge import Livelock, play
from ..core import Request, SamplingParams, ScheduleBatch
from ..devices.base import Buffer
from ..devices.sim import SimDevice, Vector
from ..engine.engine import Engine
from ..models.base import ForwardBatch
from ..models.hash import HashModel
from ..policy.rules import Rules
from ..policy.systems import DELIBERATE
from ..scheduler import SchedulerStuck
from .case import (
    EOS,
    NOTHING,
    VOCAB_SIZE,
    Arrival,
    FidelityCase,
    Rows,
    Schedule,
    ScheduledStep,
    first_turn_apart,
    step_at,
    trimmed,
)

MOST_TRIALS = 1000  # cases tried for a smaller one
Side = Callable[[FidelityCase], Schedule]

# -- ours ------------------------------------------------------------------------------------------


class Script(HashModel):
    """A model that computes nothing: the tokens of a step come from the case."""

    def __init__(self, case: FidelityCase) -> None:
        super().__init__(VOCAB_SIZE, eos_ids=frozenset({EOS}))
        self.arrivals = {arrival.rid: arrival for arrival in case.arrivals}

    def forward(self, batch: ForwardBatch, ids: Vector, page_table: Buffer) -> None:
        """Do nothing: there are no logits."""

    def sample(self, logits: Any, batch: ForwardBatch) -> Vector:
        """Return the tokens after the positions that the step computes."""
        rows = zip(batch.rids, batch.extents, strict=True)
        return Vector(self.arrivals[rid].token(start + length) for rid, (start, length) in rows)


def our_schedule(case: FidelityCase, rules: str) -> Schedule:
    """Return the launches of our loop, turn by turn, until all are served or none can run."""
    steps: Schedule = []
    try:
        serve(case, rules, steps.append)
    except (SchedulerStuck, Livelock):
        pass  # it raises, where the original waits for ever
    except Exception as error:  # it is compared like any other step
        steps.append(ScheduledStep(f"{type(error).__name__}: {error}"))
    return trimmed(steps)


def serve(case: FidelityCase, rules: str, hear: Callable[[ScheduledStep], None]) -> list[Request]:
    """Serve the requests of a case; ``hear`` is called with the step of each turn.

    Raises:
        ValueError: one of them is refused.
    """
    requests = [request_of(arrival) for arrival in case.arrivals]
    longest = max(req.max_device_len for req in requests)
    config = replace(case.config, rules=rules, context_len=longest + 2)  # two are spared
    turns = [arrival.turn for arrival in case.arrivals]
    launched, lost = list[ScheduledStep](), dict.fromkeys(requests, 0)

    def watch(engine: Engine) -> None:
        """Record every committed step of an engine."""
        is_unified = engine.scheduler.config.in_force.run_first == "unified"
        engine.scheduler.on_commit = lambda batch: launched.append(step_of(batch, is_unified))

    def look(engine: Engine) -> None:
        """Record the requests that lost their lease in this turn."""
        gone = sorted(req.rid for req in requests if req.admission.retractions > lost[req])
        lost.update((req, req.admission.retractions) for req in requests)
        hear((launched.pop() if launched else NOTHING)._replace(retracted=tuple(gone)))

    workload = Workload(requests, turns, {}, config)
    play(workload, case.loop, "", {}, SimDevice(), Script(case), patch=watch, each_turn=look)
    for req in requests:
        if req.error:
            raise ValueError(req.error)
    return requests


def request_of(arrival: Arrival) -> Request:
    """Return the request of an arrival, not yet run."""
    params = SamplingParams(max_new_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos)
    return Request(arrival.rid, arrival.prompt, params, priority=arrival.priority)


def step_of(batch: ScheduleBatch, is_unified: bool) -> ScheduledStep:
    """Return a batch in the form that is compared."""
    rows = [Rows(row.req.rid, row.start, row.end) for row in batch.rows]
    if is_unified:
        return ScheduledStep("step", tuple(sorted(rows)))
    count = batch.num_extend_reqs
    return ScheduledStep(
        batch.mode.value, tuple(rows[:count]), tuple(sorted(row.rid for row in rows[count:]))
    )


# -- Differences, and the rule that explains them --------------------------------------------------

UNEXPLAINED = "unexplained"
NO_PAGE = "the original finds no page"
"""Mini-sglang counts tokens, not pages, so with large pages it may admit one request too many. It
then ends with an ``AssertionError``; here the request waits or is retracted."""
ENDS_WITHOUT_PAGE = "AssertionError: Cannot evict"
TURNS_BEFORE = 2  # turns shown before the one in which schedules differ


@dataclass(frozen=True)
class ScheduleDifference:
    """A case with two different schedules: the turn, both steps, and the rule."""

    case: FidelityCase
    turn: int
    theirs: Schedule
    ours: Schedule
    rule: str = UNEXPLAINED  # NAME=ANSWER with which they agree; several are joined by " + "

    @property
    def is_explained(self) -> bool:
        """Return whether a rule that differs on purpose explains it."""
        return self.rule != UNEXPLAINED


def part_ways(case: FidelityCase, theirs: Schedule, ours: Schedule) -> ScheduleDifference | None:
    """Return the difference of two schedules of a case, or None."""
    turn = first_turn_apart(theirs, ours)
    return None if turn is None else ScheduleDifference(case, turn, theirs, ours)


def compare(case: FidelityCase, system: str, theirs: Schedule) -> ScheduleDifference | None:
    """Play a case by a system's rules, and compare it with the original's schedule.

    It returns None if both are equal. If they differ, it plays the case again, with rules that
    differ on purpose set to the original's answers. The smallest set of such rules with which both
    agree is the explanation. If not even all of them suffice, the result shows where the schedules
    differ then. That is unexplained, unless the original ends there without a page (``NO_PAGE``).
    """
    found = part_ways(case, theirs, our_schedule(case, system))
    if found is None:
        return None
    switches = switches_of(system)
    for count in range(1, len(switches) + 1):
        for some in combinations(switches, count):
            if our_schedule(case, ",".join((system, *some))) == theirs:
                return replace(found, rule=" + ".join(some))
    left = part_ways(case, theirs, our_schedule(case, switched(system)))
    if left and step_at(theirs, left.turn).mode.startswith(ENDS_WITHOUT_PAGE):
        return replace(left, rule=NO_PAGE)
    return left


def switches_of(system: str) -> list[str]:
    """Return the rules in which a preset differs on purpose, with the original's answers."""
    return [f"{name}={item.answer}" for name, item in DELIBERATE.get(system, {}).items()]


def switched(system: str) -> str:
    """Return a preset with all of them."""
    return ",".join((system, *switches_of(system)))


def agreeing(found: ScheduleDifference, system: str) -> list[str]:
    """Return the single answers, of any system, with which ours equals theirs in this case."""
    answers = {item.name: item.metadata["answers"] for item in fields(Rules)}
    return [
        switch
        for switch in (f"{name}={answer}" for name, each in answers.items() for answer in each)
        if our_schedule(found.case, f"{switched(system)},{switch}") == found.theirs
    ]


def in_words(found: ScheduleDifference, names: tuple[str, str]) -> list[str]:
    """Return the case, its settings and requests, then both steps of the differing turn."""
    case = found.case
    told = ", ".join(f"{name} {value}" for name, value in case.as_json()["config"].items())
    lines = [f"{case.loop}: {told}"]
    for arrival in case.arrivals:
        priority = f", priority {arrival.priority}" * bool(arrival.priority)
        lines.append(
            f"  {arrival.rid} comes in turn {arrival.turn}: prompt {len(arrival.prompt)}, "
            f"{len(arrival.outputs)} of at most {arrival.max_new_tokens} tokens"
            f"{', ignores EOS' * arrival.ignore_eos}{priority}"
        )
    for turn in range(max(0, found.turn - TURNS_BEFORE), found.turn + 1):
        for name, schedule in zip(names, (found.theirs, found.ours), strict=True):
            lines.append(f"turn {turn}, {name}: {say(step_at(schedule, turn))}")
    return lines


def say(step: ScheduledStep) -> str:
    """Return a step in words."""
    parts = [f"{part.rid} {part.start}:{part.end}" for part in step.prompts]
    if step.decodes:
        parts.append(f"{' '.join(step.decodes)} decoding")
    if step.retracted:
        parts.append(f"{' '.join(step.retracted)} retracted")
    known = ("none", "extend", "decode", "mixed", "step")
    return ", ".join(parts) or ("nothing" if step.mode in known else f"stopped ({step.mode})")


# -- The smallest case -----------------------------------------------------------------------------


def smallest(found: ScheduleDifference, left: Side, right: Side) -> ScheduleDifference:
    """Return the smallest case found in ``MOST_TRIALS`` in which both still differ."""

    def played(case: FidelityCase) -> ScheduleDifference | None:
        """Run a case on both sides; return the first difference."""
        return part_ways(case, left(case), right(case))

    small = of_checks.smallest(found.case, simpler, lambda it: played(it) is not None, MOST_TRIALS)
    return played(small) or found


def simpler(case: FidelityCase) -> Iterator[FidelityCase]:
    """Yield every case with one thing less, the largest first, that serves all its requests."""
    for change in simpler_parts(case):
        small = replace(case, **change)
        if all(small.config.refusal(request_of(arrival)) is None for arrival in small.arrivals):
            yield small


def simpler_parts(case: FidelityCase) -> Iterator[dict[str, Any]]:
    """Yield parts of a case: one request less, one of them simpler, or a setting lower."""
    config, arrivals = case.config, case.arrivals
    for at in range(len(arrivals)) if len(arrivals) > 1 else ():
        yield {"arrivals": arrivals[:at] + arrivals[at + 1 :]}
    for at, arrival in enumerate(arrivals):
        for change in simpler_fields(arrival):
            others = (*arrivals[:at], replace(arrival, **change), *arrivals[at + 1 :])
            yield {"arrivals": tuple(sorted(others, key=lambda other: other.turn))}
    units = {"kv_tokens": config.page_size, "chunked_prefill_size": config.page_size,
             "max_running_requests": 1, "max_prefill_tokens": 1}  # fmt: skip
    for name, unit in units.items():
        for count in lower(getattr(config, name) // unit, 1):
            fewer: Any = {name: count * unit}
            yield {"config": replace(config, **fewer)}


def simpler_fields(arrival: Arrival) -> Iterator[dict[str, Any]]:
    """Yield the request earlier, with a shorter prompt, fewer tokens, or a parameter less."""
    for turn in lower(arrival.turn, 0):
        yield {"turn": turn}
    for length in lower(len(arrival.prompt), 1):
        yield {"prompt": arrival.prompt[:length]}
        yield {"prompt": arrival.prompt[-length:]}
    for length in lower(len(arrival.outputs), 1):
        fewer = len(arrival.outputs) - length
        yield {
            "outputs": arrival.outputs[fewer:],
            "max_new_tokens": arrival.max_new_tokens - fewer,
        }
    for most in lower(arrival.max_new_tokens, len(arrival.outputs)):
        yield {"max_new_tokens": most}
    if arrival.priority:
        yield {"priority": 0}
