"""``minisched map``: the settings where overlap wins, ties and loses, by design, for your costs."""

from __future__ import annotations

from pathlib import Path

from ..export.scene_puml import to_puml
from ..export.scene_svg import to_svg
from ..export.scene_text import to_text
from ..own_loops import in_each_process
from ..sweep.break_even import DESIGNS, measure_break_even
from ..sweep.workers import Workers, num_cores
from ..trace.files import write_whole
from .layout import JSON, columns, print_json, work_progress
from .options import JOBS, choose_loops, in_words_of_options, setting

WRITERS = {".svg": to_svg, ".puml": to_puml, ".txt": to_text}


def map(
    host_ms: float = setting(6.0, "The host's work in a step."),
    device_ms: float = setting(10.0, "The device's work in a step."),
    copy_ms: float = setting(0.5, "The copy of the tokens to the host."),
    loops: str = setting(",".join(DESIGNS), "Designs, or FILE.py:NAME, with commas between."),
    stop: bool = setting(
        False, "Answers end at a stop token, at a length that is not known before."
    ),
    out: Path | None = setting(None, "A picture: .svg, .puml or .txt; without it, text on stdout."),
    jobs: int | None = JOBS,
    json: bool = JSON,
) -> int:
    """Run designs over host/device ratios and lengths of answers; draw where they beat serial.

    One column is yours: the ratio of --host-ms and --device-ms, which calibrate
    measures. A line is the break-even, and each design has the reason where it
    loses.

    It runs about 280 simulations, in 20 s of a core.
    """
    names = choose_loops(loops.split(","), "sim", only_serial=False)
    if out is not None and out.suffix not in WRITERS:
        raise ValueError(f"--out is {str(out)!r}, but it must end in {', '.join(WRITERS)}.")
    prepare = in_each_process(loops.split(","))
    workers = Workers(num_cores() if jobs is None else jobs, prepare=prepare)
    times = in_words_of_options("host_ms", "device_ms", "copy_ms")
    with work_progress(35 * (len(names) + 1)) as work, times:
        found = measure_break_even(
            names, host_ms, device_ms, copy_ms, stop, workers=workers, hear=work.advance
        )
    if out is not None:
        write_whole(out, WRITERS[out.suffix](found.scene), with_folders=True)
    if json:
        print_json(found.as_json())
    else:
        print(f"{found.title}: {out}" if out else to_text(found.scene, columns()))
    return 0
