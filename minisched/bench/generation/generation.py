"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

One module for each library that computes: ``generation_torch.py`` and ``generation_mlx.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ..rows import Figure
from .on_mlx import generation_mlx
from .on_torch import generation_torch


class Part(Protocol):
    """Measures one library; every ratio is ours over a peer's tokens a second."""

    def __call__(
        self, folder: Path, repetitions: int, report: Callable[[str], None]
    ) -> list[Figure]:
        """All figures of the model in ``folder``."""


PARTS: Mapping[str, Part] = {"thread": generation_torch, "mlx": generation_mlx}


def generation(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
    device: str | None = None,
) -> list[Figure]:
    """Figures of one device of ``PARTS``, or of all."""
    chosen = [device] if device else list(PARTS)
    return [row for name in chosen for row in PARTS[name](folder, repetitions, report)]
