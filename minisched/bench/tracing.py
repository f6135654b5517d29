"""How long every exporter takes over a long run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from time import perf_counter

from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, SIM_COST
from ..devices.registry import open_device
from ..export.chrome import to_chrome
from ..export.html import to_html
from ..export.native import from_json, to_json
from ..export.puml_sequence import to_sequence
from ..export.puml_timing import to_timing
from ..export.svg import to_svg
from ..export.text import to_text
from ..loops.run import run_loop, warm_up
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import NullRecorder, Recorder, Trace
from .figures import BenchCase, Figure, figure, interleave
from .side_by_side import SETTLING, Arm, Spent, running

# -- What recording costs a loop on a real device, beside the same loop with nothing recorded ------

AIM = 1.03  # at most 3 % more with recording
HOST_AIM = 3.0  # per cent of a step
ROUND = 4  # turns that are timed together
KINDS = {"recorded": Recorder, "not recorded": NullRecorder}
Pair = tuple[Spent, Spent]  # of a round: recorded, and not recorded


def recording(
    case: BenchCase, loop: str, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Both loops, a few steps at a time.

    By the clock, what the streams' threads and the device's watcher record counts too. The host's
    own time goes on neither while the host waits nor while others have the processor.
    """
    warm_up(case.device, case.model, case.config)
    taken = []
    for repetition in range(repetitions):
        report(f"{loop} on {case.device}, repetition {repetition + 1} of {repetitions}")
        taken.append(in_turn(case, loop))
    return rows_of(f"{loop} on {case.device}", taken)


def in_turn(case: BenchCase, loop: str) -> list[Pair]:
    """As many rounds as the requests are long."""
    longest = max(request.params.max_new_tokens for request in case.requests)
    pairs = []
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(running(case, loop, recorder=kind, together=True))
            for kind in KINDS.values()
        )
        for _ in range((longest - SETTLING - 1) // (1 + ROUND)):
            pairs.append((timed(one), timed(other)))
        one.finish()
        other.finish()
    return pairs


def timed(arm: Arm) -> Spent:
    """A round, behind a step that waits for nothing: the one before it ended in the other's."""
    arm.go_on(1)
    return arm.go_on(ROUND)


def rows_of(name: str, taken: Sequence[Sequence[Pair]]) -> list[Figure]:
    """The figures of all repetitions; a repetition's is the median of its rounds."""
    steps = [
        [median(pair[which].wall for pair in pairs) / ROUND / MILLISECOND for pairs in taken]
        for which in range(len(KINDS))
    ]
    ratios = [median(more.wall / less.wall for more, less in pairs) for pairs in taken]
    added = [
        median(100 * (more.host - less.host) / less.wall for more, less in pairs) for pairs in taken
    ]
    drift = f"steps not recorded take {min(steps[1]):.1f} to {max(steps[1]):.1f} ms"
    own = f"recording: {name}, added to the host's time"
    return [
        *(figure(f"{name}, {kind}", step, "ms") for kind, step in zip(KINDS, steps, strict=True)),
        figure(f"recording: {name}", ratios, "ratio", AIM, at_most=True).because(drift),
        figure(own, added, "% of a step", HOST_AIM, at_most=True),
    ]


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
