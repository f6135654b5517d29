"""What scheduling costs the host: by phase in a real loop, and beside other schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..engine.frontend import Frontend
from ..loops.design import find_loop
from ..loops.run import make_engine
from ..models.registry import open_model
from ..scheduler import SchedulerConfig
from ..trace import NullRecorder, Slice
from .figures import PEER_AIM, Figure, Measure, SideBySide, figure, not_measured, ratio
from .peers.environment import clean_env, environment
from .peers.peer import Peer, PeerError
from .scheduler import (
    BATCH_FULL,
    DECODING,
    PAGE,
    RUNNING,
    STEPS,
    WARM_UP,
    HostWorkload,
    Minisched,
    NanoVllm,
    admitting,
    per_step,
    running,
    step_cases,
    step_us,
    waiting,
)

# -- Microseconds of each phase of the host in a real loop, and of what lies between the phases ----
#
# The loop is ``serial`` on ``thread`` with the hash model: the device is idle while the host works,
# so it does not take the interpreter away. Only as soon as a step is launched its thread wants that
# too: of a launch of 1,024 rows up to a quarter is waiting for it. Only the phases' own slices are
# recorded, nothing else: what a trace costs is measured elsewhere.

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


# -- vLLM's and SGLang's own schedulers beside ours: the same requests, the same pages, no device
#
# Each peer runs in its own environment and takes the time itself; only questions and answers pass
# the pipe. Those of its packages that need a GPU have stand-ins (``peers/missing.py``).

WAITING = 1_000  # requests behind a full batch


@dataclass(frozen=True)
class SchedulerPeer:
    """A peer whose scheduler runs without a GPU."""

    name: str
    environment: str  # in peers/environment.py
    script: str  # in peers/
    page_size: int
    has_queue: bool  # whether what is measured looks at who waits
    no_admission: str  # why admitting is not measured


VLLM = SchedulerPeer(
    "vLLM", "vllm", "vllm_scheduler", PAGE, has_queue=True,
    no_admission="vLLM admits in the same call that schedules those who decode",
)  # fmt: skip
SGLANG = SchedulerPeer(
    "SGLang", "sglang", "sglang_scheduler", 1, has_queue=False,
    no_admission="SGLang's admission takes kernels of a GPU",
)  # fmt: skip
SCHEDULER_PEERS = (VLLM, SGLANG)  # SGLang's allocator of larger pages is a GPU's kernel


def peer_cases(
    known: SchedulerPeer, home: Path, opened: ExitStack, report: Callable[[str], None]
) -> SideBySide:
    """The cases that a peer is measured in; it runs until ``opened`` is closed."""
    try:
        python = environment(known.environment, home, report)
        report(f"starting {known.name}")
        peer = opened.enter_context(Peer(python, known.script, {}, clean_env()))
    except PeerError as error:
        return cases(known, None, str(error).rstrip("."))
    return cases(known, peer)


def cases(known: SchedulerPeer, peer: Peer | None, reason: str = "") -> SideBySide:
    """Steps of those who decode, at a page size that the peer has as well.

    Admission is left out; ``not_admitted`` says why.
    """
    size = known.page_size
    loads = {running(count): replace(DECODING, running=count) for count in RUNNING}
    if known.has_queue:
        loads[waiting("batch", WAITING)] = replace(BATCH_FULL, waiting=WAITING)
    loads = {paged(case, size): with_pages(load, size) for case, load in loads.items()}
    ours: dict[str, Measure] = {
        case: partial(step_us, Minisched, load) for case, load in loads.items()
    }
    theirs = {
        case: partial(peer_step_us, peer, load) if peer else None for case, load in loads.items()
    }
    return SideBySide(known.name, ours, theirs, reason=reason)


def not_admitted(known: SchedulerPeer) -> list[Figure]:
    """The rows of an admission, and why a peer's has no figure."""
    case, reason = admitting(WAITING), known.no_admission
    return [
        not_measured(f"{known.name}: {case}", "us", reason),
        not_measured(f"minisched / {known.name}: {case}", "ratio", reason, PEER_AIM),
    ]


def paged(case: str, page_size: int) -> str:
    """The name of a case at another page size than usual."""
    return case if page_size == PAGE else f"{case}, page {page_size}"


def with_pages(load: HostWorkload, page_size: int) -> HostWorkload:
    """The same workload, and as much memory, in pages of another size."""
    spare = load.spare_pages * PAGE // page_size
    return replace(load, page_size=page_size, spare_pages=spare)


def peer_step_us(peer: Peer, load: HostWorkload) -> float:
    """``step_us``, taken by the peer."""
    return per_step(*ask(peer, load, WARM_UP, STEPS), load)


def ask(peer: Peer, load: HostWorkload, warm_up: int, steps: int) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together.

    Raises:
        PeerError: it could not.
    """
    answer = peer.ask({"load": asdict(load), "warm_up": warm_up, "steps": steps})
    return answer["us"], answer["rows"]


def host_figures(
    nano: NanoVllm | None,
    reason: str,
    home: Path,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """Phases; steps beside nano-vllm's, with our growth; then beside vLLM's and SGLang's.

    ``reason`` says why there is no nano-vllm; peers with wheels are installed below ``home``.
    """
    rows = phase_figures(repetitions, report)
    rows += step_cases(nano, reason).figures(repetitions, report)
    for known in SCHEDULER_PEERS:
        with ExitStack() as opened:  # one peer at a time: two would be in each other's way
            part = peer_cases(known, home, opened, report)
            rows += figures_of(part, repetitions, report) + not_admitted(known)
    return rows


def figures_of(part: SideBySide, repetitions: int, report: Callable[[str], None]) -> list[Figure]:
    """Both sides; of a peer that breaks off midway only ours, and the reason."""
    try:
        return part.figures(repetitions, report)
    except PeerError as error:
        nobody = dict.fromkeys(part.theirs)
        reason = str(error).rstrip(".")
        return replace(part, theirs=nobody, reason=reason).figures(repetitions, report)
