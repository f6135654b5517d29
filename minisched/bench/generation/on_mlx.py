"""Generation on MLX, ours beside mlx-lm's ``BatchGenerator``: stock kernels, and OpenBLAS.

Another BLAS can only be put in before a process starts, so ours too runs in a process of its own.
With it, which tokens come no longer depends on the batch by a bit or so (``llama_mlx.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from ..machine import cpus
from ..peers.environment import clean_env
from ..rows import Figure
from .load import BATCHES, LENGTHS, Choice, Load
from .side_by_side import Contest, Rival

AIM = 1.2
WHY_MISSED = (
    "about half of a step is OpenBLAS's matrix products, a quarter and more attention, which "
    "gathers KV from its pages"
)
NO_OPENBLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"


@dataclass(frozen=True)
class Kernels:
    """A BLAS: its library, or None for the wheel's own, and how many threads it gets.

    A library of the name "" is one that this machine lacks.
    """

    name: str
    library: str | None = None
    threads: int = 1
    batches: tuple[int, ...] = BATCHES
    lengths: tuple[int, ...] = LENGTHS

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to have it."""
        if not self.library:
            return clean_env()
        own = {"LD_PRELOAD": self.library, "OPENBLAS_NUM_THREADS": str(self.threads)}
        return {**clean_env(), **own}

    def contest(self, folder: Path, loads: tuple[Load, ...]) -> Contest:
        """Ours beside mlx-lm, both with these kernels."""
        rival = Rival("mlx-lm", "mlx-lm", "mlx_lm", AIM, WHY_MISSED if self.library else "")
        settings = {"folder": str(folder)}
        return Contest(self.name, "own_mlx", (rival,), settings, self.env, loads)


def choices() -> list[Kernels]:
    """The stock kernels, and with as many threads as there are CPUs OpenBLAS.

    Where the stock ones are plain loops on the CPU, every token of every request takes about a
    tenth of a second, be it of a prompt or new: so one request shows it all. On a Mac they are
    Metal's, and there is nothing to put in.
    """
    if not sys.platform.startswith("linux"):
        return [Kernels("stock kernels")]
    library, threads = find_library("openblas") or "", cpus()
    return [
        Kernels("stock kernels", batches=(1,), lengths=(64,)),
        Kernels(f"OpenBLAS, {threads} thread{'s' * (threads > 1)}", library, threads),
    ]


def generation_mlx(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    home: Path,
    choice: Choice,
) -> list[Figure]:
    """All figures: each BLAS with each load."""
    rows = []
    for kernels in choices():
        contest = kernels.contest(folder, choice.loads(kernels.batches, kernels.lengths))
        if kernels.library == "":
            rows += contest.missing(NO_OPENBLAS)
        else:
            rows += contest.figures(repetitions, report, home)
    return rows
