"""``minisched check --workloads``: draws, runs, and says what held."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..checks.draw.designs import read_design
from ..checks.many import num_cores, try_workloads
from ..checks.tally import Tally
from ..devices.registry import open_device
from ..loops.design import LOOPS
from .check_failure import report_failures, save_failure
from .check_tables import print_tally, refusals_sentence
from .layout import say
from .progress import named_progress

IN_VIRTUAL_TIME, IN_REAL_TIME = 150, 20  # workloads


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for; None is whatever suits the device."""

    workloads: int | None = None
    seed: int = 0
    loops: tuple[str, ...] = ()
    device: str = "sim"
    jobs: int | None = None
    out: Path | None = None
    axes: bool = False

    def options_given(self) -> list[str]:
        """The options that are not at their defaults."""
        usual = Wanted()
        names = {"loops": "--loop"}
        return [
            names.get(name, f"--{name}")
            for name, value in vars(self).items()
            if value != getattr(usual, name)
        ]


def check_workloads(wanted: Wanted, as_json_only: bool) -> int:
    """Draw workloads, hold every law against every case, and report; the exit code.

    Raises:
        ValueError: an option is outside its limits; nothing has run then.
    """
    clock = check_wanted(wanted)
    count = wanted.workloads or (IN_VIRTUAL_TIME if clock == "virtual" else IN_REAL_TIME)
    jobs = wanted.jobs or (num_cores() if clock == "virtual" else 1)
    began = time.monotonic()
    tally = run_cases(wanted, count, jobs)
    seconds = time.monotonic() - began
    files = save_failure(tally, wanted.out) if wanted.out and tally.failures else []
    if as_json_only:
        print(json.dumps({**tally.as_json(), "files": files}))
    else:
        console = Console(highlight=False, emoji=False)
        print_tally(console, tally, seconds, jobs, wanted.axes)
        if not wanted.loops:
            say(console, refusals_sentence(tally))
        report_failures(console, tally, files)
    return 1 if tally.failures else 0


def run_cases(wanted: Wanted, count: int, jobs: int) -> Tally:
    """All the cases, with a bar on stderr meanwhile."""
    seeds, cases = range(wanted.seed, wanted.seed + count), []
    with named_progress(count) as hear:
        for tried in try_workloads(seeds, wanted.loops, wanted.device, jobs):
            cases += tried
            hear(f"workloads, {len(cases)} cases")
    return Tally(wanted.seed, count, wanted.device, cases, wanted.loops)


def check_wanted(wanted: Wanted) -> str:
    """The device's clock, ``virtual`` or ``wall``.

    Raises:
        ValueError: an option is outside its limits.
    """
    for name, least in (("workloads", 1), ("seed", 0), ("jobs", 1)):
        value = getattr(wanted, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} is {value}, but it must be at least {least}.")
    if wanted.out is not None and wanted.out.exists() and not wanted.out.is_dir():
        raise ValueError(f"--out {wanted.out} is a file, but it must be a folder.")
    for name in wanted.loops:
        LOOPS[read_design(name).loop].check_device(name, wanted.device)
    device = open_device(wanted.device)
    device.close()
    return device.clock
