"""Lesson 1, the bubble: a loop that overlaps, how long a step takes, and where overlap loses."""

from __future__ import annotations

from ..exercise import Attempt, Exercise, Loop, Workloads


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
                "ends leaves more steps behind it that are wasted"
            )
    return ""


def no_busy_turn(attempt: Attempt) -> str:
    """A turn in which there is nothing to do sleeps."""
    count = attempt.calls.empty_turns
    turns = f"{count} turn{'s' if count > 1 else ''}"
    return (
        count
        and (
            f"in {turns} your loop launched nothing, processed nothing and did not call on_idle(). "
            "That is a busy loop: it keeps a CPU busy with nothing until the next request comes"
        )
    ) or ""


EXERCISES = (
    Exercise(
        name="my_loop",
        lesson="01_bubble",
        hole=Loop("overlap"),
        start="""
            def my_loop(engine):
                while True:
                    engine.recv_requests()
                    batch = engine.get_next_batch_to_run()
                    if batch:
                        pending = engine.run_batch(batch)
                        engine.process_batch_result(pending)
                    else:
                        engine.on_idle()
                    yield
        """,
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
        mistakes=(
            ("last = pending", "last = pending or last", "Step 1 has already been processed"),
            ("elif not batch:\n            engine.on_idle()", "elif not batch:\n            pass",
             "did not call on_idle()"),
            (" if batch else None", "", "nothing to run; test `batch`"),
            ("recv_requests", "recv_request", "at your line `engine.recv_req"),
        ),
        workloads=Workloads(level="stops"),
        extra=(two_in_flight, no_busy_turn),
        no_worse=(("makespan", 1.0),),
        reach=8,
        hints=(
            "`run_batch` returns at once. Which line makes the host stand still?",
            "Keep the step you launched in a variable that outlives the turn: `last`.",
            "Launch first, then process `last`, and only then let `last` be the new step.",
        ),
        why=(
            "The host asks for a result one turn late, while the device is busy with the step "
            "behind it. So the host's work is hidden behind the device's. The price is a step that "
            "is launched before a stop token is seen: that is exercise 3."
        ),
    ),
)  # fmt: skip
