"""Microseconds of each phase of the host in a real loop, and of what lies between the phases.

The loop is ``serial`` on ``thread`` with the hash model: the device is idle while the host works,
so it does not take the interpreter away. Only as soon as a step is launched its thread wants that
too: of a launch of 1,024 rows up to a quarter is waiting for it. Only the phases' own slices are
recorded, nothing else: what a trace costs is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from statistics import median

from ...core import Request, SamplingParams
from ...devices.registry import open_device
from ...engine.frontend import Frontend
from ...loops.design import find_loop
from ...loops.run import make_engine
from ...models.registry import open_model
from ...scheduler import SchedulerConfig
from ...trace import NullRecorder, Slice
from ..rows import Figure, figure, ratio

LOOP, DEVICE = "serial", "thread"
RECEIVE = "receive, a request"
STEP_PHASES = ("schedule", "prepare", "launch", "process", "output")
BETWEEN = "between phases"
NAMES = (RECEIVE, *STEP_PHASES, BETWEEN)
PROMPT_LEN, PAGE_SIZE = 8, 16
TURNS, SETTLED = 20, 4  # turns that decode, and those at the beginning that are left out
LOADS = ((1, 0), (16, 0), (256, 0), (256, 1_000), (256, 100_000), (1024, 0))  # running, waiting
QUEUE_GROWTH = ((256, 100_000), (256, 0))
MICROSECOND = 1000

Phases = dict[str, float]


class OnlySlices(NullRecorder):
    """Keeps the host's slices and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Slice] = []

    def slice(self, item: Slice) -> None:
        """One more."""
        if item.lane == "host":
            self.kept.append(item)


def phase_figures(
    repetitions: int,
    report: Callable[[str], None],
    loads: Iterable[tuple[int, int]] = LOADS,
) -> list[Figure]:
    """Each phase for each number of requests that run and that wait; then how the queue counts."""
    found: dict[tuple[int, int], list[Phases]] = {load: [] for load in loads}
    for repetition in range(repetitions):
        for load, runs in found.items():
            report(f"{case(*load)}, repetition {repetition + 1} of {repetitions}")
            runs.append(phases_us(*load))
    rows = [
        figure(f"{name}, {case(*load)}", [run[name] for run in runs], "us")
        for load, runs in found.items()
        for name in NAMES
    ]
    large, small = (found.get(load, []) for load in QUEUE_GROWTH)
    if large and small:
        what = f"{case(*QUEUE_GROWTH[0])} / {case(*QUEUE_GROWTH[1])}"
        rows += [
            ratio(f"growth: {name}, {what}", [run[name] for run in large],
                  [run[name] for run in small], 1.2)
            for name in STEP_PHASES
        ]  # fmt: skip
    return rows


def case(running: int, waiting: int) -> str:
    """The name of a load."""
    return f"{running:,} running, {waiting:,} waiting"


def phases_us(running: int, waiting: int) -> Phases:
    """What each phase takes in one run, the median of its turns."""
    slices = record(running, waiting)
    received = [item for item in slices if item.name == "receive"]
    per_request = sum(item.duration for item in received) / (running + waiting)
    turns = split(slices)[SETTLED:]
    taken = {name: median(spent(turn, name) for turn in turns) for name in STEP_PHASES}
    between = median(map(between_phases, turns))
    found = {RECEIVE: per_request, **taken, BETWEEN: between}
    return {name: value / MICROSECOND for name, value in found.items()}


def record(running: int, waiting: int) -> list[Slice]:
    """The host's slices of a run in which nobody ends, in order of time."""
    most = PROMPT_LEN + TURNS + SETTLED + 8
    pages = -(-most // PAGE_SIZE) + 1
    config = SchedulerConfig(
        kv_tokens=(running + 1) * pages * PAGE_SIZE, page_size=PAGE_SIZE,
        max_running_requests=running, chunked_prefill_size=-1,
        max_prefill_tokens=running * PAGE_SIZE + 1, context_len=pages * PAGE_SIZE,
    )  # fmt: skip
    params = SamplingParams(max_new_tokens=most - PROMPT_LEN, ignore_eos=True)
    prompts = ([number % 256] * PROMPT_LEN for number in range(running + waiting))
    requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
    device = open_device(DEVICE)
    device.recorder = recorder = OnlySlices()
    recorder.now = device.now
    try:
        engine = make_engine(LOOP, device, open_model("hash", DEVICE), config, Frontend(requests))
        turns = find_loop(LOOP).start(engine)
        for _ in range(1 + SETTLED + TURNS):
            next(turns)
    finally:
        device.close()
    if len(engine.scheduler.running_batch) != running:
        raise RuntimeError(f"{len(engine.scheduler.running_batch)} requests ran, not {running}")
    return recorder.kept


def split(slices: list[Slice]) -> list[list[Slice]]:
    """Each turn's slices, from a schedule up to the next turn's schedule, which is the last."""
    starts = [at for at, item in enumerate(slices) if item.name == "schedule"]
    return [slices[begin : end + 1] for begin, end in pairwise(starts)]


def spent(turn: list[Slice], name: str) -> int:
    """Nanoseconds of one turn in a phase."""
    return sum(item.duration for item in turn[:-1] if item.name == name)


def between_phases(turn: list[Slice]) -> int:
    """Nanoseconds of one turn in no phase, while the device had nothing to do either.

    From the end of the last launch to the beginning of processing it is the device's time: it
    shares the interpreter, and so the host's wait may begin late.
    """
    at = {item.name: item for item in turn[:-1]}
    on_device = at["process"].start - at["launch"].end
    return turn[-1].start - turn[0].start - on_device - sum(map(partial(spent, turn), STEP_PHASES))
