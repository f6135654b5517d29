"""What scheduling costs the host: by phase in a real loop, and beside other schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..engine.frontend import Frontend
from ..loops.design import find_loop
from ..loops.run import make_engine
from ..models.fetch import model_home
from ..models.registry import open_model
from ..scheduler import SchedulerConfig
from ..trace import NullRecorder, Slice
from .figures import GROWTH_AIM, PEER_AIM, Figure, SideBySide, figure, not_measured, ratio
from .peers.peer import Peer, PeerError
from .steps import OWN, PAGE, SHARED, HostWorkload

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


def phase_figures(repetitions: int, report: Callable[[str], None]) -> list[Figure]:
    """Each phase for each number of requests that run and that wait; then how the queue counts."""
    found: dict[tuple[int, int], list[Phases]] = {load: [] for load in LOADS}
    for repetition in range(repetitions):
        for load, runs in found.items():
            report(f"{case(*load)}, repetition {repetition + 1} of {repetitions}")
            runs.append(phases_us(*load))
    rows = [
        figure(f"{name}, {case(*load)}", [run[name] for run in runs], "us")
        for load, runs in found.items()
        for name in NAMES
    ]
    large, small = (found[load] for load in QUEUE_GROWTH)
    what = " / ".join(case(*load) for load in QUEUE_GROWTH)
    return rows + [
        ratio(f"growth: {name}, {what}", [run[name] for run in large],
              [run[name] for run in small], GROWTH_AIM)
        for name in STEP_PHASES
    ]  # fmt: skip


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


# -- Schedulers side by side: the same requests, the same pages, no device -------------------------
#
# Each is a process of its own, ours too (``steps.py``), which takes the time itself; only questions
# and answers pass the pipe. What a peer's packages need of a GPU has stand-ins.

RUNNING = (1, 4, 16, 64, 256, 1024)
WAITING = (0, 1_000, 100_000)
TREES = (1_000, 1_000_000)  # tokens
FINISHED = 10_000  # requests
WARM_UP, STEPS, ADMITTING_STEPS = 8, 240, 8

DECODING = HostWorkload()
# Rows are left, but the first that waits needs more pages than are free, and holds up the others.
POOL_FULL = HostWorkload(head_len=150_000, spare_pages=64, spare_rows=64)
# Memory is left, but no row.
BATCH_FULL = HostWorkload(spare_pages=64)
ADMITTING = HostWorkload(
    running=0, waiting=1_000, prompt_len=512, head_len=512, spare_pages=4096, spare_rows=1024
)
AFTER_OTHERS = HostWorkload(spare_pages=8192)

A_STEP = (  # what nano-vllm's does not do
    "each step makes a plan, a batch that stays as it was committed, and an output for each row, "
    "since loops run ahead of results and clients are told"
)
AN_ADMISSION = (
    "each admission looks for its prefix in a radix tree, locks what it found, counts down four "
    "budgets and shares the prompt once it is computed"
)
Timed = Callable[..., float]  # asks a scheduler for the microseconds of something


@dataclass(frozen=True)
class SchedulerPeer:
    """A scheduler that runs without a GPU, and why admitting is not measured there."""

    name: str
    script: str  # in peers/
    page_size: int = PAGE
    no_admission: str = ""


NANO_VLLM = SchedulerPeer("nano-vllm", "nano_vllm")
VLLM = SchedulerPeer(
    "vLLM", "vllm_scheduler",
    no_admission="vLLM admits in the same call that schedules those who decode",
)  # fmt: skip
SGLANG = SchedulerPeer(  # its allocator of larger pages is a GPU's kernel
    "SGLang", "sglang_scheduler", 1, "SGLang's admission takes kernels of a GPU"
)


def step_us(load: HostWorkload, peer: Peer, ahead: bool = False) -> float:
    """Microseconds of a step in which those who run decode, and nobody else.

    Raises:
        RuntimeError: somebody else did, or not all of them.
    """
    taken, rows = ask(peer, load, WARM_UP, STEPS, ahead)
    if rows != load.running * STEPS:
        raise RuntimeError(f"{rows / STEPS} requests ran in a step, not {load.running}")
    return taken / STEPS


def admission_us(load: HostWorkload, peer: Peer) -> float:
    """Microseconds of admitting one request and of taking its first token."""
    taken, admitted = ask(peer, load, 1, ADMITTING_STEPS)
    return taken / admitted


def ask(
    peer: Peer, load: HostWorkload, warm_up: int, steps: int, ahead: bool = False
) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together."""
    question = {"load": asdict(load), "warm_up": warm_up, "steps": steps, "ahead": ahead}
    answer = peer.ask(question)
    return answer["us"], answer["rows"]


