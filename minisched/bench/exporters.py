"""How long every exporter takes over a long run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

from ..core import Request, SamplingParams
from ..devices.cost import SIM_COST
from ..devices.registry import open_device
from ..export.chrome import to_chrome
from ..export.html import to_html
from ..export.native import from_json, to_json
from ..export.puml_sequence import to_sequence
from ..export.puml_timing import to_timing
from ..export.svg import to_svg
from ..export.text import to_text
from ..loops.run import run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .rows import Figure, figure, interleave

SLICES = 100_000
SLICES_A_STEP = 10  # about
ANSWER, APART = 64, 16  # tokens of a request of the long run; steps from one to the next
STEP = 12_000_000  # nanoseconds, about


def exporters(slices: int, repetitions: int, report: Callable[[str], None]) -> list[Figure]:
    """Seconds of every exporter over one run of about so many slices, all of it drawn."""
    report(f"a run of {slices} slices")
    trace = long_run(slices)
    measures = {
        f"{name}, {len(trace.slices)} slices": partial(seconds, export)
        for name, export in exports_of(trace).items()
    }
    values = interleave(measures, repetitions, report)
    return [figure(name, taken, "s") for name, taken in values.items()]


def exports_of(trace: Trace) -> Mapping[str, Callable[[], object]]:
    """Everything that can be made of one run; whole runs, and a few steps where that is usual."""
    text = to_json(trace)
    steps = [item.step for item in trace.slices if item.step]
    first, last = min(steps), max(steps)
    return {
        "native JSON": partial(to_json, trace),
        "native JSON, read": partial(from_json, text),
        "Chrome and Perfetto": partial(to_chrome, trace),
        "SVG": partial(to_svg, [trace], whole=True),
        "SVG, 3 steps": partial(to_svg, [trace]),
        "text": partial(to_text, [trace], whole=True),
        "text, 3 steps": partial(to_text, [trace]),
        "HTML": partial(to_html, [trace]),
        "PlantUML timing": partial(to_timing, trace, first, last),
        "PlantUML sequence": partial(to_sequence, trace, first, last),
    }


def long_run(slices: int) -> Trace:
    """A run of ``overlap`` on ``sim`` in which four requests or so are served at any time."""
    steps = max(APART, slices // SLICES_A_STEP)
    params = SamplingParams(max_new_tokens=ANSWER, ignore_eos=True)
    requests = [
        Request(f"r{index}", [index % 256] * 8, params, index * APART * STEP)
        for index in range(steps // APART)
    ]
    run = run_loop(
        "overlap", open_device("sim"), HashModel(), requests, SchedulerConfig(), SIM_COST
    )
    return run.trace


def seconds(export: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = perf_counter()
    export()
    return perf_counter() - began
