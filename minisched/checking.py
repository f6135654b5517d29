"""``minisched.check``: the laws, held against runs, against a loop of your own, or against many.

What it asks is what ``minisched check`` asks, by the same functions.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checks.answers import Answer, Recorded, answer_all, stopped_with, verdict_on
from .checks.case import MOST_TRIALS, case_text, shrink
from .checks.history import counted
from .checks.judge import Finding, breaks_the_same, judge
from .checks.many import CaseTally, FailedCase, case_of, try_workloads
from .comparison import Comparison
from .defaults import check_names, in_words
from .devices.registry import open_device
from .engine.engine import Engine
from .export.native import read_recorded
from .learn.exercises.l13_capstone import made_with
from .learn.guard import is_loop
from .loops.design import LOOPS, Design, Turns, find_loop, registered
from .loops.run import Run
from .museum.patch import swapped
from .spread import Workers
from .trace import Trace

Checkable = Run | Trace | Comparison | str | Path | Design | Callable[[Engine], Turns]
WORKLOADS = {"virtual": 150, "wall": 20}  # by the device's clock
MOST_SHOWN = 8  # details of one answer
LONGEST = 300  # characters of a finding
SIGNS = {"yes": "✓", "no": "✓", "partly": "~", "unknown": "?"}


@dataclass(frozen=True, repr=False)
class Check:
    """What a check came to; printed, it says so in words.

    ``holds`` is None where there was nothing to judge by. ``answers`` are those about recorded
    runs, by run; ``tally`` is the count over random workloads, with every failure.
    """

    holds: bool | None
    lines: tuple[str, ...]
    answers: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    tally: CaseTally | None = None

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def check_this(
    what: Sequence[Checkable],
    workloads: int | None,
    seed: int,
    loops: Sequence[str],
    device: str,
    jobs: int,
) -> Check:
    """``minisched.check``, which says what it takes.

    Raises:
        ValueError: it was given something else.
    """
    loops = check_names("loops", loops, "overlap")
    own = [item for item in what if isinstance(item, Design) or callable(item)]
    if not what or (own and len(what) == 1):
        return check_workloads(own[0] if own else None, workloads, seed, loops, device, jobs)
    if own:
        raise ValueError(f"a loop of your own is checked alone, but {len(what)} things were given.")
    if (workloads, seed, loops, device, jobs) != (None, 0, [], "sim", 1):
        raise ValueError("workloads, seed, loops, device and jobs are not for recorded runs.")
    return check_runs([item for item in what if not isinstance(item, Design)])  # type: ignore[misc]


def check_runs(what: Sequence[Run | Trace | Comparison | str | Path]) -> Check:
    """Recorded runs: identical, leaks, races, overlaps; the first of several is the baseline.

    Raises:
        ValueError: a file can't be read, or two runs are of different workloads.
    """
    runs = named(list(recorded(what)))
    answers = answer_all(runs)
    lines = [line for run in runs for line in said_of(run, answers[run.file])]
    return Check(verdict_on(runs, answers), tuple(lines), answers)


def recorded(what: Sequence[Run | Trace | Comparison | str | Path]) -> Iterator[Recorded]:
    """Everything that was handed over, as runs with a name."""
    for item in what:
        if isinstance(item, Comparison):
            yield from recorded(item.runs)
        elif isinstance(item, Run):
            yield Recorded(item.loop, item.trace)
        elif isinstance(item, Trace):
            yield Recorded(item.loop, item)
        elif isinstance(item, str) and item.partition(":")[0] in LOOPS and not Path(item).exists():
            raise ValueError(
                f"there is no file {item}; to try the loop of that name on random workloads, "
                f"it is check(loops=[{item!r}])."
            )
        elif isinstance(item, str | Path):
            yield read_recorded(Path(item))
        else:
            raise ValueError(
                f"check takes runs, traces, their files or one loop, but not {in_words(item)}."
            )


def named(runs: Sequence[Recorded]) -> list[Recorded]:
    """The runs, each under a name of its own."""
    found: dict[str, Recorded] = {}
    for run in runs:
        name, count = run.file, 1
        while name in found:
            count += 1
            name = f"{run.file} ({count})"
        found[name] = run._replace(file=name)
    return list(found.values())


def said_of(run: Recorded, answers: Sequence[Answer]) -> Iterator[str]:
    """A run's answers, one line each with its details below."""
    trace = run.trace
    yield " ".join(filter(None, [f"{run.file}:", trace.loop, "on", trace.device, trace.model]))
    if error := stopped_with(trace):
        yield f"  ✗ it stopped with {error}"
    for answer in answers:
        sign = SIGNS[answer.word] if answer.holds else "✗"
        if answer.question == "overlaps" and answer.word == "no":
            sign = "-"  # no law is broken
        yield f"  {sign} {answer.question + '?':<11} {answer.sentence}"
        yield from (f"    {'':<11} {line}" for line in answer.details[:MOST_SHOWN])
        if len(answer.details) > MOST_SHOWN:
            yield f"    {'':<11} and {len(answer.details) - MOST_SHOWN} more"


