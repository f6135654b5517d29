"""``minisched compare``: serial against other loops, verdict and pictures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..comparison import COLUMNS, Comparison, cells, compare_loops, sentences
from ..core import Output
from ..devices.registry import open_device
from ..export.by_step import by_step
from ..export.chinese import LANGUAGES, translated
from ..export.chrome import to_chrome
from ..export.explore import to_explore
from ..export.html import to_html
from ..export.pd_or_mixed import LOOPS as PD_OR_MIXED
from ..export.pd_or_mixed import find_runs, rows
from ..export.poster import poster
from ..export.runs import compare as compare_runs
from ..export.runs import timing
from ..export.scene_puml import to_puml
from ..export.scene_svg import to_svg
from ..export.svg_style import DESK, SLIDE
from ..export.views import NothingToShow
from ..loops.design import find_loop, wanted_features
from ..loops.run import RunStopped, fresh
from ..models.promise import kind_of
from ..recipes import RECIPES
from ..trace import Trace
from ..trace.files import write_whole
from ..trace.native import to_json
from .exit import BAD_INPUT, complain
from .layout import JSON, print_json, say, say_table, work_progress
from .options import (
    LOG,
    SchedulerOptions,
    WorkloadOptions,
    choose_loops,
    log_if,
    setting,
)
from .run import drafts_as_json, logprobs_json, print_errors

DIFFERENT = 1  # exit code


def compare(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    json: bool = JSON,
    log: bool = LOG,
    loops: str | None = setting(
        None, "Loops, or FILE.py:NAME, separated by commas; serial always runs too."
    ),
    out: Path = setting(Path("out"), "Folder for pictures and traces."),
    detail: bool = setting(False, "Draw the phases of the host and the ops of the device."),
    lang: str = setting("en", "Language of the picture: " + " or ".join(LANGUAGES) + "."),
) -> int:
    """Run a workload serially and overlapped: verdict, reason and pictures.

    By default 16 requests arrive together, with room for all of them, in chunks
    of 128. For pd and mixed alone, long prompts arrive while other requests
    decode.

    What most people need:

    \b
    minisched compare --loops all             every published design
    minisched compare --loops vllm_async      another one beside serial
    minisched compare --requests 4            fewer requests
    minisched compare --host-work 20          a slower host: 20 ms more a step
    minisched compare --device thread --model smollm2
    """
    if lang not in LANGUAGES:
        raise ValueError(f"--lang is {lang!r}, but it must be one of {', '.join(LANGUAGES)}.")
    if detail and lang != "en":
        raise ValueError(f"--lang {lang} is for the picture by step; leave out --detail.")
    asked = [] if loops is None else [name.strip() for name in loops.split(",")]
    names = choose_loops(asked, workload.device, scheduler.serial_only)
    open_device(workload.device).close()
    model = workload.open_model()
    requests = workload.make_requests(model)
    if not workload.says_which and {*names} - {"serial"} == {*PD_OR_MIXED}:
        requests = [fresh(request) for request in RECIPES["pd"].requests]
    config = scheduler.config_for(requests, model.context_len)
    if "all" in asked:  # the loops that take the workload
        refused = {name: find_loop(name).refusal(name, wanted_features(config, requests))
                   for name in names}  # fmt: skip
        for sentence in filter(None, refused.values()):
            print(f"left out: {sentence}", file=sys.stderr)
        names = [name for name in names if not refused[name]]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out} can't be used as a folder: {error.strerror}.") from error
    tokens = sum(request.params.max_new_tokens for request in requests)
    with work_progress() as work, log_if(log):
        on = [""]

        def hear(loop: str, output: Output) -> None:
            """Show the progress of a loop's tokens."""
            if on[0] != loop:
                work.at(f"{loop}: {tokens} tokens", tokens)
                on[0] = loop
            if output.token is not None:
                work.advance()

        try:
            found = compare_loops(
                names, workload.device, model, requests, config, workload.cost(), hear
            )
        except RunStopped as stopped:
            return report_stop(stopped, out, json)
    files = write(pictures(found, detail, lang), out)
    if json:
        print_json(comparison_json(found, files))
    else:
        say_table(COLUMNS, [cells(found, one) for one in found.reports])
        for sentence in sentences(found):
            say(sentence)
        if pair := find_runs(found.runs):  # the guides' comparison
            say_table(("", "PD separation", "mixed chunks"), rows(*pair))
        say(f"Pictures and traces are in {out}; open {out / 'compare.html'} first.")
    print_errors(found.errors)
    if found.violations:
        return DIFFERENT
    return BAD_INPUT if found.errors else 0


