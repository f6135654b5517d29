"""``minisched replay``: a recorded workload in virtual time, as its clients would have seen it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..core import Output
from ..devices.cost import DEFAULT_PROFILE, Profile, find_profile
from ..replay.defaults import check_size, default_settings
from ..replay.flat_metrics import FlatMetrics
from ..replay.length import LengthModel
from ..replay.play import Played, play
from ..replay.report import as_json
from ..replay.trace_file import Survey, TraceFile
from ..scheduler import SchedulerConfig
from ..trace.files import write_whole
from . import advice
from .advice import advise
from .layout import Fitted
from .loop_choice import choose_loops
from .options import ReportOptions
from .progress import work_progress
from .replay_report import print_report
from .replay_trace import tally_into
from .scheduler_options import SchedulerOptions

BAD_INPUT = 2  # exit code
MOST_ERRORS = 5  # requests that are named


def run_replay(
    file: Path,
    scheduler: SchedulerOptions,
    wanted: ReportOptions,
    loop: str | None = None,
    profile: str = DEFAULT_PROFILE,
    requests: int | None = None,
    out: Path | None = None,
    recorded: Path | None = None,
) -> int:
    """Replay a trace and report; returns the exit code, 2 if a request was refused.

    Raises:
        ValueError: an option or the file is bad; nothing has run then.
    """
    machine = find_profile(profile)
    asked = [] if loop is None else [loop]
    [name] = choose_loops(asked, "sim", scheduler.disable_overlap_schedule)
    trace = TraceFile(file, requests)
    check_target("--out", out, file)
    check_target("--trace", recorded, file)
    with work_progress() as work:
        survey = trace.survey(work.reading(file))
    config = make_config(scheduler, survey, machine)
    model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
    errors: list[str] = []
    with (
        request_progress(survey.requests, errors) as on_output,
        wanted.logging(),
        tally_into(recorded, name) as tally,
    ):
        arrivals, kept = trace.requests(), FlatMetrics()
        run = play(name, model, arrivals, config, machine.cost, on_output, tally, kept)
    say(run, survey, machine, wanted, out)
    return complain_of(errors)


def make_config(scheduler: SchedulerOptions, survey: Survey, machine: Profile) -> SchedulerConfig:
    """The options over the defaults of this trace on this machine.

    Raises:
        ValueError: they do not go together, or ask for more than the simulation can hold.
    """
    page_size = scheduler.page_size or survey.format.page_size
    config = scheduler.make_config(**default_settings(survey, machine, page_size))
    check_size(config)
    return config


def say(
    run: Played, survey: Survey, machine: Profile, wanted: ReportOptions, out: Path | None
) -> None:
    """The report, for programs or for people, and into a file.

    Raises:
        ValueError: the file can't be written.
    """
    result: dict[str, Any] = as_json(run, survey.requests, machine.name)
    advised = advise(run.metrics, run.config) if wanted.advise else []
    if wanted.advise:
        result["advice"] = [vars(item) for item in advised]
    if wanted.json:
        print(json.dumps(result))
    else:
        console = Console(highlight=False, emoji=False)
        print_report(console, result, survey.format.name)
        if wanted.advise:
            console.print(Fitted(advice.table(run.loop, advised)))
    if out is not None:
        write_whole(out, json.dumps(result, indent=2) + "\n", f"--out {out}")


@contextmanager
def request_progress(total: int, errors: list[str]) -> Iterator[Callable[[Output], None]]:
    """A bar on stderr, gone when done; ``errors`` gets a sentence for each refused request."""
    columns = TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    nobody_looks = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=nobody_looks) as progress:
        bar = progress.add_task("replay", total=total)

        def on_output(output: Output) -> None:
            """Count the ends, and keep the errors."""
            if output.finish_reason is None:
                return
            progress.advance(bar)
            if output.error:
                errors.append(f"request {output.rid}: {output.error}")

        yield on_output


def complain_of(errors: Sequence[str]) -> int:
    """Say on stderr which requests were refused; what that means for the exit code."""
    for sentence in errors[:MOST_ERRORS]:
        print(sentence, file=sys.stderr)
    if len(errors) > MOST_ERRORS:
        print(f"{len(errors) - MOST_ERRORS} requests more were refused.", file=sys.stderr)
    return BAD_INPUT if errors else 0


def check_target(option: str, out: Path | None, file: Path) -> None:
    """Find out before a long run whether its result can be written.

    Raises:
        ValueError: it can't.
    """
    if out is None:
        return
    if out.is_dir():
        raise ValueError(f"{option} {out} can't be written: Is a directory.")
    if not out.parent.is_dir():
        raise ValueError(f"{option} {out} can't be written: there is no folder {out.parent}.")
    if out.resolve() == file.resolve():
        raise ValueError(f"{option} {out} is the trace itself, and would overwrite it.")
