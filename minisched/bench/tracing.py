"""What recording costs a real loop, and how long every exporter takes over a long run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import NamedTuple

from ..compare import fresh
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
from ..trace import NullRecorder, Recorder, Trace
from .overlap.hidden import Case
from .rows import Figure, figure, interleave, ratio

AIM = 1.03  # at most 3 % more with recording
HOST_AIM = 3.0  # per cent of a run
RUNS = 3  # of which the shortest counts: one run of a second or two differs by more than the aim
SLICES = 100_000
SLICES_A_STEP = 10  # about
ANSWER, APART = 64, 16  # tokens of a request of the long run; steps from one to the next
STEP = 12_000_000  # nanoseconds, about


class Timed(NamedTuple):
    """Seconds of one run: by the clock, and those in which the host's own thread worked.

    What a stream's thread records of its ops is in the clock's alone.
    """

    wall: float
    host: float


def recording(
    case: Case, loop: str, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """A loop on a real device with a recorder and with one that keeps nothing, in turn.

    Where runs differ by more than recording may cost, the host's own time tells what it does: it
    goes on neither while the host waits nor while others have the processor.
    """
    name = f"{loop} on {case.device}"
    kinds = {f"{name}, recorded": Recorder, f"{name}, not recorded": NullRecorder}
    host: dict[str, list[float]] = {what: [] for what in kinds}

    def measure(what: str) -> float:
        runs = [timed(case, loop, kinds[what]) for _ in range(RUNS)]
        host[what].append(min(run.host for run in runs))
        return min(run.wall for run in runs)

    for recorder in kinds.values():
        timed(case, loop, recorder)  # whatever is done once only
    values = interleave({what: partial(measure, what) for what in kinds}, repetitions, report)
    figures = [figure(what, taken, "s") for what, taken in values.items()]
    return [*figures, *costs(name, list(values.values()), list(host.values()))]


def costs(name: str, wall: Sequence[list[float]], host: Sequence[list[float]]) -> list[Figure]:
    """What recording costs by the clock and by the host's time; of both, first recorded runs."""
    with_it, without = wall
    triples = zip(*host, without, strict=True)
    added = [100 * (more - less) / whole for more, less, whole in triples]
    own = f"recording: {name}, added to the host's time"
    drift = f"runs not recorded take {min(without):.2f} to {max(without):.2f} s"
    return [
        ratio(f"recording: {name}", with_it, without, AIM).because(drift),
        figure(own, added, "% of a run", HOST_AIM, at_most=True),
    ]


def timed(case: Case, loop: str, recorder: Callable[[], Recorder]) -> Timed:
    """One run, from the first request to the finished trace.

    Raises:
        KeyboardInterrupt: somebody cut it short.
    """
    device = open_device(case.device)
    device.recorder = recorder()
    device.recorder.now = device.now
    requests = [fresh(request) for request in case.requests]
    began, worked = perf_counter(), thread_time()
    run = run_loop(loop, device, case.model, requests, case.config)
    if run.interrupted:
        raise KeyboardInterrupt
    return Timed(perf_counter() - began, thread_time() - worked)


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
