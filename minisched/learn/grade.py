"""Holds a learner's lines against an exercise: the laws, reach, and no worse than the package.

A wrong answer gets the broken law in words, the smallest case that was found, and a picture of its
run with the cause in red. A right answer gets a picture next to another run, with the speed-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from inspect import isgeneratorfunction
from textwrap import shorten
from time import monotonic
from typing import Any

from ..checks.case import Case, case_text, shrink
from ..checks.draw import read_design
from ..checks.history import many
from ..checks.judge import Finding, Verdict, judge
from ..checks.overlap import measure
from ..export.looks import GREEN, VERMILLION
from ..export.notebook import NotebookPicture
from ..export.offence import offence_scene
from ..export.scene_svg import to_svg
from ..export.views.marks import NothingToShow
from ..museum.blame import offence_of, plainly
from ..trace import Trace
from .exercise import DRAWN, Attempt, Calls, Exercise, Function, Loop, Pure, Scored, find
from .guard import PACKAGE, TooLong, apart, blame, is_loop, takes
from .keep import keep
from .runs import timing, view
from .score import (
    SECOND_WORKLOADS,
    WORKLOADS,
    broken_law,
    cells_of,
    figures_of,
    package_run,
    points,
    run_on,
)

MOST_SHRINKS, MOST_OF_ENDLESS = 150, 12  # smaller cases to try; of lines that never end
MOST_SECONDS_SMALLER = 20.0  # and for so long
MOST_PARTS = 8  # of a case in a sentence: its settings, requests, and clients that give up
YOURS, PACKAGES = "yours", "the package's own lines"  # the names of two runs in a picture


# -- What a learner sees: right or not yet, why in words, and a picture of it ----------------------


@dataclass(frozen=True)
class ExerciseVerdict:
    """``passed``, sentences on the cases that were checked or on what is wrong, and pictures."""

    passed: bool
    sentences: Sequence[str]
    figures: Sequence[NotebookPicture] = ()

    @property
    def title(self) -> str:
        """In two words."""
        return "✓ Right" if self.passed else "✗ Not yet"

    def _repr_html_(self) -> str:
        colour = GREEN if self.passed else VERMILLION
        words = "".join(f"<p style='margin:.35em 0'>{_code(line)}</p>" for line in self.sentences)
        drawn = "".join(f"<div>{figure._repr_html_()}</div>" for figure in self.figures)
        return (
            f'<div class="minisched-verdict" style="border-left:5px solid {colour};'
            f'padding:.1em 0 .1em .9em"><b>{self.title}</b>{words}{drawn}</div>'
        )

    def __repr__(self) -> str:
        pictures = [repr(figure) for figure in self.figures]
        return "\n".join([self.title, *self.sentences, *pictures])


def _code(line: str) -> str:
    """A sentence for a page; what stands in backticks is code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(line))


def not_yet(*sentences: str, figures: Sequence[NotebookPicture] = ()) -> ExerciseVerdict:
    """Return a verdict on a wrong answer, with its sentences."""
    return ExerciseVerdict(False, sentences, figures)


# -- The check of a lesson's cell ------------------------------------------------------------------


def check(name: str, lines: Any) -> ExerciseVerdict:
    """Hold a learner's lines against the exercise of this name; what is right is kept.

    Raises:
        ValueError: there is no exercise of that name.
    """
    exercise = find(name)
    try:
        verdict = apart(partial(grade, exercise, lines))
    except TooLong as error:
        return not_yet(blame(error))
    if verdict.passed:
        verdict = replace(verdict, sentences=[*verdict.sentences, keep(exercise, lines)])
    return verdict


def grade(exercise: Exercise, lines: Any) -> ExerciseVerdict:
    """The verdict on a learner's lines."""
    if problem := refused(exercise, lines):
        return not_yet(problem)
    if isinstance(exercise.hole, Pure):
        return grade_pure(exercise, exercise.hole, lines)
    if isinstance(exercise.hole, Scored):
        return grade_scored(exercise, exercise.hole, lines)
    return grade_runs(exercise, exercise.hole, lines)


