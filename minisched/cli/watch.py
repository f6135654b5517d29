"""``minisched watch``: steps through a run in the terminal, or prints moments of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..export.recipes.recipe import a_bit_of_everything
from ..export.units import MILLISECOND, ms
from ..export.watch_frame import Watched, watched
from ..trace import Trace
from .layout import columns_of, print_drawing
from .trace_file import read_trace
from .watch_keys import has_keys
from .watch_screen import prompt, watch_keys

DEFAULT_LOOP = "overlap"


def run_watch(source: Path | None, loop: str | None, at: float, delay: float, frames: int) -> int:
    """Show a run from ``at`` milliseconds on; ``delay`` above 0 plays it. Returns the exit code.

    Raises:
        ValueError: an option is outside its limits, or there is no run to watch.
    """
    check(source, loop, delay, frames)
    run = open_run(source, loop)
    last = run.moments.times[-1]
    if not 0 <= at * MILLISECOND <= last:
        limit = f"0 and {ms(last)} ms, the run's end"
        raise ValueError(f"--at is {at:g}, but it must be between {limit}.")
    asked = round(at * MILLISECOND)
    time = run.moments.at(asked)
    run = replace(run, asked=(time, asked))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        console = Console()
        wide = columns_of(console)
        shown = [
            run.frame(moment, wide, state=wide).plain(wide)
            for moment in run.moments.spread(time, frames)
        ]
        print_drawing("\n".join(shown).splitlines(), console)
    elif has_keys():
        watch_keys(run, time, delay)
    else:
        prompt(run, time)
    return 0


def check(source: Path | None, loop: str | None, delay: float, frames: int) -> None:
    """Whether the options can be meant.

    Raises:
        ValueError: one can't.
    """
    if source and loop:
        raise ValueError(f"--loop is {loop!r}, but {source} is a run that has its loop already.")
    if not 0 <= delay <= 60:
        raise ValueError(f"--delay is {delay:g}, but it must be between 0 and 60 seconds.")
    if frames < 1:
        raise ValueError(f"--frames is {frames}, but it must be at least 1.")


def open_run(source: Path | None, loop: str | None) -> Watched:
    """The recorded run, or a small one on sim.

    Raises:
        ValueError: the file is no trace, nothing ran in it, or there is no such loop.
    """
    trace: Trace = read_trace(source) if source else a_bit_of_everything(loop or DEFAULT_LOOP).run()
    try:
        return watched(trace)
    except ValueError as error:
        raise ValueError(f"{source or trace.loop} can't be watched: {error}") from error
