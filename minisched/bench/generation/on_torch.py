"""Generation on torch, ours beside transformers and llama.cpp: the same weights, dtype and cores.

Ours keeps its bits whatever the batch looks like; none of the peers does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...models.fetch import model_home
from ..machine import cpus
from ..peers.environment import clean_env, environment
from ..peers.peer import Peer, PeerError
from ..rows import Figure, Measure, figure, interleave, not_measured
from .on_mlx import Load


@dataclass(frozen=True)
class TorchPeer:
    """A peer, and how many times its tokens a second ours should make."""

    name: str
    environment: str  # in peer_environment.py
    script: str  # in peers/
    aim: float


PEERS = (
    TorchPeer("transformers static", "transformers", "transformers_static", 1.2),
    TorchPeer("transformers continuous", "transformers", "transformers_continuous", 2.0),
    TorchPeer("llama.cpp", "llama-cpp", "llama_cpp", 1.0),
)
OURS = "minisched"
OVERLAPPED = "minisched overlap"  # leaves a core to the host
DTYPES = ("float32", "bfloat16")
LOADS = (
    Load((256,), 128),
    Load((64, 128, 256, 512), 128),
    Load((64, 128, 256, 512) * 4, 64),
)


def generation_torch(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
    home: Path | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    loads: tuple[Load, ...] = LOADS,
) -> list[Figure]:
    """All figures: for each dtype and load tokens a second and the mean time to first token.

    Raises:
        PeerError: our own process can't start or go on.
    """
    rows = []
    for dtype in dtypes:
        with ExitStack() as stack:
            settings = {"folder": str(folder), "dtype": dtype, "threads": cpus(), "context": 1024}
            processes, reasons = start_all(settings, stack, report, home or model_home())
            for load in loads:
                rows += figures_of(dtype, load, processes, reasons, repetitions, report)
    return rows


def start_all(
    settings: dict[str, object], stack: ExitStack, report: Callable[[str], None], home: Path
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The processes that run until ``stack`` is closed, and why others don't."""
    own = partial(Peer, Path(sys.executable), "own_torch", env=clean_env())
    processes = {
        OURS: stack.enter_context(own(settings={**settings, "loop": "serial"})),
        OVERLAPPED: stack.enter_context(
            own(settings={**settings, "loop": "overlap", "threads": max(1, cpus() - 1)})
        ),
    }
    reasons = {}
    for peer in PEERS:
        try:
            python = environment(peer.environment, home, report)
            report(f"starting {peer.name}")
            started = Peer(python, peer.script, settings, clean_env())
            processes[peer.name] = stack.enter_context(started)
        except PeerError as error:
            reasons[peer.name] = str(error).rstrip(".")
    return processes, reasons


def figures_of(
    dtype: str,
    load: Load,
    processes: Mapping[str, Peer],
    reasons: Mapping[str, str],
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """One load on all processes, in turn; a peer that fails at it loses this load alone."""
    case = f"{dtype}, {load.name}"
    failed = dict(reasons)
    measures: dict[str, Measure] = {}
    firsts: dict[str, list[float]] = {}

    def ask(name: str) -> float:
        answer = processes[name].ask(load.question)
        firsts.setdefault(name, []).append(1000 * answer["ttft"])
        return len(load.prompt_lens) * load.new_tokens / float(answer["seconds"])

    for name in processes:
        report(f"{case}: {name}, warming up")
        try:
            ask(name)  # libraries allocate on their first steps
            measures[name] = partial(ask, name)
        except PeerError as error:
            if name in (OURS, OVERLAPPED):
                raise
            failed[name] = str(error).rstrip(".")
    firsts.clear()
    speeds = interleave(measures, repetitions, report)
    rows = [figure(f"{case}: {name}", taken, "tokens/s") for name, taken in speeds.items()]
    rows += [ratio_to(peer, case, speeds, failed) for peer in PEERS]
    return rows + [figure(f"{case}: {name}, TTFT", taken, "ms") for name, taken in firsts.items()]


def ratio_to(
    peer: TorchPeer, case: str, speeds: Mapping[str, list[float]], failed: Mapping[str, str]
) -> Figure:
    """How many times a peer's tokens a second ours are, or why nobody knows."""
    name = f"{case}: {OURS} / {peer.name}"
    if peer.name in failed:
        return not_measured(name, "ratio", failed[peer.name], peer.aim)
    both = zip(speeds[OURS], speeds[peer.name], strict=True)
    return figure(name, [ours / theirs for ours, theirs in both], "ratio", peer.aim)
