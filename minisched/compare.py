"""The main job: one workload through several loops, with the verdict and the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from .checks.overlap.overlap import OverlapReport, ideal_speedup, measure
from .checks.overlap.waits import lost_ns, num_waits
from .checks.tokens.identity import Difference, first_difference
from .checks.tokens.logprobs import largest_difference
from .checks.tokens.margin import with_margin
from .core import Output, Request, SamplingParams
from .devices.cost import NO_COST, CostModel
from .devices.registry import open_device
from .loops.refused import refusal, wanted_features
from .loops.registry import find_loop
from .loops.run import Run, RunStopped, run_loop
from .models.base import Model
from .scheduler import SchedulerConfig


@dataclass(frozen=True)
class Comparison:
    """Runs of one workload, the serial one first, and what they show."""

    runs: tuple[Run, ...]
    reports: tuple[OverlapReport, ...]
    differences: tuple[Difference, ...]  # one at most for each run

    @property
    def identical(self) -> bool:
        """Whether every run gave the serial run's tokens."""
        return not self.differences

    @property
    def unequally_served(self) -> list[str]:
        """Loops that refused or failed other requests than the serial one."""
        serial, *others = self.runs
        return [run.loop for run in others if run.errors.keys() != serial.errors.keys()]

    @property
    def ideal(self) -> float:
        """The speed-up that hiding all of the shorter of host and device would give."""
        return ideal_speedup(self.reports[0])

    @property
    def speedup(self) -> dict[str, float]:
        """Each loop's speed-up over the serial run."""
        serial = self.reports[0].makespan_ns
        return {report.loop: serial / max(1, report.makespan_ns) for report in self.reports}

    @property
    def lost_ns(self) -> dict[str, dict[str, int]]:
        """Each loop's lost time by reason: nanoseconds in which its devices idled."""
        return {run.loop: lost_ns(run.trace) for run in self.runs}

    @property
    def num_waits(self) -> dict[str, dict[str, int]]:
        """How often each loop let an op wait, by reason."""
        return {run.loop: dict(num_waits(run.trace)) for run in self.runs}

    @property
    def logprob_difference(self) -> float | None:
        """By how much a log-probability differs from the serial run's; None: nobody wants any."""
        others = (req for run in self.runs[1:] for req in run.requests)
        return largest_difference(self.runs[0].requests, others)

    @property
    def errors(self) -> dict[str, str]:
        """Requests that were refused or failed, with their reasons, whatever the loop."""
        return {rid: error for run in self.runs for rid, error in run.errors.items()}


def compare(
    loops: Sequence[str],
    device: str,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    cost: CostModel = NO_COST,
    on_output: Callable[[str, Output], None] = lambda loop, output: None,
) -> Comparison:
    """Run ``requests`` through ``serial`` and then the other loops, each on a fresh device.

    ``on_output`` hears every output with the loop it came from.

    Raises:
        ValueError: a loop or the device is unknown, the device is not to be had here, or a loop's
            original does not combine with it what the workload wants.
        KeyboardInterrupt: somebody pressed Ctrl-C; the run that was on has ended cleanly.
        RunStopped: a run stopped with an error.
    """
    ordered = list(dict.fromkeys(["serial", *loops]))
    wanted = wanted_features(config, requests)
    for loop in ordered:
        if problem := refusal(loop, find_loop(loop), wanted):
            raise ValueError(problem)
    warm_up(device, model, config)
    runs: list[Run] = []
    for loop in ordered:
        again = [fresh(request) for request in requests]
        hear = partial(on_output, loop)
        try:
            runs.append(run_to_end(loop, device, model, again, config, cost, hear))
        except RunStopped as stopped:
            stopped.traces[:0] = [run.trace for run in runs]
            raise
    tokens = [sum(map(len, run.outputs.values())) for run in runs]
    reports = tuple(measure(run.trace, count) for run, count in zip(runs, tokens, strict=True))
    unserved = (runs[0].errors.keys() | run.errors.keys() for run in runs[1:])  # by one of both
    found = (
        first_difference(run.loop, without(runs[0].outputs, refused), without(run.outputs, refused))
        for run, refused in zip(runs[1:], unserved, strict=True)
    )
    differences = tuple(
        with_margin(item, device, model, config, requests, runs[0]) for item in found if item
    )
    return Comparison(tuple(runs), reports, differences)


def without(outputs: dict[str, list[int]], rids: Set[str]) -> dict[str, list[int]]:
    """The outputs of all others: a request that one loop refused can't be compared."""
    return {rid: tokens for rid, tokens in outputs.items() if rid not in rids}


def fresh(request: Request) -> Request:
    """The same request, not yet run."""
    return Request(
        request.rid,
        request.prompt,
        request.params,
        request.arrival_time,
        priority=request.priority,
    )


def run_to_end(
    loop: str,
    device: str,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    cost: CostModel = NO_COST,
    on_output: Callable[[Output], None] = lambda output: None,
) -> Run:
    """A run on a fresh device that is good for nothing if somebody cuts it short.

    Raises:
        KeyboardInterrupt: somebody did; the run has ended cleanly all the same.
        RunStopped: it stopped with an error after something had run.
    """
    opened = open_device(device)
    try:
        run = run_loop(loop, opened, model, requests, config, cost, on_output=on_output)
    except Exception as error:  # a broken scheduler may stop in any way
        opened.recorder.mark("stopped", error=f"{type(error).__name__}: {error}")
        about = (loop, opened.name, model.name, opened.clock, model.dtype)
        trace = opened.recorder.trace(*about)
        if not trace.slices:
            raise  # bad input: nothing has run
        raise RunStopped(loop, error, trace) from error
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def warm_up(device: str, model: Model, config: SchedulerConfig) -> None:
    """A short run that nobody times: libraries compile and allocate on their first steps."""
    opened = open_device(device)
    opened.close()
    if opened.clock == "virtual":
        return
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"warm up {i}", [0] * 8, params) for i in range(2)]
    run_to_end("serial", device, model, requests, config)
