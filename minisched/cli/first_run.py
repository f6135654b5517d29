"""``minisched first-run``: one step after the other on a GPU, each with its verdict, and a report.

Each step is a process of its own: one bad access ends all that a process can do with a GPU, and
what hangs is ended with the tracebacks of its threads. This process only asks whether there is one.
"""

from __future__ import annotations

import faulthandler
import json as json_text
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..bench.figures import machine, versions
from ..bench.first_run import FAILED, NOT_RUN, OK, STEPS, FirstRunStep, StepOutcome, limit, take
from ..devices.registry import load
from ..trace.files import write_whole
from .layout import Json, print_json, say

START = 30  # seconds that a process may take until its step begins
HUNG = "Timeout ("  # how faulthandler begins when it ends what hangs
STYLES = {OK: "[green]✓[/]", FAILED: "[red]✗[/]", NOT_RUN: "[yellow]-[/]"}


def first_run(
    seconds: Annotated[
        float, typer.Option(help="For what could go on for ever: the laws, and the clock.")
    ] = 60.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this step: machine, hash, memory, waiting, graphs, clock, trace or figures; "
            "repeatable."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder for the report and traces of failures.")] = (
        Path("out/first-run")
    ),
    here: Annotated[
        bool, typer.Option("--here", help="In this process, where a debugger sees it.")
    ] = False,
    json: Json = False,
) -> int:
    """On a GPU that was never used with this: check in order what has to hold there, and measure.

    Under ten minutes. A step that can't be judged says why. Exit code 1 if one failed.
    """
    names = [step.name for step in STEPS]
    for name in only or ():
        if name not in names:
            raise ValueError(f"--only is {name!r}; the steps are {', '.join(names)}.")
    if not seconds > 0:
        raise ValueError(f"--seconds is {seconds:g}, but it must be more than 0.")
    if not load("torch.cuda", "is_available", "torch", "first-run")():
        raise ValueError("torch sees no GPU, which first-run is about.")
    founds: list[StepOutcome] = []
    console = Console(highlight=False, emoji=False)
    with Console(stderr=True).status("") as status:

        def begins(step: FirstRunStep) -> None:
            least = limit(step, seconds)
            status.update(f"{step.name}: {step.asks} (at most {least:.0f} s)")

        for found in steps(out, seconds, only or (), here, begins):
            founds.append(found)
            if not json:
                why = "" if found.verdict == OK else f" {found.verdict}:"
                line = f"{found.step}:{why} {escape(found.said)} ({found.seconds:.0f} s)"
                say(console, f"{STYLES[found.verdict]} {line}", 2)
    if json:
        print_json(report(founds))
    else:
        counts = Counter(found.verdict for found in founds)
        told = ", ".join(f"{counts[name]} {name}" for name in STYLES if counts[name])
        say(console, f"Of {len(founds)} steps: {told}. All of it is in {escape(str(out))}.")
    verdicts = {found.verdict for found in founds}
    return 1 if FAILED in verdicts or OK not in verdicts else 0  # 1 too if none could be judged


def steps(
    out: Path,
    seconds: float,
    only: Sequence[str],
    here: bool,
    begins: Callable[[FirstRunStep], None],
) -> Iterator[StepOutcome]:
    """What one step after the other comes to; the report in ``out`` is of all so far.

    Where the machine does not compute, nothing else is looked at.
    """
    founds: list[StepOutcome] = []
    for step in STEPS:
        if only and step.name not in only:
            continue
        begins(step)
        if any((found.step, found.verdict) == ("machine", FAILED) for found in founds):
            found = StepOutcome(step.name, NOT_RUN, "the machine does not compute", 0.0)
        else:
            found = (take if here else take_apart)(step, out, seconds)
        founds.append(found)
        text = json_text.dumps(report(founds), indent=1)
        write_whole(out / "report.json", text, f"--out {out}", with_folders=True)
        yield found


def report(founds: Sequence[StepOutcome]) -> dict[str, object]:
    """What ``--json`` prints and the folder keeps."""
    steps = [asdict(found) for found in founds]
    return {"steps": steps, "machine": machine(), "versions": versions()}


def take_apart(step: FirstRunStep, out: Path, seconds: float) -> StepOutcome:
    """A step in a process of its own; what that says on stderr is left in the folder."""
    began, most = time.monotonic(), limit(step, seconds)
    command = [sys.executable, "-m", __name__, step.name, str(out), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most + 2 * START)
        code, printed, log = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:  # not even its traceback came
        code, printed, log = 1, "", HUNG
    path = out / f"{step.name}.log"
    if log.strip():
        write_whole(path, log, f"--out {out}", with_folders=True)
    if not code and printed.strip():
        return StepOutcome(**json_text.loads(printed.splitlines()[-1]))
    said = f"its process ended with {code}: {(log.strip() or 'no word').splitlines()[-1]}"
    if HUNG in log:
        said = f"it took more than {most:.0f} seconds; where it was by then is in {path}"
    return StepOutcome(step.name, FAILED, said, round(time.monotonic() - began, 1))


def in_this_process(name: str, out: str, seconds: str) -> None:
    """One step; its verdict is the last line that is printed."""
    step = next(step for step in STEPS if step.name == name)
    faulthandler.dump_traceback_later(limit(step, float(seconds)) + START, exit=True)
    found = take(step, Path(out), float(seconds))
    faulthandler.cancel_dump_traceback_later()
    print_json(asdict(found))


if __name__ == "__main__":
    in_this_process(*sys.argv[1:])
