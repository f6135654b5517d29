"""``minisched film``: runs as a GIF or an MP4 that plays them, for slides."""

from __future__ import annotations

from pathlib import Path

import typer

from ..export.chromium import CODECS, fitting, write_film
from ..export.motion import playing
from ..export.native import read_recorded
from ..export.recipes import run_of
from ..export.runs import compare
from ..export.scene_svg import to_svg
from ..loops.design import LOOPS, find_loop
from ..trace import Trace
from .layout import work_progress
from .options import setting


def film(
    sources: list[str] = typer.Argument(
        help="Loops, or recorded runs, one above the other: serial out/mine.json."
    ),
    out: Path = setting(Path("film.gif"), "A .gif or an .mp4."),
    steps: int = setting(3, "Settled steps to show; 0: the whole run.", least=0, most=1000),
    seconds: float = setting(10.0, "How long it plays.", least=0.1, most=120),
    fps: int = setting(20, "Frames a second.", least=1, most=50),
    width: int = setting(1280, "Pixels.", least=100, most=3840),
    dark: bool = setting(False, "On dark paper."),
) -> None:
    """Film runs: a cursor goes over their lanes, all on one time axis.

    It is the picture that compare draws. A loop runs the pictures' usual five
    requests; any other run is one that run or compare recorded.

    Needs the extra film, Chromium and ffmpeg.
    """
    if out.suffix not in CODECS:
        raise ValueError(f"--out is {str(out)!r}, but it must end in .gif or .mp4.")
    scene = compare([run_named(source) for source in sources], steps)
    svg = to_svg(scene)
    out.parent.mkdir(parents=True, exist_ok=True)
    frame, count = fitting(svg, width, dark), max(2, round(seconds * fps))
    with work_progress(count + 1) as work:
        write_film(playing(svg), out, frame, count, fps, lambda: work.advance("frames"))
    print(f"{scene.title}: {out}, {frame.width} × {frame.height} pixels, {count} frames")


def run_named(source: str) -> Trace:
    """A loop's run of the common workload, or the recorded run in a file.

    Raises:
        ValueError: it is neither.
    """
    if source.partition(":")[0] in LOOPS:
        find_loop(source)
        return run_of(source)
    if not source.endswith(".json"):
        raise ValueError(f"{source!r} is no loop ({', '.join(LOOPS)}) and no recorded run (.json).")
    return read_recorded(Path(source)).trace
