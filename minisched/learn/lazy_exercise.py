"""Hand over before you read: the order of building, ``async_eval``, reading and the host's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..devices.cost import MILLISECOND
from ..export.layout import steady_views
from ..export.svg import views_to_svg
from ..trace import Trace
from .blame import blame
from .callable_check import takes
from .figure import LessonFigure
from .guard import TooLong, bounded, in_time, unwatched
from .lazy_clock import BUILD, FIRST, LazyClock, LazyToken, token_after
from .loop_exercise import step_of
from .verdict import ExerciseVerdict
from .wording import ordinal

Generate = Callable[..., Any]
COUNT = 14  # tokens
PAIRS = ((6, 10), (10, 6), (9, 9), (0, 5))  # host and device, in ms a token
ARGUMENTS = ("step", "first", "count", "async_eval", "host_work")


@in_time
def check_generate(generate: Generate) -> ExerciseVerdict:
    """Whether ``generate(step, first, count, async_eval, host_work)`` is right, and one step ahead.

    The lazy tokens are those of ``lazy_clock``: the same calls as MLX's, on a virtual clock.
    """
    if problem := takes(generate, "generate", *ARGUMENTS):
        return ExerciseVerdict(False, [problem])
    for host, device in PAIRS:
        clock = LazyClock(host * MILLISECOND, device * MILLISECOND)
        if failed := _try(generate, clock, f"host {host} ms, device {device} ms a token"):
            return failed
    return ExerciseVerdict(
        True,
        [
            f"Checked with {len(PAIRS)} pairs of costs: all {COUNT} tokens are right, each one was "
            "worked upon once, in order, and before the next was read. On average, from one token "
            "to the next it took no longer than the longer of host and device, and "
            "there were never more than two graphs in flight."
        ],
    )


def _try(generate: Generate, clock: LazyClock, costs: str) -> ExerciseVerdict | None:
    problem, given = "", None
    try:
        with bounded():
            given = generate(
                unwatched(clock.step), FIRST, COUNT,
                unwatched(clock.async_eval), unwatched(clock.host_work),
            )  # fmt: skip
    except (Exception, TooLong) as error:
        problem = blame(error)
    trace = clock.trace("your generate")
    problem = problem or _wrong_tokens(given) or _wrong_work(clock) or _too_far_ahead(clock)
    problem = problem or _too_slow(clock, step_of(trace), costs)
    if not problem:
        return None
    return ExerciseVerdict(False, [problem], [drawn(trace)] if trace.on("forward") else [])


def drawn(trace: Trace) -> LessonFigure:
    """A few settled steps; without the copy stream, which MLX does not have."""
    views = [
        replace(view, lanes=tuple(lane for lane in view.lanes if lane.key != "copy"))
        for view in steady_views([trace], 3)
    ]
    svg = views_to_svg(views, f"{trace.loop}: who works when, and who waits")
    return LessonFigure(svg.replace(">other</text>", ">build a graph</text>"))


def truth() -> list[int]:
    """The tokens, one after the other."""
    tokens = [FIRST]
    for position in range(1, COUNT + 1):
        tokens.append(token_after(tokens[-1], position))
    return tokens[1:]


def _wrong_tokens(given: Any) -> str:
    if not isinstance(given, list):
        kind = type(given).__name__
        return f"generate gave back {given!r}, of type {kind}, but it must give a list of tokens."
    for at, (token, right) in enumerate(zip(given, truth(), strict=False), 1):
        if token != right:
            kept = isinstance(token, LazyToken)
            hint = ": you kept the lazy token; read it with .item()" if kept else ""
            return f"The {ordinal(at)} token is {token!r}, should be {right}{hint}."
    if len(given) != COUNT:
        return f"generate gave back {len(given)} tokens, but {COUNT} were asked for."
    return ""


def _wrong_work(clock: LazyClock) -> str:
    step = clock.read_too_soon
    if clock.worked_on == truth() and step:
        return (
            f"The token of step {step} was read before host_work had got that of step {step - 1}. "
            "A reader of the text would see nothing for so long: give each token to host_work "
            "before you read the next one."
        )
    if clock.worked_on == truth():
        return ""
    for at, (token, right) in enumerate(zip(clock.worked_on, truth(), strict=False), 1):
        if token != right:
            return f"host_work got {token!r} as its {ordinal(at)} token, should get {right}."
    return f"host_work was called {len(clock.worked_on)} times, but there are {COUNT} tokens."


def _too_far_ahead(clock: LazyClock) -> str:
    count, step = clock.most_in_flight
    if count <= 2:
        return ""
    return (
        f"When step {step} was handed over, {count} steps were on their way and unread. Had the "
        f"oldest of their tokens been the end of the text, {count - 1} steps would be wasted; one "
        "step ahead is enough."
    )


def _too_slow(clock: LazyClock, took: float | None, costs: str) -> str:
    best = max(clock.host + BUILD, clock.device) / MILLISECOND
    if took is not None and took <= best + 1e-6:
        return ""
    return (
        f"Every token is right, but the device waits. With {costs} it takes {took:g} ms from one "
        f"token to the next, on average, of which building a graph is {BUILD // MILLISECOND} ms; "
        f"{best:g} ms would be enough. In the hatched gaps the device has "
        "nothing: what could you hand over before you read?"
    )
