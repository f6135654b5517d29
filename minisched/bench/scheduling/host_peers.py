"""vLLM's and SGLang's own schedulers beside ours: the same requests, the same pages, no device.

Each peer runs in its own environment and takes the time itself; only questions and answers pass
the pipe. Those of its packages that need a GPU have stand-ins (``peers/missing.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from ..peers.environment import clean_env, environment
from ..peers.peer import Peer, PeerError
from ..rows import PEER_AIM, Figure, Measure, SideBySide, not_measured
from .engines import PAGE, Minisched, Workload
from .scheduler import (
    BATCH_FULL,
    DECODING,
    RUNNING,
    STEPS,
    WARM_UP,
    admitting,
    per_step,
    running,
    step_us,
    waiting,
)

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


def with_pages(load: Workload, page_size: int) -> Workload:
    """The same workload, and as much memory, in pages of another size."""
    spare = load.spare_pages * PAGE // page_size
    return replace(load, page_size=page_size, spare_pages=spare)


def peer_step_us(peer: Peer, load: Workload) -> float:
    """``step_us``, taken by the peer."""
    return per_step(*ask(peer, load, WARM_UP, STEPS), load)


def ask(peer: Peer, load: Workload, warm_up: int, steps: int) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together.

    Raises:
        PeerError: it could not.
    """
    answer = peer.ask({"load": asdict(load), "warm_up": warm_up, "steps": steps})
    return answer["us"], answer["rows"]
