"""``minisched check``: recorded runs, or random workloads where none is named."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..checking import check_file
from ..checks.answers import (
    ORACLE,
    Answer,
    Recorded,
    answer_all,
    stopped_with,
    story_of,
    verdict_on,
)
from ..checks.case import MOST_TRIALS, Case, case_text, shrink
from ..checks.draw import read_design
from ..checks.history import Offence, counted
from ..checks.judge import Finding, Verdict, breaks_the_same, judge
from ..checks.many import (
    CAUSES,
    LAWS,
    CaseTally,
    FailedCase,
    Tried,
    base_of,
    case_of,
    laws_on,
    try_workloads,
)
from ..checks.oracle import oracle_trace
from ..devices.registry import open_device
from ..export import native
from ..export.native import read_recorded
from ..export.offence import draw, to_text
from ..loops.design import LOOPS
from ..museum.blame import offence_of, wrong_token
from ..spread import Workers, num_cores
from ..trace import Trace
from ..trace.files import write_whole
from .exit import complain
from .layout import (
    HANG,
    Fitted,
    Json,
    named_progress,
    print_json,
    say,
    say_command,
    table,
    work_progress,
)
from .options import BackendName, ClusterAddress


def check(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded runs; of several, the first one is the baseline."),
    ] = None,
    workloads: Annotated[
        int | None, typer.Option(help="Draw so many instead; 150, and 20 in real time.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the first workload; each next one's is 1 more.")
    ] = 0,
    loop: Annotated[
        list[str] | None,
        typer.Option(help="Only on this loop, as LOOP:RELAY:OPTION=VALUE; or mine.py."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="sim, thread, cuda or mlx, with the hash model.")
    ] = "sim",
    jobs: Annotated[
        int | None, typer.Option(help="Processes; one for each core, and 1 in real time.")
    ] = None,
    backend: BackendName = "processes",
    address: ClusterAddress = "",
    out: Annotated[
        Path | None, typer.Option(help="A folder for the first failure's trace and its picture.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Of recorded runs: draw what was found first; .svg or .txt.")
    ] = None,
    step: Annotated[
        str, typer.Option(help="Of a profiler's trace: the ranges that are steps; * is any text.")
    ] = "",
    json: Json = False,
) -> int:
    """Say of recorded runs whether they are identical, leak, race and overlap; or try many.

    Without a trace it draws random workloads and runs each on up to 12 of the
    loops that take it: exit code 1 if a law broke. Runs of two workloads can't
    be compared: exit code 2.

    --json has counts then: cases, identical, races, leaks; and failures, each
    with seed and loop. An aborted request is identical as far as it got, and a
    refused one if it rightly got nothing.
    """
    if loop and any(name.partition(":")[0].endswith(".py") for name in loop):
        return run_check_file(loop, workloads, seed, device, json)
    if not traces:
        if draw is not None:
            raise ValueError(
                "--draw is about recorded runs, but none is named; --out draws what breaks a law."
            )
        if step:
            raise ValueError("--step is about recorded runs, but none is named.")
        for name, value, least in (
            ("workloads", workloads, 1), ("seed", seed, 0), ("jobs", jobs, 1)
        ):  # fmt: skip
            if value is not None and value < least:
                raise ValueError(f"--{name} is {value}, but it must be at least {least}.")
        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file, but it must be a folder.")
        is_virtual = clock_of(device, loop or ()) == "virtual"
        count = workloads or (IN_VIRTUAL_TIME if is_virtual else IN_REAL_TIME)
        workers = Workers(jobs or (num_cores() if is_virtual else 1), backend, address)
        seeds = range(seed, seed + count)
        return check_workloads(seeds, tuple(loop or ()), device, workers, out, json)
    drawing = {
        "--workloads": workloads is not None,
        "--seed": seed,
        "--loop": loop,
        "--device": device != "sim",
        "--jobs": jobs is not None,
        "--out": out,
        "--backend": backend != "processes",
        "--address": address,
    }
    if asked := [name for name, given in drawing.items() if given]:
        raise ValueError(
            f"{asked[0]} draws workloads, but {traces[0]} is a recorded run: one or the other."
        )
    return check_traces(traces, draw, json, step)


def run_check_file(
    loops: Sequence[str], workloads: int | None, seed: int, device: str, as_json: bool
) -> int:
    """A loop in a file, on random workloads; 1 if a law broke.

    Raises:
        ValueError: it isn't there, or there are others beside it.
    """
    if len(loops) > 1:
        raise ValueError("a loop in a file is checked alone: give one --loop.")
    found = check_file(loops[0], workloads, seed, device)
    if as_json and found.tally is not None:
        print_json(found.tally.as_json())
    else:
        print(found)
    return 0 if found.holds else 1


# -- The picture of a run, with what it did wrong in red -------------------------------------------


def picture(trace: Trace, offence: Offence, suffix: str) -> str:
    """One offence, as ``.svg`` or as ``.txt``."""
    return draw(trace, offence) if suffix == ".svg" else to_text(trace, offence)


# -- What many cases came to, as tables ------------------------------------------------------------

SAYS = {
    "identity": "each request gets the tokens that it would get alone",
    "ends": "each request ends once, and its client heard it",
    "client": "it hears why it ended, its usage, and each token at once",
    "logprobs": "it hears the log-probabilities that it would hear alone",
    "abort": "who is given up ends in that turn, and hears no more tokens",
    "progress": "who may run is in the next step, or there is a reason",
    "order": "nobody goes before their turn, or loses memory before others",
    "budget": "no step has more tokens or rows than its budget",
    "leak": "nothing is held, lost or freed twice",
    "race": "what lanes do to memory is ordered, and what is freed is left alone",
    "touches": "an op touches what it says that it does, and nothing else (on sim)",
    "ownership": "no page or row is handed out while somebody has it",
    "time": "nothing ends before it starts",
    "livelock": "turns bring every request to its end",
    "deadlock": "nobody waits for what never comes",
    "crash": "no error stops a loop",
}


def print_tally(console: Console, tally: CaseTally, seconds: float, workers: Workers) -> None:
    """How much was tried and of what kind, what held by law, and by loop."""
    cases = len(tally.cases)
    broken = len({(item.seed, item.loop) for item in tally.failures})
    last = tally.seed + tally.workloads - 1
    seeds = f"seed {tally.seed}" if last == tally.seed else f"seeds {tally.seed} to {last}"
    say(
        console,
        f"{counted(tally.workloads, 'workload')} ({seeds}) on "
        f"{counted(len(tally.by_loop), 'loop')}: {counted(cases, 'case')} on "
        f"{tally.device} with hash, in {seconds:.1f} s on {who(workers)}",
    )
    say(console, requests_sentence(tally))
    say(console, happened_sentence(tally))
    console.print(by_law(tally))
    console.print(by_loop(tally))
    say(console, verdict_on_cases(tally, broken), 2)


def who(workers: Workers) -> str:
    """Who ran the cases."""
    return counted(workers.jobs, "core") if workers.backend == "processes" else workers.backend


def verdict_on_cases(tally: CaseTally, broken: int) -> str:
    """One sentence on all of it; ``broken`` cases broke a law."""
    cases = len(tally.cases)
    if broken:
        return f"[red]✗[/] {broken} of {cases} cases broke a law."
    if not cases:
        return "? Nothing to judge: no loop takes these workloads, so no case was run."
    unseen = [law for law in laws_on(tally.device) if tally.unjudged(law) == cases]
    if unseen:
        return (
            f"? No law broke in {counted(cases, 'case')}, but nothing happened that "
            f"{' or '.join(unseen)} could be judged by."
        )
    every = "all " if cases > 1 else ""
    return f"[green]✓[/] every law held in {every}{counted(cases, 'case')}."


def requests_sentence(tally: CaseTally) -> str:
    """How the requests ended, over all cases."""
    total, aborted, refused, failed = (
        sum(getattr(case, name) for case in tally.cases)
        for name in ("requests", "aborted", "refused", "failed")
    )
    return (
        f"{counted(total, 'request')}: {total - aborted - refused - failed} ran to their end, "
        f"{aborted} given up, {failed} in a step that was to fail, {refused} rightly refused"
    )


def happened_sentence(tally: CaseTally) -> str:
    """How much of what may befall a run did: laws that hold where nothing happens say little."""
    counts = [count for of in tally.happened.values() for count in of.values()]
    return (
        f"of the {len(counts)} things that may befall a run (an eviction, a wasted row ..), "
        f"{sum(map(bool, counts))} did; --json counts them"
    )


def by_law(tally: CaseTally) -> Fitted:
    """Each law, and in how many cases it held that had something to break it with."""
    rows = []
    for law in laws_on(tally.device):
        held, cases = tally.holding(law), len(tally.cases)
        judged = sign(held == cases) if tally.unjudged(law) < cases else "?"
        rows.append((judged, law, SAYS[law], str(held - tally.unjudged(law))))
    return table(("", "law", "what it says", ">held"), rows)


def by_loop(tally: CaseTally) -> Fitted:
    """Each loop, with its variants (relays and options), and which laws they broke."""
    rows = []
    for loop, cases in tally.by_loop.items():
        designs = {case.loop for case in tally.cases if base_of(case.loop) == loop}
        broken = {law: cases - tally.holding(law, loop) for law in LAWS}
        words = ", ".join(f"{law} {count}" for law, count in broken.items() if count)
        rows.append((sign(not words), loop, str(len(designs)), str(cases), words))
    return table(("", "loop", ">variants", ">cases", "broken"), rows)


def sign(holds: bool) -> str:
    """Whether something holds, at a glance and without colour."""
    return "[green]✓[/]" if holds else "[red]✗[/]"


# -- The cases that broke a law: how to repeat each, and the first one made small ------------------

LONGEST = 300  # characters of a finding


def report_failures(console: Console, tally: CaseTally, files: list[str]) -> None:
    """The first of each law with the command that repeats it, causes first; and that one small."""
    for failure in tally.first:
        said = f"{failure.law}: {escape(shortened(failure.sentence))}"
        say(console, f"[red]✗[/] seed {failure.seed}, {failure.loop}: {said}", 2)
        if failure.law == "identity":
            print_why(console, judge(case_of(failure.seed, failure.loop, tally.device)))
        say_command(console, command(failure, tally.device))
    if (more := len(tally.failures) - len(tally.first)) > 0:
        console.print(f"  and {more} more; --json has them all")
    if tally.failures:
        report_small(console, tally.first[0], tally.device)
    for file in files:
        say(console, escape(file))
    if pair := [file for file in files if file.endswith(".json")]:
        say_command(console, f"minisched check {' '.join(pair)}")


def report_small(console: Console, failure: FailedCase, device: str) -> None:
    """The smallest case that was found to break the same law, and all that it breaks."""
    small = make_small(failure, device)
    verdict = judge(small)
    console.print("the first of them, made as small as it could be:")
    for line in case_text(small):
        say(console, f"  {escape(line)}", 4)
    for finding in sorted(verdict.findings, key=lambda item: CAUSES.index(item.law)):
        say(console, f"  {finding.law}: {escape(shortened(finding.sentence))}", 4)
        if finding.law == "identity":
            print_why(console, verdict)


def print_why(console: Console, verdict: Verdict) -> None:
    """How the first wrong token came about."""
    difference = wrong_token(verdict)
    for line in story_of(difference, verdict.trace)[0] if difference else ():
        say(console, f"    {escape(line)}", 6)


@cache
def make_small(failure: FailedCase, device: str) -> Case:
    """The failure's case with everything taken away that its law does not need."""
    case = case_of(failure.seed, failure.loop, device)
    shows = breaks_the_same(Finding(failure.law, failure.sentence))
    return shrink(case, shows, MOST_TRIALS)


