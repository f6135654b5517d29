"""Generation on torch, ours beside transformers and llama.cpp: the same weights, dtype and cores.

Ours keeps its bits whatever the batch looks like; none of the rivals does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..machine import cpus
from ..peers.environment import clean_env
from ..rows import Figure
from .load import Choice
from .side_by_side import Contest, Rival

LLAMA_CPP_WINS = (
    "torch's matrix products reach half of the memory's rate (bench limit); on top come attention, "
    "which gathers KV from its pages, and more than a thousand small operations"
)
RIVALS = (
    Rival("transformers static", "transformers", "transformers_static", 1.2),
    Rival("transformers continuous", "transformers", "transformers_continuous", 2.0),
    Rival("llama.cpp", "llama-cpp", "llama_cpp", 1.0, LLAMA_CPP_WINS),
)
DTYPES = ("float32", "bfloat16")


def generation_torch(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    home: Path,
    choice: Choice,
) -> list[Figure]:
    """All figures: each dtype with each load."""
    rows = []
    for dtype in DTYPES:
        settings = {"folder": str(folder), "dtype": dtype, "threads": cpus()}
        contest = Contest(dtype, "own_torch", RIVALS, settings, clean_env(), choice.loads())
        rows += contest.figures(repetitions, report, home)
    return rows
