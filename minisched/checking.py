"""``minisched check`` and ``minisched.check``: the laws, held against runs or random workloads."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from .checks.answers import Answer, Recorded, answer_all, stopped_with, story_of, verdict_on
from .checks.case import MOST_TRIALS, Case, case_text, shrink
from .checks.history import many
from .checks.judge import Finding, breaks_the_same, judge
from .checks.laws import LAWS, cause_rank, laws_on
from .checks.many import CaseTally, Tried, case_of, try_seed
from .comparison import Comparison
from .core import distinct
from .defaults import check_names, in_words
from .devices.registry import open_device
from .engine.engine import Engine
from .export.native import read_recorded
from .learn.exercises.l13_capstone import made_with
from .learn.guard import is_loop
from .loops.design import LOOPS, Design, Turns, find_loop, registered
from .loops.run import Run
from .museum.blame import wrong_token
from .museum.patch import swapped
from .sweep.workers import HERE, Workers, in_order, spread
from .trace import Trace

Checkable = Run | Trace | Comparison | str | Path | Design | Callable[[Engine], Turns]
WORKLOADS = {"virtual": 150, "wall": 20}  # by the device's clock
MOST_SHOWN = 8  # details of one answer
LONGEST = 300  # characters of a finding
FEW = 8  # workloads that this process runs faster than new ones do
SIGNS = {"yes": "✓", "no": "✓", "partly": "~", "unknown": "?"}


@dataclass(frozen=True, repr=False)
class Check:
    """What a check came to; printed, it says so in words.

    ``holds`` is None where there was nothing to judge by. ``answers`` are those about recorded
    ``runs``, by run; ``tally`` is the count over random workloads, with every failure.
    """

    holds: bool | None
    lines: tuple[str, ...]
    answers: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    tally: CaseTally | None = None
    runs: Sequence[Recorded] = ()

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def as_json(self) -> dict[str, Any]:
        """Of workloads the counts; of runs ``holds``, and each run with its header and answers.

        A run that stopped with an error has it as ``stopped``. An answer has ``answer`` (yes, no,
        partly or unknown), ``sentence``, ``details``, and that on overlap ``figures``, in
        nanoseconds.
        """
        if self.tally is not None:
            return self.tally.as_json()
        header = ("loop", "device", "model", "clock", "dtype")
        return {
            "holds": self.holds,
            "runs": [
                {
                    "file": run.file,
                    **{name: getattr(run.trace, name) for name in header},
                    **({"stopped": error} if (error := stopped_with(run.trace)) else {}),
                    **{item.question: item.as_json() for item in self.answers[run.file]},
                }
                for run in self.runs
            ],
        }


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
    if not what:
        return check_workloads(loops, workloads, seed, device, Workers(jobs))
    if own and len(what) > 1:
        raise ValueError(f"a loop of your own is checked alone, but {len(what)} things were given.")
    if own and (loops or jobs > 1):
        raise ValueError("a loop of your own is checked alone, and in this process.")
    if own:
        with known(own[0]) as name:
            again = f"check({name}, seed={{seed}}, workloads=1)"
            return check_workloads([name], workloads, seed, device, again=again)
    if (workloads, seed, loops, device, jobs) != (None, 0, [], "sim", 1):
        raise ValueError("workloads, seed, loops, device and jobs are not for recorded runs.")
    return check_runs(recorded(what))


# -- Recorded runs ---------------------------------------------------------------------------------


def check_runs(given: Iterable[Recorded]) -> Check:
    """Recorded runs: identical, leaks, races, overlaps; the first of several is the baseline.

    Raises:
        ValueError: two runs are of different workloads.
    """
    runs = list(given)
    names = distinct(run.file for run in runs)
    runs = [run._replace(file=name) for run, name in zip(runs, names, strict=True)]
    answers = answer_all(runs)
    lines = [line for run in runs for line in said_of(run, answers[run.file])]
    return Check(verdict_on(runs, answers), tuple(lines), answers, runs=runs)


def recorded(what: Sequence[Checkable]) -> Iterator[Recorded]:
    """Everything that was handed over, as runs with a name.

    Raises:
        ValueError: it is something else, or a file can't be read.
    """
    for item in what:
        if isinstance(item, Comparison):
            yield from recorded(item.runs)
        elif isinstance(item, Run | Trace):
            yield Recorded(item.loop, item.trace if isinstance(item, Run) else item)
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


def said_of(run: Recorded, answers: Sequence[Answer]) -> Iterator[str]:
    """A run's answers, one line each with its details below."""
    trace = run.trace
    what = " ".join(filter(None, [trace.loop, "on", trace.device, trace.model, trace.dtype]))
    yield f"{run.file}: {what}, {trace.clock} clock"
    if error := stopped_with(trace):
        yield f"  ✗ it stopped with {error}"
    for answer in answers:
        sign = SIGNS[answer.word] if answer.holds else "✗"
        if answer.question == "overlaps" and answer.word == "no":
            sign = "-"  # no law is broken
        yield f"  {sign} {answer.question + '?':<11} {answer.sentence}"
        yield from (f"    {'':<11} {line}" for line in answer.details[:MOST_SHOWN])
        if (more := len(answer.details) - MOST_SHOWN) > 0:
            yield f"    {'':<11} and {more} more; --json has them all"