def refused(exercise: Exercise, lines: Any) -> str:
    """Why these lines are not looked at: the package's own, or nothing that can be called so."""
    for part in lines if isinstance(lines, tuple) else [lines]:
        code = getattr(getattr(part, "__wrapped__", part), "__code__", None)
        home, module = code.co_filename if code else "", str(getattr(part, "__module__", ""))
        if module.startswith("minisched.") or home.startswith(PACKAGE):
            return "That is the package's own. Write yours in the cell of the exercise."
    right = exercise.lines(exercise.solution)
    if isinstance(right, tuple):
        if not isinstance(lines, tuple) or len(lines) != len(right):
            return f"{exercise.name} must be {len(right)} things: a class, and a loop."
        if not isinstance(lines[0], type):
            kind = type(lines[0]).__name__
            return f"the first thing of {exercise.name} is of type {kind}, but it must be a class."
        return is_loop(lines[1], "loop")
    if isinstance(right, type):
        return "" if isinstance(lines, type) else f"{exercise.name} must be a class."
    wanted = right.__code__.co_varnames[: right.__code__.co_argcount]
    return takes(lines, exercise.name, *wanted)


def grade_pure(exercise: Exercise, hole: Pure, lines: Any) -> ExerciseVerdict:
    """Case by case, up to the first that is wrong."""
    count, calls, answer, args = 0, Calls(), None, ()
    for args in hole.cases():
        problem, answer = hole.wrong(lines, args, calls)
        if problem:
            return not_yet(in_full(problem), figures=_drawn(hole, answer, args))
        count += 1
    if problem := hole.difference(lines, exercise.lines(exercise.solution)):
        return not_yet(in_full(problem))
    count += DRAWN if hole.asked else 0
    said = [f"Checked on {many(count, 'case')}.", exercise.why]
    return ExerciseVerdict(True, said, _drawn(hole, answer, args))


def grade_scored(exercise: Exercise, hole: Scored, lines: Any) -> ExerciseVerdict:
    """Grade an open problem on its workload, and on its second one if the first is passed."""
    verdict = grade_workload(exercise, hole, lines, hole.workload)
    if verdict.passed and hole.second:
        second = grade_workload(exercise, hole, lines, hole.second)
        if not second.passed:
            return replace(
                second, sentences=[f"On a second workload, {hole.second}:", *second.sentences]
            )
    return verdict


def grade_workload(exercise: Exercise, hole: Scored, lines: Any, workload: str) -> ExerciseVerdict:
    """Run one workload, and compare its points with those that are needed."""
    with hole.filled(lines) as calls:
        try:
            run = run_on((WORKLOADS | SECOND_WORKLOADS)[workload], hole.loop)
        except (Exception, TooLong) as error:
            return not_yet(in_full(calls.raised or blame(error)))
    own = package_run(hole.loop, workload)
    if problem := calls.raised or broken_law(package_run("serial", workload), run):
        return not_yet(in_full(problem))
    said, is_enough = [], True
    for name, found in (("Yours", figures_of(run)), ("The package's own lines", figures_of(own))):
        makespan, _, retractions, pause = cells_of(found)
        said.append(
            f"{name}: {points(workload, found):.1f} points, makespan {makespan}, p99 pause "
            f"{pause}, {many(int(retractions), 'retraction')}."
        )
    mine, most = figures_of(run), hole.slowest * own.trace.end
    for is_met, needed in (
        (points(workload, mine) >= hole.enough, f"at least {hole.enough:g} points"),
        (mine.makespan <= most, f"a makespan of at most {most / 1e6:.1f} ms"),
        (mine.retractions <= hole.retractions, f"at most {hole.retractions} retractions"),
    ):
        if not is_met:
            said.append(f"Needed: {needed}.")
            is_enough = False
    figures = list[NotebookPicture]()
    if mine.makespan <= 2 * most:  # a slower run has few settled steps: it would be drawn whole
        runs = replace(own.trace, loop="package"), replace(run.trace, loop=YOURS)
        figures = [timing(*runs, steps=6)]
    return ExerciseVerdict(is_enough, [*said, exercise.why] if is_enough else said, figures)