def running(size: int, page_size: int = PAGE) -> str:
    """The name of a case."""
    return f"step, {size:,} running" + (f", page {page_size}" if page_size != PAGE else "")


def waiting(full: str, size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} waiting for a full {full}"


def admitting(size: int) -> str:
    """The name of a case."""
    return f"a request admitted, {size:,} waiting"


def tree(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} tokens in the tree"


def history(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} finished before"


def step_cases(known: SchedulerPeer) -> dict[str, Timed]:
    """What is measured on a peer and on ours."""
    page = known.page_size
    loads = {running(n, page): replace(DECODING, running=n, page_size=page) for n in RUNNING}
    if known == VLLM:
        loads[waiting("batch", WAITING[1])] = replace(BATCH_FULL, waiting=WAITING[1])
    if known == NANO_VLLM:
        loads |= {waiting("pool", n): replace(POOL_FULL, waiting=n) for n in WAITING}
    cases: dict[str, Timed] = {name: partial(step_us, load) for name, load in loads.items()}
    if known == NANO_VLLM:
        for n in WAITING[1:]:
            cases[admitting(n)] = partial(admission_us, replace(ADMITTING, waiting=n))
    return cases


def own_cases() -> dict[str, Timed]:
    """Steps that nano-vllm has no counterpart of, or whose setting up it is no part of."""
    loads = {waiting("batch", size): replace(BATCH_FULL, waiting=size) for size in WAITING}
    for size in TREES:
        pages = size // PAGE
        loads[tree(size)] = replace(AFTER_OTHERS, finished=pages, distinct=pages)
    for size in (0, FINISHED):
        loads[history(size)] = replace(AFTER_OTHERS, finished=size, distinct=16)
    cases: dict[str, Timed] = {name: partial(step_us, load) for name, load in loads.items()}
    return {**cases, f"{running(256)}, one step ahead": partial(step_us, DECODING, ahead=True)}


GROWTH = (
    *(
        (waiting(full, size), waiting(full, 0))
        for full in ("pool", "batch")
        for size in WAITING[1:]
    ),
    (admitting(WAITING[2]), admitting(WAITING[1])),
    (tree(TREES[1]), tree(TREES[0])),
    (history(FINISHED), history(0)),
)  # what the first costs, in units of the second

# -- Match and insertion, as a tree grows; nano-vllm's at its only page size -----------------------

PAGE_SIZES = (1, 16, PAGE)
TREE_SIZES = (1_000, 10_000, 100_000, 1_000_000)  # tokens


def tree_us(question: Mapping[str, Any], peer: Peer) -> float:
    """Microseconds of a match or of an insertion."""
    return float(peer.ask(question)["us"])


def tree_cases(page: int) -> dict[str, Timed]:
    """Match and insertion for each size of a tree; then prompts from all over the largest.

    There the processor's caches are no help.
    """
    cases: dict[str, Timed] = {}
    for size in TREE_SIZES:
        find, give = {"match": size, "spread": False, "page": page}, {"insert": size, "page": page}
        cases[in_tree("match", page, size)] = partial(tree_us, find)
        cases[in_tree("insert", page, size)] = partial(tree_us, give)
    spread = {"match": TREE_SIZES[-1], "spread": True, "page": page}
    name = f"{in_tree('match', page, TREE_SIZES[-1])}, all over it"
    return {**cases, name: partial(tree_us, spread)}


def in_tree(what: str, page_size: int, num_tokens: int) -> str:
    """The name of a case."""
    return f"{what} {SHARED + OWN:,} tokens, page {page_size}, tree of {num_tokens:,}"


