"""``minisched check``: checks recorded runs, or random workloads if no run is named."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import typer

from ..checking import (
    LAW_HEADS,
    WORKLOADS,
    Check,
    check_runs,
    check_workloads,
    compare_files,
    law_rows,
)
from ..checks.overlap import is_profiled
from ..checks.reading import read_recorded
from ..checks.requirements import Requirement, requirement
from ..devices.registry import open_device
from ..export.profiled_steps import profiled_steps
from ..export.scene_svg import to_svg
from ..export.scene_text import to_text
from ..export.views import draw as draw_view
from ..sweep.workers import Workers, num_cores
from ..trace.files import write_whole
from .exit import complain
from .layout import JSON, print_json, say, say_command, say_table, work_progress
from .options import ADDRESS, BACKEND, UNPACKED, setting


def check(
    traces: list[Path] | None = typer.Argument(
        None, help="Recorded runs; of several, the first one is the baseline."
    ),
    workloads: int | None = setting(
        None, "The number of random workloads; 150, and 20 in real time.", least=1
    ),
    seed: int = setting(0, "The seed of the first workload; each later one adds 1.", least=0),
    loop: list[str] = setting(list, "Only on this loop: LOOP:RELAY:OPTION=VALUE, or FILE.py:NAME."),
    device: str = setting("sim", "sim, thread, cuda or mlx, with the hash model."),
    jobs: int | None = setting(None, "Processes; one for each core, and 1 in real time.", least=1),
    backend: str = BACKEND,
    address: str = ADDRESS,
    coverage: bool = setting(False, "Count the situations that random workloads have reached."),
    out: Path | None = setting(None, "A folder for the first failure's trace and its picture."),
    draw: Path | None = setting(
        None, "A picture of a recorded run: its first violation, or idle steps; .svg or .txt."
    ),
    html: Path | None = setting(None, "A page with the answers about recorded runs and a picture."),
    step: str = setting("", "The ranges of a profiler's trace that are steps; * is any text."),
    device_lane: str = setting("", "The lane, thread or range of recorded runs that is a device."),
    unpacked_mib: int = UNPACKED,
    require: list[str] = setting(
        list, "Requirements for recorded runs: 'busy>=95%', 'no blocking aten::item', 'no races'."
    ),
    compare: bool = setting(
        False, "Compare two files of engines' outputs: tokens, or recorded runs."
    ),
    detail: bool = setting(False, "Every sentence about recorded runs, not only one screen."),
    json: bool = JSON,
) -> int:
    """Check recorded runs (identical, leaks, races, overlaps, busy), or draw workloads.

    Without a trace it draws random workloads. Each runs on up to 12 designs (a
    loop with a relay and options); together they reach every loop. Exit code 1:
    a law is violated, or a --require is not met. Exit code 2: bad input, or
    runs of two workloads.

    For random workloads, --json has counts (cases, identical, races, leaks) and
    failures, each with seed and loop. An aborted request is compared up to its
    end. A refused one is identical if it got no token and had to be refused.
    """
    drawing = {
        "--workloads": workloads is not None, "--seed": seed, "--loop": loop,
        "--device": device != "sim", "--jobs": jobs is not None, "--out": out,
        "--coverage": coverage,
        "--backend": backend != "processes", "--address": address,
    }  # fmt: skip
    if traces and (name := next((name for name, is_given in drawing.items() if is_given), "")):
        is_one = f"but {traces[0]} is a recorded run: one or the other"
        raise ValueError(f"{name} draws workloads, {is_one}.")
    needed = [requirement(text) for text in require]
    if not traces and (step or draw or html or device_lane or require or detail):
        name = "--draw" if draw else "--html" if html else "--step" if step else "--device-lane"
        name = "--require" if require else "--detail" if detail else name
        use = "; use --out FOLDER" if draw else ""
        raise ValueError(f"{name} is about recorded runs, but none is named{use}.")
    files: list[str] = []
    if compare:
        if draw or html or step or device_lane or require:
            raise ValueError("--compare takes two files, and no --draw, --step or --require.")
        found = compare_files(traces or [], unpacked_mib)
    elif traces:
        found = check_traces(traces, draw, step, device_lane, unpacked_mib, needed)
    else:
        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file, but it must be a folder.")
        opened = open_device(device)
        opened.close()
        count = WORKLOADS[opened.clock] if workloads is None else workloads
        cores = num_cores() if opened.clock == "virtual" else 1
        workers = Workers(cores if jobs is None else jobs, backend, address)
        with work_progress(count) as work:
            found = check_workloads(
                loop, count, seed, device, workers,
                hear=lambda cases: work.advance(f"workloads, {cases} cases"), coverage=coverage,
            )  # fmt: skip
        files = found.save(out) if out else []
    if json:
        print_json({**found.as_json(), **({"files": files} if found.tally else {})})
    else:
        show(found, files, detail)
    if draw is not None:
        draw_first(draw, found)
    if html is not None:
        write_whole(html, found.to_html(), f"--html {html}")
    return 1 if found.holds is False else 0


def show(found: Check, files: Sequence[str], is_whole: bool) -> None:
    """Print the result of a check; for random workloads the table of laws first."""
    if found.tally:
        say_table(LAW_HEADS, law_rows(found.tally))
        if found.tally.coverage:
            counts = found.tally.situations.items()
            say_table(("situation", ">cases"), [(name, str(count)) for name, count in counts])
    lines = found.detail.splitlines() if is_whole else found.lines
    for line in (*lines, *files):
        if line.lstrip().startswith("minisched check"):
            say_command(line.strip())
        else:
            say(line)
    if pair := [file for file in files if file.endswith(".json")]:
        say_command(f"minisched check {' '.join(pair)}")


def check_traces(
    paths: Sequence[Path], draw: Path | None, step: str, device_lane: str, unpacked_mib: int,
    needed: Sequence[Requirement] = (),
) -> Check:  # fmt: skip
    """Answer the questions about each run; the other parameters are options of ``check``.

    Raises:
        ValueError: a file can't be read, or no picture has such a name.
    """
    if draw is not None and draw.suffix not in (".svg", ".txt"):
        raise ValueError(f"--draw is {draw}, but its name must end in .svg or .txt.")
    with work_progress() as work:
        runs = [
            read_recorded(path, step, work.reading(path), device_lane, unpacked_mib)
            for path in paths
        ]
        gc.freeze()  # otherwise the collector searches a million events for cycles repeatedly
        try:
            work.at("looking at what ran")
            return check_runs(runs, needed)
        finally:
            gc.unfreeze()


def draw_first(target: Path, found: Check) -> None:
    """Draw the first violation; without one, the steps of a run that does not overlap.

    Raises:
        ValueError: the picture can't be written.
    """
    scene = found.first_violation
    idle = [
        verdict.run.trace
        for verdict in found.verdicts
        for answer in verdict.answers
        if answer.question == "overlaps" and answer.word in ("no", "partly")
    ]
    if scene is None and idle and is_profiled(idle[0]):
        scene = profiled_steps(idle[0])
    if scene is not None:
        drawn = to_svg(scene) if target.suffix == ".svg" else to_text(scene)
    elif idle:
        form = "svg" if target.suffix == ".svg" else "text"
        drawn = draw_view("overlap", idle[0], form).rstrip("\n") + "\n"
    else:
        complain(f"there is no violation or idle time to draw, so {target} is not written.", 0)
        return
    write_whole(target, drawn, f"--draw {target}")
