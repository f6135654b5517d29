"""Lesson 1, the bubble: a loop that overlaps, how long a step takes, and where overlap loses."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random
from typing import Any

from ...checks.history import many
from ...checks.overlap import measure, step_intervals
from ...devices.cost import MILLISECOND
from ...loops.run import Run
from ...sweep.break_even import TIE
from ..exercise import Attempt, Exercise, Loop, Pure, Workloads, is_large
from ..runs import makespan_ms, simulate, timing


def two_in_flight(attempt: Attempt) -> str:
    """At most two steps are launched and not yet processed."""
    flying = list[int]()
    for item in attempt.verdict.trace.on("host"):
        if item.name == "launch" and item.step not in flying:
            flying.append(item.step)
        elif item.name == "process" and item.step in flying:
            flying.remove(item.step)
        if len(flying) > 2:
            return (
                f"when step {item.step} was launched, {len(flying)} steps were on their way and "
                "none of them was processed. Two keep the device busy; with more, a request that "
                "ends leaves more wasted steps"
            )
    return ""


def no_busy_turn(attempt: Attempt) -> str:
    """A turn in which there is nothing to do sleeps."""
    count = attempt.calls.empty_turns
    turns = many(count, "turn")
    return (
        count
        and (
            f"in {turns} your loop launched nothing, processed nothing and did not call on_idle(). "
            "That is a busy loop: it keeps a CPU busy with nothing until the next request comes"
        )
    ) or ""


def idle_only_without_work(attempt: Attempt) -> str:
    """A turn that sleeps launches and processes nothing."""
    if not (count := attempt.calls.idle_turns):
        return ""
    return (
        f"in {many(count, 'turn')} your loop called on_idle() and also launched or processed a "
        "step. on_idle() sleeps until a request comes: call it only in a turn without work"
    )


# -- How long a settled step takes: a formula held against runs ------------------------------------
#
# A step in flight was launched and has not been processed: serial has one, overlap two.

COSTS, COPIES = (6, 10, 1, 15), (1, 0, 5, 22)  # ms a step; of host and device, and of the copy
LOOP_OF = {1: "serial", 2: "overlap", 3: "vllm_async:pool:depth=3"}  # by steps in flight
STEP_CASES = [
    (host, device, copy, in_flight)
    for in_flight, copy, host, device in product(LOOP_OF, COPIES, COSTS, COSTS)
] + [(0, 9, 2, 2), (9, 0, 2, 2), (0, 9, 2, 1), (2, 2, 5, 2)]


@cache
def steady(host: int, device: int, copy: int, in_flight: int) -> Run:
    """One request that decodes long enough to settle."""
    return simulate(
        LOOP_OF[in_flight], host_ms=host, device_ms=device, copy_ms=copy, requests=1, new_tokens=20
    )


def measured_step(host: int, device: int, copy: int, in_flight: int) -> float:
    """From one step to the next in ms, on average, in the middle of a run."""
    between = step_intervals(steady(host, device, copy, in_flight).trace)[4:-4]
    rounds = between[: len(between) // in_flight * in_flight]  # steps in flight may take turns
    return sum(rounds) / len(rounds) / MILLISECOND


def odd_costs(random: Random) -> tuple[float, float, float, int]:
    """Draw costs in fractions of a ms, and now and then a large one."""
    most = 2000 if is_large(random) else 30
    host, device, copy = (random.randint(0, most) / random.choice((1, 8, 64)) for _ in range(3))
    return host, device, copy, random.choice([*LOOP_OF])


def steady_picture(said: Any, host: int, device: int, copy: int, in_flight: int) -> str:
    """A few settled steps of that run."""
    run, took = steady(host, device, copy, in_flight), measured_step(host, device, copy, in_flight)
    title = f"{run.loop}: a settled step takes {took:g} ms, on average"
    return timing(run, steps=4, title=title).svg


# -- Where overlap loses ---------------------------------------------------------------------------

NAMES = ("host_ms", "device_ms", "copy_ms", "new_tokens")


def both(costs: Any) -> list[Run]:
    """Serial and overlap with these costs, for one request that a stop token ends.

    Raises:
        ValueError: they are no costs, or too many tokens to draw.
    """
    if not isinstance(costs, dict):
        raise ValueError(f"losing_costs gave {costs!r}, but it must give a dict of costs.")
    for name in costs:
        if name not in NAMES:
            raise ValueError(f"`{name}` is none of {', '.join(NAMES)}.")
    if not isinstance(count := costs.get("new_tokens", 0), int):
        raise ValueError(f"new_tokens is {count!r}, but it must be a whole number.")
    if count > 30:
        raise ValueError(f"new_tokens is {count}, but it must be at most 30, to be drawn.")
    return [simulate(loop, requests=1, stop=True, **costs) for loop in ("serial", "overlap")]


def overlap_loses(costs: Any) -> str:
    """Compare the two runs: overlap has to take longer than serial, by more than a tie."""
    try:
        runs = both(costs)
    except (TypeError, ValueError) as error:
        return f"Your costs: {error}"
    serial, overlap = map(makespan_ms, runs)
    if not overlap:
        return "Both runs take 0 ms: give the host or the device some work."
    factor = serial / overlap
    result = f"Serial takes {serial:g} ms, overlap {overlap:g} ms"
    if factor < 1 - TIE:
        return ""
    words = "overlap wins" if factor > 1 + TIE else f"a tie, within {100 * TIE:g} %"
    steps = [measure(run.trace).steps for run in runs]
    return (
        f"{result}: {words}, {factor:.2f} times as fast. Serial ran "
        f"{many(steps[0], 'step')} and overlap {steps[1]}: what is the extra step, and when "
        "does it weigh most?"
    )


def both_pictures(costs: Any) -> str:
    """The two runs from beginning to end."""
    try:
        return timing(*both(costs), whole=True).svg
    except (TypeError, ValueError):
        return ""


EXERCISES = (
    Exercise(
        name="my_loop",
        hole=Loop("overlap"),
        solution="""
            def my_loop(engine):
                last = None
                while True:
                    engine.recv_requests()
                    batch = engine.get_next_batch_to_run()
                    pending = engine.run_batch(batch) if batch else None
                    if last:
                        engine.process_batch_result(last)
                    elif not batch:
                        engine.on_idle()
                    last = pending
                    yield
        """,
        workloads=Workloads(levels=("stops",)),
        extra=(two_in_flight, no_busy_turn, idle_only_without_work),
        no_worse=(("makespan", 1.0),),
        reach=8,
        hints=(
            "`run_batch` returns immediately. At which line does the host wait?",
            "Keep the step you launched in a variable that outlives the turn: `last`.",
            "Launch first, then process `last`, and only then let `last` be the new step.",
        ),
        why=(
            "The host asks for a result one turn late, while the device is busy with the next "
            "step. So the host's work takes no extra time. The price is a step that is launched "
            "before a stop token is seen: that is exercise 3."
        ),
    ),
    Exercise(
        name="step_time",
        hole=Pure(lambda: STEP_CASES, measured_step, 1e-6, "ms", draw=steady_picture,
                  asked=odd_costs),
        solution="""
            def step_time(host, device, copy, in_flight):
                return max(host, device, copy, (host + device + copy) / in_flight)
        """,
        hints=(
            "With one step in flight nothing happens at the same time. With two: what lies above "
            "what? A lane without a gap sets the length of a step.",
            "So a step is never shorter than the work of the busiest lane. But if each lane has a "
            "gap, follow a token by the arrows until its place is free again. How long is that?",
            "A token goes round device, copy, host; `in_flight` of them share the circle.",
        ),
        why=(
            "A token needs d + c + h for a round, and with two on the way one arrives every "
            "(d + h + c) / 2, unless one lane is busy all the time and holds up the rest. So it is "
            "the largest of the four. A third step in flight only lowers the half to a third."
        ),
    ),
    Exercise(
        name="losing_costs",
        hole=Pure(lambda: [()], holds=overlap_loses, draw=both_pictures),
        solution="""
            def losing_costs():
                return {"host_ms": 1, "device_ms": 20, "copy_ms": 1, "new_tokens": 3}
        """,
        hints=(
            "What does overlap do that serial does not? Count the steps of both.",
            "One step more weighs most where there are few, and where the host has little to hide.",
        ),
        why=(
            "When the last step was launched, the host had not yet seen the stop token. That step "
            "was wasted, and the device did it all the same. So overlap bets that the answer goes "
            "on. It loses when answers are short, and either the host or the device has little to "
            "do."
        ),
    ),
)  # fmt: skip