# -- Random workloads ------------------------------------------------------------------------------


def check_workloads(
    loops: Sequence[str],
    workloads: int | None = None,
    seed: int = 0,
    device: str = "sim",
    workers: Workers = HERE,
    again: str = "",
    hear: Callable[[int], None] = lambda cases: None,
) -> Check:
    """Random workloads on ``loops``, or without any on those that come round with a seed.

    ``again`` is what repeats a failure, with ``{seed}`` in it; ``hear`` hears after each workload
    how many cases there were.

    Raises:
        ValueError: a number is below its limit, or there is no such loop or device.
    """
    opened = open_device(device)
    opened.close()
    count = WORKLOADS[opened.clock] if workloads is None else workloads
    for name, value, least in (("workloads", count, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number from {least} on.")
    for name in loops:
        find_loop(name).check_device(name, device)
    cases = list[Tried]()
    for tried in try_workloads(range(seed, seed + count), loops, device, workers):
        cases += tried
        hear(len(cases))
    tally = CaseTally(seed, count, device, cases)
    lines = verdict_on_cases(tally), *unknown_told(tally), *failures_told(tally, again)
    return Check(not tally.failures if cases else None, lines, tally=tally)


def verdict_on_cases(tally: CaseTally) -> str:
    """How much was tried, and whether every law held."""
    cases, count = len(tally.cases), len(tally.loops)
    where = next(iter(tally.loops)) if count == 1 else f"{count} loops"
    tried = f"{many(tally.workloads, 'random workload')} on {where}, on {tally.device}"
    broken = sum(bool(case.findings) for case in tally.cases)
    if broken:
        return f"✗ {broken} of {many(cases, 'case')} broke a law: {tried}."
    if not cases:
        return "? Nothing to judge: no loop takes these workloads, so no case was run."
    unknown = {law for law, _ in tally.unknown}
    if unseen := [law for law in laws_on(tally.device) if tally.unjudged(law) == cases]:
        idle = " or ".join(law for law in unseen if law not in unknown)
        never = f"nothing happened that {idle} could be judged by" if idle else "not all are judged"
        return f"? No law broke in {many(cases, 'case')}, but {never}: {tried}."
    return f"✓ every law held in {'all ' * (cases > 1)}{many(cases, 'case')}: {tried}."


def unknown_told(tally: CaseTally) -> Iterator[str]:
    """Name each law that does not know the rules in force, with the reason and the cases."""
    for (law, reason), count in tally.unknown.items():
        yield f"? {reason}: {law} is not judged in {many(count, 'case')}."


LAW_HEADS = ("", "law", ">held", "what it says")


def law_rows(tally: CaseTally) -> Iterator[tuple[str, str, str, str]]:
    """Each law: whether it held, and in how many cases that had something to break it with."""
    broken = {finding.law for _, finding in tally.failures}
    for law in laws_on(tally.device):
        held = tally.holding(law) - tally.unjudged(law)
        yield "✗" if law in broken else "✓" if held else "?", law, str(held), LAWS[law].says


def failures_told(tally: CaseTally, again: str = "") -> Iterator[str]:
    """The first that broke each law with what repeats it, causes first; the first of all small."""
    for case, broken in tally.first:
        said = f"{broken.law}: {shortened(broken.sentence)}"
        yield f"✗ seed {case.seed}, {case.loop}: {said}"
        yield f"    {again.format(seed=case.seed) or command(case.seed, case.loop, tally.device)}"
    if (more := len(tally.failures) - len(tally.first)) > 0:
        yield f"  and {more} more; --json has them all"
    if tally.failures:
        yield "The first of them, made as small as it could be:"
        small = made_small(*tally.first[0], tally.device)
        yield from (f"  {line}" for line in case_text(small))
        verdict = judge(small)
        for finding in sorted(verdict.findings, key=lambda item: cause_rank(item.law)):
            yield f"  {finding.law}: {shortened(finding.sentence)}"
            difference = wrong_token(verdict) if finding.law == "identity" else None
            story = story_of(difference, verdict.trace)[0] if difference else ()
            yield from (f"    {line}" for line in story)


@cache
def made_small(tried: Tried, finding: Finding, device: str) -> Case:
    """A case that failed, with everything taken away that its law does not need."""
    case = case_of(tried.seed, tried.loop, device)
    return shrink(case, breaks_the_same(finding), MOST_TRIALS)


def command(seed: int | str, loop: str, device: str) -> str:
    """What repeats a failure."""
    on = "" if device == "sim" else f" --device {device}"
    return f"minisched check --workloads 1 --seed {seed} --loop {loop}{on}"


def shortened(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."


# -- A loop of one's own ---------------------------------------------------------------------------


@contextmanager
def known(loop: Design | Callable[[Engine], Turns]) -> Iterator[str]:
    """A loop of one's own among those that are here, under the name that is given.

    That is its function's, if no loop here is called so. If it says nothing of its design, it has
    two steps in flight and a ring, as ``overlap``.

    Raises:
        ValueError: it can't be called with an engine, or has no ``yield``.
    """
    run = loop.run if isinstance(loop, Design) else loop
    name = str(getattr(run, "__name__", "")).strip("<>") or "your_loop"
    name = f"your_{name}" if name in LOOPS else name
    if isinstance(loop, Design):
        design = loop
    elif problem := is_loop(loop, name):
        raise ValueError(problem)
    else:
        design = Design(loop, ("ring", "pool"), depth=2, pins=2)
    with registered(name, design):
        yield name


def check_file(where: str, workloads: int | None, seed: int, device: str) -> Check:
    """Random workloads on a loop in a file: ``mine.py``, or ``mine.py:my_loop``.

    Without a name it is ``loop``, or the last generator of an engine. A class ``Scheduler`` beside
    a ``loop`` decides for it, as in the last lesson.

    Raises:
        ValueError: there is no such file, it can't be run, or it has no such loop.
    """
    path, _, asked = where.partition(":")
    try:
        names = runpy.run_path(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}.") from None
    except Exception as error:
        raise ValueError(f"{path} stops with {type(error).__name__}: {error}.") from None
    loops = [
        key for key, value in names.items()
        if inspect.isgeneratorfunction(value) and value.__code__.co_filename == path
        and value.__code__.co_varnames[:1] == ("engine",)
    ]  # fmt: skip
    wanted = asked or ("loop" if "loop" in loops else "".join(loops[-1:]))
    if wanted not in loops:
        has = f"it has {', '.join(loops)}" if loops else "it has none"
        what = f"loop {asked!r}" if asked else "loop: a generator that takes `engine`"
        raise ValueError(f"{path} has no {what}; {has}.")
    own, again = names.get("Scheduler"), command("{seed}", where, device)
    decides = (
        swapped(made_with(own)) if isinstance(own, type) and wanted == "loop" else nullcontext()
    )
    with decides, known(names[wanted]) as name:
        return check_workloads([name], workloads, seed, device, again=again)


def try_workloads(
    seeds: Sequence[int], loops: Sequence[str] = (), device: str = "sim", workers: Workers = HERE
) -> Iterator[list[Tried]]:
    """Yield ``try_seed`` of each seed, in order, from several processes or a cluster.

    The results are the same for any number of processes. No process is left at the end.
    """
    one = partial(try_seed, loops=tuple(loops), device=device)
    is_small = workers.backend == "processes" and len(seeds) < FEW
    yield from in_order(spread(one, seeds, HERE if is_small else workers))