def _drawn(hole: Pure, answer: Any, args: tuple[Any, ...]) -> list[NotebookPicture]:
    if hole.draw is None or answer is None:
        return []
    svg = hole.draw(answer, *args)
    return [NotebookPicture(svg)] if svg else []


def grade_runs(exercise: Exercise, hole: Loop | Function, lines: Any) -> ExerciseVerdict:
    """On drawn arguments, and every case of the workloads up to the first that does not hold."""
    answers = list[str]()
    if isinstance(hole, Function):
        solution = exercise.lines(exercise.solution)
        answers = [sentence] if (sentence := hole.difference(lines, solution)) else []
    count, situations, workloads = 0, set[str](), exercise.workloads
    levels: list[tuple[str, Iterable[Case]]] = [("", workloads)]
    if len(workloads.levels) > 1:
        levels = [(level, workloads.drawn(level)) for level in workloads.levels]
        timed = [workloads.shown, *workloads.drawn(workloads.levels[0])]
        levels.append(("time", [*timed, *workloads.first.get("time", ())]))
    for number, (level, cases) in enumerate(levels, 1):
        for case in cases:
            attempt = hold(exercise, hole, lines, case, is_timed=level in ("", "time"))
            if attempt.found:
                said = told(exercise, smallest(exercise, hole, lines, attempt))
                where = [f"Level {number} of {len(levels)}, {level}."] if level else []
                rest = (line for line in said.sentences if line not in "".join(answers))
                return replace(said, sentences=[*answers, *where, *rest])
            situations |= attempt.calls.situations
            count += 1
    tried = f"{many(count, 'case')}, in {many(len(situations), 'different situation')}"
    if answers:
        return not_yet(
            *answers, f"The runs did not show it: no law broke in {many(count, 'case')}."
        )
    if len(situations) < exercise.reach:
        return not_yet(
            f"Your lines were called in {tried}, but there should be at least "
            f"{exercise.reach}: nothing was shown yet."
        )
    return right(exercise, hole, lines, tried.removesuffix(", in 1 different situation"))


# -- One case, and the first thing on it that does not hold ----------------------------------------


def hold(
    exercise: Exercise, hole: Loop | Function, lines: Any, case: Case, is_timed: bool = True
) -> Attempt:
    """Run a case with the learner's lines in the hole."""
    with hole.filled(lines) as calls:
        try:
            verdict = judge(hole.on(case))
        except TooLong as error:
            empty = Trace(YOURS, "sim", "hash", "virtual", (), (), (), ())
            endless = Finding("ends", blame(error))
            return Attempt(case, Verdict((endless,), case.workload, empty, False), calls, endless)
    attempt = Attempt(case, verdict, calls)
    found = broken(exercise, attempt) or (worse(exercise, hole, attempt) if is_timed else None)
    return replace(attempt, found=found)


def broken(exercise: Exercise, attempt: Attempt) -> Finding | None:
    """An error, a law, or an extra one, which may know the cause of some laws."""
    verdict, calls = attempt.verdict, attempt.calls
    if calls.raised:
        return Finding("crash", calls.raised)
    if (stopped := verdict.broke("crash")) is not None:
        return Finding("crash", f"{last_word(exercise, calls)}{stopped.sentence}")
    laws = exercise.laws or [finding.law for finding in verdict.findings]
    found = next((finding for finding in verdict.findings if finding.law in laws), None)
    if found is None or found.law in ("race", "livelock", "progress"):
        for law in exercise.extra:
            if said := law(attempt):
                return Finding(law.__name__.replace("_", " "), said)
    if found and found.law == "livelock" and calls.in_flight:
        left = f"step {next(iter(calls.in_flight))} was launched and never processed"
        return replace(found, sentence=f"{left}; {plainly(found)}")
    return found


def last_word(exercise: Exercise, calls: Calls) -> str:
    """Return the last answer of the learner's function before the scheduler stopped."""
    if calls.last is None:
        return "your lines raised nothing, but the scheduler stopped with "
    args, given = calls.last
    call = f"{exercise.name}({', '.join(map(repr, args))})"
    call = call if len(call) <= 200 else f"{exercise.name}(…)"
    return f"`{call}` gave `{given!r}`, and it broke the scheduler: "


