"""``minisched map``: when overlap wins, ties and loses, design by design, for your costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..export.scene_puml import to_puml
from ..export.scene_svg import to_svg
from ..export.scene_text import to_text
from ..spread import Workers, num_cores
from ..sweep.break_even import DESIGNS, measure_break_even
from ..trace.files import write_whole
from .layout import Json, columns, print_json, work_progress
from .options import choose_loops

WRITERS = {".svg": to_svg, ".puml": to_puml, ".txt": to_text}


def map(
    host: Annotated[float, typer.Option("--host-ms", help="Of your host's work a step.")] = 6.0,
    device: Annotated[float, typer.Option("--device-ms", help="Of your device's.")] = 10.0,
    copy: Annotated[float, typer.Option("--copy-ms", help="Of bringing the tokens back.")] = 0.5,
    loops: Annotated[str, typer.Option(help="Designs, with commas between them.")] = ",".join(
        DESIGNS
    ),
    stop: Annotated[
        bool, typer.Option("--stop", help="Answers end at a stop token, which nobody foresees.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="A picture: .svg, .puml or .txt; else text on stdout.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; one for each core.")] = None,
    json: Json = False,
) -> int:
    """Run designs over host/device ratios and lengths of answers; draw where they beat serial.

    One column is yours: the ratio of --host-ms and --device-ms, which calibrate
    measures. A line is the break-even, and each design says why it loses where
    it does.
    """
    names = choose_loops(loops.split(","), "sim", only_serial=False)
    if out is not None and out.suffix not in WRITERS:
        raise ValueError(f"--out is {str(out)!r}, but it must end in {', '.join(WRITERS)}.")
    workers = Workers(num_cores() if jobs is None else jobs)
    with work_progress(35 * (len(names) + 1)) as work:
        found = measure_break_even(
            names, host, device, copy, stop, workers=workers, hear=work.advance
        )
    if out is not None:
        write_whole(out, WRITERS[out.suffix](found.scene), with_folders=True)
    if json:
        print_json(found.as_json())
    else:
        print(f"{found.title}: {out}" if out else to_text(found.scene, columns()))
    return 0