def check_workloads(
    loop: Design | Callable[[Engine], Turns] | None,
    workloads: int | None,
    seed: int,
    loops: Sequence[str],
    device: str,
    jobs: int,
) -> Check:
    """Random workloads on a loop of one's own, on ``loops``, or on those that come round.

    Raises:
        ValueError: an option is outside its limits, or the loop can't be called.
    """
    opened = open_device(device)
    opened.close()
    count = WORKLOADS[opened.clock] if workloads is None else workloads
    for name, value, least in (("workloads", count, 1), ("seed", seed, 0), ("jobs", jobs, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number from {least} on.")
    if loop is None:
        here: AbstractContextManager[None] = nullcontext()
        call = "check("
    else:
        if loops or jobs > 1:
            raise ValueError("a loop of your own is checked alone, and in this process.")
        name = name_of(loop)
        here = registered(name, spec_of(loop, name))
        loops, call = [name], f"check({name}, "
    with here:
        for name in loops:
            find_loop(name).check_device(name, device)
        cases = [
            tried
            for every in try_workloads(range(seed, seed + count), loops, device, Workers(jobs))
            for tried in every
        ]
        tally = CaseTally(seed, count, device, cases, tuple(loops))
        lines = tuple(told(tally, call, named_loops=loop is None))
    return Check(not tally.failures if cases else None, lines, tally=tally)


# -- A loop in a file ------------------------------------------------------------------------------


def check_file(where: str, workloads: int | None, seed: int, device: str) -> Check:
    """Random workloads on a loop in a file: ``mine.py``, or ``mine.py:my_loop``.

    A class ``Scheduler`` beside a ``loop`` decides for it, as in the last lesson.

    Raises:
        ValueError: there is no such file, it can't be run, or it has no such loop.
    """
    path, _, name = where.partition(":")
    names = names_in(Path(path))
    loop = loop_among(names, path, name)
    own = names.get("Scheduler") if loop.__name__ == "loop" else None
    with swapped(made_with(own)) if isinstance(own, type) else nullcontext():
        return check_workloads(loop, workloads, seed, [], device, 1)


def names_in(path: Path) -> dict[str, Any]:
    """What a file of Python defines.

    Raises:
        ValueError: it isn't there, or stops with an error.
    """
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}.") from None
    except Exception as error:
        raise ValueError(f"{path} stops with {type(error).__name__}: {error}.") from None


def loop_among(names: Mapping[str, Any], path: str, name: str) -> Callable[[Engine], Turns]:
    """The loop of that name; without one ``loop``, or the last that is a generator of an engine.

    Raises:
        ValueError: there is none.
    """
    loops = [
        key for key, value in names.items()
        if inspect.isgeneratorfunction(value) and value.__code__.co_filename == path
        and value.__code__.co_varnames[:1] == ("engine",)
    ]  # fmt: skip
    wanted = name or ("loop" if "loop" in loops else "".join(loops[-1:]))
    if wanted not in loops:
        has = f"it has {', '.join(loops)}" if loops else "it has none"
        what = f"loop {name!r}" if name else "loop: a generator that takes `engine`"
        raise ValueError(f"{path} has no {what}; {has}.")
    found: Callable[[Engine], Turns] = names[wanted]
    return found


def name_of(loop: Design | Callable[[Engine], Turns]) -> str:
    """What a loop of one's own is called: as its function, if no loop here is called so."""
    run = loop.run if isinstance(loop, Design) else loop
    name = str(getattr(run, "__name__", "")).strip("<>") or "your_loop"
    return f"your_{name}" if name in LOOPS else name


def spec_of(loop: Design | Callable[[Engine], Turns], name: str) -> Design:
    """Its design: two steps in flight and a ring, as ``overlap``, if it does not say so itself.

    Raises:
        ValueError: it can't be called with an engine, or has no ``yield``.
    """
    if isinstance(loop, Design):
        return loop
    if problem := is_loop(loop, name):
        raise ValueError(problem)
    return Design(loop, ("ring", "pool"), depth=2, pins=2)


def told(tally: CaseTally, call: str, named_loops: bool) -> Iterator[str]:
    """How much was tried, the first that broke each law, and the first of all made small."""
    cases = len(tally.cases)
    where = ", ".join(tally.by_loop) if len(tally.by_loop) == 1 else f"{len(tally.by_loop)} loops"
    workloads = counted(tally.workloads, "random workload")
    tried = f"{counted(cases, 'case')}: {workloads} on {where}, on {tally.device}"
    if not tally.failures:
        yield f"✓ every law held in {'all ' if cases > 1 else ''}{tried}."
        return
    broken = len({(item.seed, item.loop) for item in tally.failures})
    yield f"✗ {counted(broken, 'case')} broke a law, of {tried}."
    for failure in tally.first:
        yield f"seed {failure.seed}, {failure.loop}: {failure.law}: {short(failure.sentence)}"
        which = f"loops=[{failure.loop!r}], " if named_loops else ""
        yield f"  {call}{which}seed={failure.seed}, workloads=1) repeats it."
    yield from told_small(tally.first[0], tally.device)


def told_small(failure: FailedCase, device: str) -> Iterator[str]:
    """The smallest case that breaks the same law, and what it breaks."""
    shows = breaks_the_same(Finding(failure.law, failure.sentence))
    small = shrink(case_of(failure.seed, failure.loop, device), shows, MOST_TRIALS)
    yield "The first of them, made as small as it could be:"
    yield from (f"  {line}" for line in case_text(small))
    yield from (f"  {item.law}: {short(item.sentence)}" for item in judge(small).findings)


def short(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."