def worse(exercise: Exercise, hole: Loop | Function, attempt: Attempt) -> Finding | None:
    """In what the run is worse than that of the package's own lines, by more than it may be."""
    own = package_verdict(hole, attempt.case) if exercise.no_worse else attempt.verdict
    for what, factor in exercise.no_worse:
        unit, size, measure_of = MEASURES[what]
        one, other = measure_of(attempt.verdict), measure_of(own)
        if one > factor * other + 1e-9:
            subject = what if unit else f"number of {what}"
            values = f"{one / size:g}{unit}, and {other / size:g}{unit}"
            said = f"every law holds, but the {subject} is {values} with the package's own lines."
            steps = [int(MEASURES["steps"][2](of)) for of in (attempt.verdict, own)]
            late = launched_late(attempt.verdict.trace) - launched_late(own.trace)
            if what == "makespan" and steps[0] > (factor if late else 1) * steps[1]:
                said += " Yours took {} steps, those {}: which request could run too?".format(
                    *steps
                )
            elif what == "makespan" and late:
                step = min(late)
                said += f" Step {step} was launched only after step {step - 1} was processed."
            return Finding("", said)
    return None


def launched_late(trace: Trace) -> set[int]:
    """Return the steps that were launched after the step before them was processed."""
    host = trace.on("host")
    processed = {item.step: item.end for item in host if item.name == "process"}
    return {
        item.step
        for item in host
        if item.name == "launch" and item.start >= processed.get(item.step - 1, item.end)
    }


def on_design(case: Case, name: str) -> Case:
    """The case on a design with its relay and its options: ``serial``, ``LOOP:RELAY:OPTION=2``."""
    design = read_design(name)
    return replace(case, loop=design.loop, relay=design.relay, options=design.options)


def package_verdict(hole: Loop | Function, case: Case) -> Verdict:
    """Judge a case with the package's own lines."""
    if isinstance(hole, Loop):
        own = on_design(case, hole.base)
        case = replace(own, options={**own.options, **hole.taken(case.options)})
    return judge(case)


Measure = Callable[[Verdict], float]
MEASURES: dict[str, tuple[str, float, Measure]] = {  # name -> unit, how many of it are 1, the value
    "makespan": (" ms", 1e6, lambda verdict: verdict.trace.end),
    "steps": ("", 1, lambda verdict: measure(verdict.trace).steps),
    "prompt tokens computed": ("", 1, lambda verdict: sum(
        int(mark.attrs["extend_len"]) for mark in verdict.trace.marks if mark.name == "admit"
    )),
    "retractions": ("", 1, lambda verdict: sum(
        mark.name == "retraction" for mark in verdict.trace.marks
    )),
}  # fmt: skip


def smallest(exercise: Exercise, hole: Loop | Function, lines: Any, attempt: Attempt) -> Attempt:
    """The simplest case to be found of the same thing; what is slow is shown where all see it."""
    best, late = attempt, monotonic() + MOST_SECONDS_SMALLER
    law = attempt.found.law if attempt.found else ""
    if not law:
        steady = hold(exercise, hole, lines, exercise.workloads.shown)
        return steady if steady.found else attempt

    def shows(case: Case) -> bool:
        nonlocal best
        if monotonic() > late:
            return False
        again = hold(exercise, hole, lines, case, is_timed=False)
        is_same = again.found is not None and again.found.law == law
        best = again if is_same else best
        return is_same

    has_run = bool(attempt.verdict.trace.slices)
    shrink(attempt.case, shows, MOST_SHRINKS if has_run else MOST_OF_ENDLESS)
    return best


# -- In words and pictures -------------------------------------------------------------------------


