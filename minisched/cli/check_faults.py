"""``minisched check --faults``: what can go wrong, on every loop, and what held all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..checks.faults.count import Count, Counted
from ..checks.faults.matrix import places, try_all
from ..checks.many import num_cores
from .check_failure import shortened
from .check_workloads import Wanted, check_wanted
from .layout import Fitted, say, say_command
from .progress import named_progress

TIMES = 1  # each fault on each loop, unless --workloads says otherwise
MOST_FAILURES = 5  # failures that are told
FAULTS_A_TABLE = 6  # faults side by side in one table


def run_check_faults(
    traces: Sequence[Path], wanted: Wanted, draw: Path | None, as_json_only: bool, step: str = ""
) -> int:
    """The exit code: 0 if every fault was survived, 1 if not.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    if traces:
        raise ValueError(f"--faults draws workloads, but {traces[0]} is a recorded run.")
    for name, value in (("draw", draw), ("out", wanted.out)):
        if value is not None:
            raise ValueError(f"--{name} is {value}, but --faults draws no pictures.")
    if step:
        raise ValueError(f"--step is {step}, but --faults reads no trace.")
    return check_faults(wanted, as_json_only)


def check_faults(wanted: Wanted, as_json_only: bool) -> int:
    """Put every fault into runs of every loop, and report; the exit code.

    Raises:
        ValueError: an option is outside its limits; nothing has run then.
    """
    clock = check_wanted(wanted)
    jobs = wanted.jobs or (num_cores() if clock == "virtual" else 1)
    began = time.monotonic()
    counted = run_faults(wanted, jobs)
    seconds = time.monotonic() - began
    if as_json_only:
        print(json.dumps(counted.as_json()))
    else:
        report_faults(Console(highlight=False, emoji=False), counted, seconds)
    total = counted.of()
    return 0 if total.survived == total.tried and not counted.failures else 1


def run_faults(wanted: Wanted, jobs: int) -> Counted:
    """All the trials, with a bar on stderr meanwhile."""
    todo = places(wanted.device, wanted.seed, wanted.workloads or TIMES, wanted.loops)
    cells = []
    with named_progress(len(todo)) as hear:
        for cell in try_all(todo, jobs):
            cells.append(cell)
            hear(f"{cell.place.fault} on {cell.loop}")
    return Counted(wanted.device, wanted.seed, cells)


def report_faults(console: Console, counted: Counted, seconds: float) -> None:
    """The counts by fault, then by fault and loop, then what did not hold."""
    total = counted.of()
    console.print(
        f"{len(counted.faults)} kinds of faults on {len(counted.loops)} loops, on {counted.device} "
        f"with hash, from seed {counted.seed}: {total.tried} of {total.places} hit somebody "
        f"({total.hit_nobody} hit nobody), in {seconds:.1f} s"
    )
    console.print(Fitted(by_fault(counted)))
    for at in range(0, len(counted.faults), FAULTS_A_TABLE):
        console.print(Fitted(faults_by_loop(counted, counted.faults[at : at + FAULTS_A_TABLE])))
    for cell in counted.failures[:MOST_FAILURES]:
        finding = cell.trial.findings[0]
        said = f"{finding.law}: {escape(shortened(finding.sentence))}"
        say(console, f"[red]✗[/] {cell.place.fault} on {cell.loop}: {said}", 2)
        where = f"--loop {cell.place.loop} --device {counted.device} --seed {cell.place.seed}"
        say_command(console, f"minisched check --faults {where}")
    say(console, verdict_on_faults(total), 2)


def verdict_on_faults(total: Count) -> str:
    """One sentence on all of it."""
    if lost := total.tried - total.survived:
        return f"[red]✗[/] {lost} of {total.tried} faults were not survived."
    if not total.tried:
        return (
            f"? Nothing to judge: of {total.places} trials none hit a request that the workload "
            "does not give up anyway; try another --seed, or more --workloads."
        )
    return (
        f"[green]✓[/] all {total.tried} faults were survived: {total.ended} requests ended "
        f"early, each with a reason, and {total.whole} got the tokens that they would get alone."
    )


def by_fault(counted: Counted) -> Table:
    """Each fault: how often it was tried, survived, and whom it cost something."""
    table = Table("", "fault", "tried", "survived", "ended early", "got all tokens")
    for column in table.columns[2:]:
        column.justify = "right"
    for fault in counted.faults:
        count = counted.of(fault)
        numbers = (count.tried, count.survived, count.ended, count.whole)
        table.add_row(sign_of(count), fault, *map(str, numbers))
    return table


def faults_by_loop(counted: Counted, faults: list[str]) -> Table:
    """Some faults side by side, on every loop: survived of tried; empty where it can't happen."""
    table = Table("loop", *faults, box=SIMPLE_HEAD, padding=(0, 0))
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "center"
    for loop in counted.loops:
        table.add_row(loop, *(cell_of(counted.of(fault, loop)) for fault in faults))
    return table


def cell_of(count: Count) -> str:
    """``3`` where all three were survived, ``2/3`` where one was not, ``?`` where none hit."""
    if not count.places:
        return ""
    if not count.tried:
        return "?"
    text = str(count.tried) if count.survived == count.tried else f"{count.survived}/{count.tried}"
    return text if count.survived == count.tried else f"[red]{text}[/]"


def sign_of(count: Count) -> str:
    """Whether all were survived, at a glance and without colour."""
    if not count.tried:
        return "?"
    return "[green]✓[/]" if count.survived == count.tried else "[red]✗[/]"
