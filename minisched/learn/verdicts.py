"""Tries many small workloads, shrinks the first that fails, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..export.layout import View, make_view
from ..export.svg import PITCH, Frame, draw_lanes, draw_legend, draw_run
from ..export.views.axes import TimeAxis
from ..export.views.page import EDGE, Page, line, svg_text
from ..trace import Trace
from .figure import LessonFigure
from .grade import ExerciseVerdict
from .guard import is_late
from .trial import BrokenLaw, ExerciseWorkload, Trial, WorkloadLimits, broken, simpler

# -- The trial up to where it goes wrong, drawn, with the offending step marked --------------------

LEFT, MOST_BEFORE = 168, 4  # pixels for the lanes' names; steps shown before the offending one
STYLE = (
    "<style>.wrong { fill: none; stroke: var(--bubble); stroke-width: 3 } "
    ".wrong-line { stroke: var(--bubble); stroke-width: 1.4; stroke-dasharray: 4 3 }</style>"
)


def draw_until(trace: Trace, step: int, title: str, flag: str = "") -> LessonFigure | None:
    """The last steps up to ``step``, outlined if it has a flag; None if nothing ever ran."""
    view = view_until(trace, step)
    if view is None:
        return None
    outlined = f"; step {step} is outlined" if flag else ""
    page = Page(title, f"{trace.loop} on the simulated device{outlined}")
    page.top += 18 if flag else 0
    scale = (EDGE - LEFT) / max(1, view.duration)
    frame = Frame(view, LEFT, EDGE, page.top, scale)
    page.add(STYLE, *draw_lanes(frame), *draw_run(frame))
    if flag:
        page.add(*_marks(frame, step, flag))
    x = TimeAxis(view.end, view.start, LEFT, EDGE)
    page.add(*x.draw(frame.bottom + 6))
    legend, page.top = draw_legend([view], frame.bottom + 54, EDGE)
    page.add(*legend)
    return LessonFigure(page.finish())


def view_until(trace: Trace, step: int) -> View | None:
    """From a few steps before ``step`` to the moment at which its tokens were processed."""
    mine = [item for item in trace.slices if item.step == step]
    ran = [item for item in trace.slices if item.name == "forward" and item.step <= step]
    if not mine or not ran:
        return None
    first = max(1, step - MOST_BEFORE)
    start = min((item.start for item in trace.slices if item.step == first), default=0)
    end = max(item.end for item in mine)
    return make_view(trace, 0 if first == 1 else start, end, first, step)


def _marks(frame: Frame, step: int, flag: str) -> list[str]:
    """An outline around the step's boxes on the device, and a flag above them."""
    drawn, left = [], float(EDGE)
    for box in frame.view.boxes:
        if box.slice.step == step and box.lane.side == "device" and box.slice.duration:
            x, width = frame.span(box.slice.start, box.slice.end)
            left = min(left, x)
            drawn.append(
                f'<rect class="wrong" x="{x:.1f}" y="{frame.y(box.lane) - 2:.1f}" '
                f'width="{width:.1f}" height="{PITCH - 10}" rx="3" data-wrong="{step}"/>'
            )
    anchor = "end" if left > (LEFT + EDGE) / 2 else "start"
    drawn.append(line("wrong-line", left, frame.top - 4, left, frame.bottom))
    drawn.append(svg_text(left, frame.top - 8, flag, "warn", anchor))
    return drawn


NUM_WORKLOADS, MOST_SHRINKS = 60, 80
Play = Callable[[ExerciseWorkload], Trial]
Explain = Callable[[Trial, BrokenLaw], Sequence[str]]
Draw = Callable[[Trial, BrokenLaw], Sequence[LessonFigure]]
Law = Callable[[Trial], BrokenLaw | None]


@dataclass(frozen=True)
class Counterexample:
    """A workload on which a learner's lines break a law."""

    trial: Trial
    what: BrokenLaw


def no_words(trial: Trial, what: BrokenLaw) -> Sequence[str]:
    """Nothing more to say."""
    return ()


def draw_trial(trial: Trial, what: BrokenLaw) -> list[LessonFigure]:
    """The steps up to the one at which the law is broken."""
    title, flag = {
        "identity": ("The counterexample: a wrong token", f"step {what.step}: {what.rid}'s token"),
        "waits": ("The counterexample", f"step {what.step}: {what.rid} waits"),
    }.get(what.law, ("The run as far as it came", ""))
    figure = draw_until(trial.trace, what.step, title, flag)
    return [figure] if figure else []


def try_all(
    play: Play,
    shape: WorkloadLimits,
    law: Law = broken,
    explain: Explain = no_words,
    draw: Draw = draw_trial,
    hard: Sequence[ExerciseWorkload] = (),
) -> ExerciseVerdict | None:
    """Play random workloads of a shape, and then some ``hard`` ones.

    Gives the verdict on the first that breaks a law, shrunk; None if all is well.
    """
    for workload in [*map(shape.draw, range(NUM_WORKLOADS)), *hard]:
        if failure := attempt(play, law, workload):
            return verdict_on(shrink(failure, play, law), explain, draw)
    return None


def attempt(play: Play, law: Law, workload: ExerciseWorkload) -> Counterexample | None:
    """Play one workload; a failure if a law does not hold."""
    trial = play(workload)
    what = law(trial)
    return Counterexample(trial, what) if what else None


def shrink(failure: Counterexample, play: Play, law: Law) -> Counterexample:
    """The simplest workload to be found that breaks the same law."""
    tries: Iterator[ExerciseWorkload] = simpler(failure.trial.workload)
    for _ in range(15 if failure.trial.is_endless else MOST_SHRINKS):
        workload = next(tries, None)
        if workload is None or is_late():
            break
        found = attempt(play, law, workload)
        if found and not is_late() and found.what.law == failure.what.law:
            failure, tries = found, simpler(workload)
    return failure


def verdict_on(failure: Counterexample, explain: Explain, draw: Draw) -> ExerciseVerdict:
    """Words and pictures for a failure."""
    trial, what = failure.trial, failure.what
    said = [what.sentence[:1].upper() + what.sentence[1:], *explain(trial, what)]
    said.append(f"The smallest workload that was found: {trial.workload.about}.")
    return ExerciseVerdict(False, said, draw(trial, what))


def right(*sentences: str) -> ExerciseVerdict:
    """The verdict on what passed, with what was checked."""
    checked = (
        f"Checked on {NUM_WORKLOADS} random workloads: every token of every request is the one "
        "that it gets alone, and every request ends once."
    )
    return ExerciseVerdict(True, [checked, *sentences])
