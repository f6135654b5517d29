"""What scheduling costs the host: by phase in a real loop, and beside other schedulers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..peers.peer import PeerError
from ..rows import Figure, SideBySide
from .host_peers import SCHEDULER_PEERS, not_admitted, peer_cases
from .nano_vllm import NanoVllm
from .phases import phase_figures
from .scheduler import step_cases


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