def save_failure(tally: CaseTally, folder: Path) -> list[str]:
    """Write the trace of the first cause, made small, its baseline and its picture; the files.

    The baseline comes first: it is what the oracle says, so that wrong tokens can be explained.

    Raises:
        ValueError: they can't be written.
    """
    failure = tally.first[0]
    verdict = judge(make_small(failure, tally.device))
    stem = f"seed-{failure.seed}-{failure.loop.replace(':', '-')}"
    texts = {
        f"{stem}{ORACLE}.json": native.to_json(oracle_trace(verdict.workload, verdict.refused)),
        f"{stem}.json": native.to_json(verdict.trace),
    }
    if (found := verdict.broke(failure.law)) is not None:
        texts[f"{stem}.svg"] = picture(verdict.trace, offence_of(verdict, found), ".svg")
    for name, text in texts.items():
        write_whole(folder / name, text, f"--out {folder}", with_folders=True)
    return [str(folder / name) for name in texts]


def command(failure: FailedCase, device: str) -> str:
    """What repeats a failure."""
    on = "" if device == "sim" else f" --device {device}"
    return f"minisched check --workloads 1 --seed {failure.seed} --loop {failure.loop}{on}"


def shortened(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."


# -- ``minisched check --workloads``: draws, runs, and says what held ------------------------------

IN_VIRTUAL_TIME, IN_REAL_TIME = 150, 20  # workloads


def check_workloads(
    seeds: range,
    loops: Sequence[str],
    device: str,
    workers: Workers,
    out: Path | None,
    as_json_only: bool,
) -> int:
    """Draw workloads, hold every law against every case, and report; the exit code."""
    began, cases = time.monotonic(), list[Tried]()
    with named_progress(len(seeds)) as hear:
        for tried in try_workloads(seeds, loops, device, workers):
            cases += tried
            hear(f"workloads, {len(cases)} cases")
    tally = CaseTally(seeds.start, len(seeds), device, cases, loops)
    seconds = time.monotonic() - began
    files = save_failure(tally, out) if out and tally.failures else []
    if as_json_only:
        print_json({**tally.as_json(), "files": files})
    else:
        console = Console(highlight=False, emoji=False)
        print_tally(console, tally, seconds, workers)
        report_failures(console, tally, files)
    return 1 if tally.failures else 0


def clock_of(device: str, loops: Sequence[str]) -> str:
    """A device's clock, ``virtual`` or ``wall``.

    Raises:
        ValueError: there is no such device, or a loop is none of it.
    """
    for name in loops:
        LOOPS[read_design(name).loop].check_device(name, device)
    opened = open_device(device)
    opened.close()
    return opened.clock


# -- ``minisched check TRACE``: is it identical, does it leak, does it race, does it overlap? ------

MOST_SHOWN = 8  # details of one answer
SIGNS = {
    True: {"yes": "[green]✓[/]", "no": "[green]✓[/]", "partly": "~", "unknown": "?"},
    False: dict.fromkeys(("yes", "no", "partly", "unknown"), "[red]✗[/]"),
}


def check_traces(
    paths: Sequence[Path], draw: Path | None, as_json_only: bool, step: str = ""
) -> int:
    """Answer the four questions about each run; 1 if one of the first three has a bad answer.

    ``step`` is the name of the ranges that are steps in a profiler's trace.

    Raises:
        ValueError: a file can't be read, or the picture can't be written.
    """
    if draw is not None and draw.suffix not in (".svg", ".txt"):
        raise ValueError(f"--draw is {draw}, but its name must end in .svg or .txt.")
    with work_progress() as work, no_more_collected():
        runs = [read_recorded(path, step, work.reading(path)) for path in paths]
        gc.freeze()
        work.at("looking at what ran")
        answers = answer_all(runs)
    holds = verdict_on(runs, answers)
    if as_json_only:
        print_json(answers_json(runs, answers, holds))
    else:
        report_answers(Console(highlight=False, emoji=False), runs, answers)
    if draw is not None:
        draw_first(draw, runs, answers)
    return 1 if holds is False else 0


@contextmanager
def no_more_collected() -> Iterator[None]:
    """What is frozen meanwhile is not looked at for cycles, a million events at a time."""
    try:
        yield
    finally:
        gc.unfreeze()


def report_answers(
    console: Console, runs: Sequence[Recorded], answers: dict[str, list[Answer]]
) -> None:
    """Four lines for each run, each with its details."""
    for run in runs:
        trace = run.trace
        parts = [trace.loop, "on", trace.device, trace.model, trace.dtype]
        what = " ".join(filter(None, parts))
        say(console, f"[bold]{escape(run.file)}[/]: {escape(what)}, {trace.clock} clock", 2)
        if error := stopped_with(trace):
            say(console, f"  [red]✗[/] it stopped with {escape(error)}", 4)
        for answer in answers[run.file]:
            sign = SIGNS[answer.holds][answer.word]
            if answer.question == "overlaps" and answer.word == "no":
                sign = "-"  # no law is broken
            question = f"{answer.question}?"
            say(console, f"  {sign} {question:<11} {escape(answer.sentence)}", HANG)
            for line in first_few(answer.details):
                say(console, f"    {'':<11} {escape(line)}", HANG)


def first_few(details: Sequence[str]) -> Iterator[str]:
    """The first of them, and how many more there are."""
    yield from details[:MOST_SHOWN]
    if len(details) > MOST_SHOWN:
        yield f"and {len(details) - MOST_SHOWN} more; --json has them all"


def answers_json(
    runs: Sequence[Recorded], answers: dict[str, list[Answer]], holds: bool | None
) -> dict[str, Any]:
    """``holds``, and of each of ``runs`` its ``file``, its header, and the answers by question.

    ``holds`` is None where nothing could be said about any law. A run that stopped with an error
    has it as ``stopped``.

    An answer has ``answer`` (yes, no, partly or unknown), ``sentence``, ``details``, and that on
    overlap ``figures`` in nanoseconds.
    """
    header = ("loop", "device", "model", "clock", "dtype")
    return {
        "holds": holds,
        "runs": [
            {
                "file": run.file,
                **{name: getattr(run.trace, name) for name in header},
                **({"stopped": error} if (error := stopped_with(run.trace)) else {}),
                **{item.question: item.as_json() for item in answers[run.file]},
            }
            for run in runs
        ],
    }


def draw_first(target: Path, runs: Sequence[Recorded], answers: dict[str, list[Answer]]) -> None:
    """Draw what was found first; where nothing was, say so.

    Raises:
        ValueError: the picture can't be written.
    """
    found = next(offences(runs, answers), None)
    if found is None:
        complain(f"nothing was found that could be drawn, so {target} is not written.", 0)
        return
    write_whole(target, picture(*found, target.suffix), f"--draw {target}")


def offences(
    runs: Sequence[Recorded], answers: dict[str, list[Answer]]
) -> Iterator[tuple[Trace, Offence]]:
    """What a picture can show, run by run."""
    for run in runs:
        for answer in answers[run.file]:
            for offence in answer.offences:
                if offence.slices:
                    yield run.trace, offence
