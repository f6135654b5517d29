"""What scheduling costs the host: by phase in a real loop, and beside other schedulers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ..rows import Figure
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
    """Phases; then steps beside nano-vllm's, with our growth by queue, tree and history; then vLLM.

    ``reason`` says why there is no nano-vllm; peers with wheels are installed below ``home``.
    """
    rows = phase_figures(repetitions, report)
    rows += step_cases(nano, reason).figures(repetitions, report)
    for known in SCHEDULER_PEERS:
        with ExitStack() as opened:  # one peer at a time: two would be in each other's way
            part = peer_cases(known, home, opened, report)
            rows += part.figures(repetitions, report) + not_admitted(known)
    return rows