TREE_GROWTH = tuple(
    (in_tree(what, page, TREE_SIZES[-1]), in_tree(what, page, TREE_SIZES[0]))
    for page in PAGE_SIZES
    for what in ("match", "insert")
)

# -- All of it -------------------------------------------------------------------------------------

NO_CHECKOUT = "no checkout of nano-vllm was given with --nano-vllm"
NEEDED = ("engine/scheduler.py", "engine/block_manager.py", "engine/sequence.py")


def host_figures(
    nano_vllm: Path | None, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Phases; steps beside nano-vllm's, with our growth; then beside vLLM's and SGLang's.

    Raises:
        ValueError: ``nano_vllm`` is not a checkout.
    """
    check_checkout(nano_vllm)
    rows = phase_figures(repetitions, report)
    rows += beside(NANO_VLLM, nano_vllm, repetitions, report)
    for known in (VLLM, SGLANG):
        rows += beside(known, None, repetitions, report)
        name, reason = admitting(WAITING[1]), known.no_admission
        rows.append(not_measured(f"{known.name}: {name}", "us", reason))
        rows.append(not_measured(f"minisched / {known.name}: {name}", "ratio", reason, PEER_AIM))
    return rows


def scheduler_figures(
    nano_vllm: Path | None, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Steps and radix tree, each beside nano-vllm's.

    Raises:
        ValueError: ``nano_vllm`` is not a checkout.
    """
    check_checkout(nano_vllm)
    return beside(NANO_VLLM, nano_vllm, repetitions, report, with_trees=True)


def check_checkout(folder: Path | None) -> None:
    """Whether nano-vllm can be measured from there.

    Raises:
        ValueError: it is not a checkout, or one too old to know chunked prefill.
    """
    for name in NEEDED if folder else ():
        path = Path(folder or "", "nanovllm", name)
        if not path.is_file():
            raise ValueError(
                f"--nano-vllm is {str(folder)!r}, which is no checkout of nano-vllm: "
                f"it has no nanovllm/{name}."
            )
        if path.stem == "block_manager" and "def hash_blocks" not in path.read_text("utf-8"):
            raise ValueError(
                f"--nano-vllm is {str(folder)!r}, an older nano-vllm: "
                "its BlockManager has no hash_blocks."
            )


def beside(
    known: SchedulerPeer,
    folder: Path | None,
    repetitions: int,
    report: Callable[[str], None],
    with_trees: bool = False,
) -> list[Figure]:
    """Ours and a peer, which has a ``folder`` if there is no wheel; of two at a time.

    A peer that can't be had, or breaks off midway, gets its reason, and ours is measured alone.
    """
    is_nano = known == NANO_VLLM
    parts = [(step_cases(known), own_cases() if is_nano else {}, GROWTH if is_nano else ())]
    if with_trees:
        others = {name: case for page in PAGE_SIZES[:-1] for name, case in tree_cases(page).items()}
        parts.append((tree_cases(PAGE), others, TREE_GROWTH))
    slower = {case: A_STEP if case.startswith("step") else AN_ADMISSION for case in parts[0][0]}
    rows: list[Figure] = []
    with ExitStack() as opened:
        start = partial(Peer.start, home=model_home(), report=report)
        ours = opened.enter_context(start(f"{__package__}.steps", {}))
        peer, reason = None, NO_CHECKOUT
        try:
            if folder or not is_nano:
                script = f"{__package__}.peers.{known.script}"
                peer = opened.enter_context(start(script, {"folder": str(folder)}))
        except PeerError as error:
            reason = str(error).rstrip(".")
        for shared, own, growth in parts:
            part = SideBySide(
                known.name,
                {name: partial(case, peer=ours) for name, case in {**shared, **own}.items()},
                {name: partial(case, peer=peer) if peer else None for name, case in shared.items()},
                growth, reason=reason, slower=slower if is_nano else {},
            )  # fmt: skip
            try:
                rows += part.figures(repetitions, report)
            except PeerError as error:
                peer, reason = None, str(error).rstrip(".")
                alone = replace(part, theirs=dict.fromkeys(shared), reason=reason)
                rows += alone.figures(repetitions, report)
    return rows