def told(exercise: Exercise, attempt: Attempt) -> ExerciseVerdict:
    """Return the verdict on what does not hold, with its smallest case and a picture."""
    found, verdict, hole = attempt.found, attempt.verdict, exercise.hole
    assert found is not None and not isinstance(hole, Pure)
    names = {req.name for req in attempt.case.workload.requests}
    said = [in_full(plainly(found), names)]
    parts = [*in_words(hole.on(attempt.case), exercise.workloads.is_tight)]
    if len(parts) > MOST_PARTS:
        parts = [*parts[:MOST_PARTS], f"and {len(parts) - MOST_PARTS} more"]
    case = "; ".join(parts)
    law = f"The law: {found.law}. " if found.law and not attempt.calls.raised else ""
    said.append(f"{law}The smallest case that was found: {case}.")
    trace = replace(verdict.trace, loop=YOURS)
    if not trace.slices:
        return not_yet(*said)
    own = replace(package_verdict(hole, attempt.case).trace, loop=PACKAGES)
    if not found.law:  # they hold; it is worse
        return not_yet(*said, figures=pictures(exercise, trace, own))
    offence = offence_of(replace(verdict, trace=trace), found)
    if offence.sentence != plainly(found):
        story = offence.sentence.removeprefix(plainly(found)).lstrip("; ")
        said.insert(1, in_full(story, names))
    title = shorten(plainly(found).replace("`", ""), 160, placeholder=" …")
    offence = replace(offence, sentence=title)
    figures = [NotebookPicture(to_svg(offence_scene(trace, offence, own)))]
    if exercise.picture != "timing":
        with suppress(NothingToShow):  # it may have stopped before there was any
            figures += pictures(exercise, trace)
    return not_yet(*said, figures=figures)


def pictures(exercise: Exercise, *traces: Trace) -> list[NotebookPicture]:
    """Runs as the exercise draws them."""
    if exercise.picture == "timing":
        return [timing(*traces)]
    return [view(exercise.picture, trace) for trace in traces]


SETTINGS = ("kv_tokens", "page_size", "max_running_requests", "chunked_prefill_size",
            "max_prefill_tokens", "enable_mixed_chunk", "schedule_policy")  # fmt: skip


def in_words(case: Case, with_settings: bool) -> Iterator[str]:
    """A case's requests and what befalls them, and of the settings those that a lesson names."""
    for line in case_text(case):
        kind, _, rest = line.partition(": ")
        if kind == "settings" and with_settings:
            if named := [part for part in rest.split(", ") if part.startswith(SETTINGS)]:
                yield f"settings: {', '.join(named)}"
        elif kind not in ("settings", "costs", "costs (ns)"):
            yield line


def in_full(sentence: str, names: Set[str] = frozenset()) -> str:
    """With a capital where it begins, unless that is one of the ``names``, and a full stop."""
    if sentence.partition(" ")[0] not in names:
        sentence = sentence[:1].upper() + sentence[1:]
    return sentence if sentence.endswith((".", "?", "`")) else f"{sentence}."


def right(exercise: Exercise, hole: Loop | Function, lines: Any, tried: str) -> ExerciseVerdict:
    """Return the verdict on a right answer: its cases, its run next to another one, and why."""
    case, held = exercise.workloads.shown, "every law of `minisched check`"
    if exercise.laws:
        held = f"each of {len(exercise.laws)} laws ({', '.join(exercise.laws)})"
    said = [f"Checked on {tried}: {held} holds."]
    if isgeneratorfunction(lines) and "wishes" not in exercise.workloads.levels:
        said.append(
            "These workloads have no penalties and no grammars. `minisched check --loop mine.py` "
            "draws both; lesson 10 adds the lines that they need."
        )
    with hole.filled(lines):
        runs = [replace(judge(hole.on(case)).trace, loop=YOURS)]
    if exercise.picture == "timing" and exercise.beside:
        runs.insert(0, replace(judge(on_design(case, exercise.beside)).trace, loop=exercise.beside))
        one, mine = (trace.end / 1e6 for trace in runs)
        speed_up = "as fast" if one == mine else f"{one / mine:.2f} times as fast"
        said.append(
            f"On the run below {exercise.beside} takes {one:g} ms, yours {mine:g} ms: {speed_up}."
        )
    return ExerciseVerdict(True, [*said, exercise.why], pictures(exercise, *runs))