def report_stop(stopped: RunStopped, out: Path, as_json_only: bool) -> int:
    """Write the traces up to the error, and print one sentence with the next command."""
    files = write({f"{stem(trace)}.json": to_json(trace) for trace in stopped.traces}, out)
    if as_json_only:
        print_json({"identical": False, "error": str(stopped), "files": files})
    why, line = str(stopped).rstrip(".: "), f"minisched check {' '.join(files)}"
    return complain(f"{why}; its trace is {files[-1]}, see: {line}", DIFFERENT)


# -- A comparison's pictures and traces, in a folder, and its JSON ---------------------------------

FEW = 5  # runs that are drawn with all their lanes; of more runs it is a poster


def pictures(found: Comparison, detail: bool, lang: str) -> dict[str, str]:
    """Return the page, the picture, and for each loop its diagrams and its trace, by file.

    The picture has a few settled steps of each run, by step or in ``detail`` by phase. Of more
    than ``FEW`` runs it is a poster. ``explore.html`` begins with the costs of the serial run.
    ``LOOP.trace.json`` is for Perfetto, ``LOOP.json`` for ``minisched view``.
    """
    traces = [run.trace for run in found.runs]
    draw = poster if len(traces) > FEW else compare_runs if detail else by_step
    scene = translated(draw(traces)) if lang == "zh" else draw(traces)
    files = {
        "compare.html": to_html(traces),
        "compare.svg": to_svg(scene, SLIDE if draw is by_step else DESK),
    }
    with suppress(NothingToShow):  # no decode step ran
        files["explore.html"] = to_explore(traces, lang)
    for report, trace in zip(found.reports, traces, strict=True):
        name = stem(trace)
        if report.steps:  # nothing to draw where every request was refused
            files[f"{name}_timing.puml"] = to_puml(timing(trace))
        files[f"{name}.trace.json"] = to_chrome(trace)
        files[f"{name}.json"] = to_json(trace)
    return files


def stem(trace: Trace) -> str:
    """Return the base name of a run's files, without colons, which some systems refuse."""
    return trace.loop.replace(":", "-")


def write(files: Mapping[str, str], out: Path) -> list[str]:
    """Write files, given by name and content, below ``out``; return their paths.

    Raises:
        ValueError: a file can't be written.
    """
    for name, content in files.items():
        write_whole(out / name, content)
    return [str(out / name) for name in files]


JSON_FIELDS = (
    "loop", "steps", "tokens", "makespan_ns", "device_busy_ns", "host_busy_ns", "host_hidden_ns",
    "bubble_ns", "wasted_rows",
)  # fmt: skip


def promise_json(found: Comparison) -> dict[str, Any]:
    """Return the measured class of a real model, and the closest choice; {} without any."""
    if found.apart is None:
        return {}
    closest = found.closest._asdict() if found.closest else None
    return {
        "promise": kind_of(found.apart),
        "apart": found.apart,
        "closest_choice": closest,
        "violations": len(found.violations),
    }


def comparison_json(found: Comparison, files: list[str]) -> dict[str, Any]:
    """Return the JSON object; times are integer nanoseconds."""
    trace, lost = found.runs[0].trace, found.lost_ns
    result: dict[str, Any] = {
        "identical": found.identical,
        **{name: getattr(trace, name) for name in ("device", "model", "dtype", "clock")},
        **promise_json(found),
        "runs": [
            {name: getattr(report, name) for name in JSON_FIELDS}
            | {"lost_ns": lost[report.loop]}
            | drafts_as_json(run)
            for run, report in zip(found.runs, found.reports, strict=True)
        ],
        "speedup": found.speedup,
        "ideal": found.ideal,
        "files": files,
        "differences": [vars(item) for item in found.differences],
        "errors": found.errors,
        "outputs": found.runs[0].outputs,
    }
    if pair := find_runs(found.runs):
        result["pd_or_mixed"] = [list(row) for row in rows(*pair)]
    if found.logprob_difference is not None:
        result["logprob_difference"] = found.logprob_difference
        result["logprobs"] = logprobs_json(found.runs[0].requests)
    return result
