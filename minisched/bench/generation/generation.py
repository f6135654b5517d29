"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

One module for each library that computes: ``on_torch.py`` and ``on_mlx.py``. Every ratio is ours
over a rival's tokens a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ...models.fetch import model_home
from ..rows import Figure
from .load import Choice
from .on_mlx import generation_mlx
from .on_torch import generation_torch


class Part(Protocol):
    """Measures one library; rivals' environments are below ``home``."""

    def __call__(
        self,
        folder: Path,
        repetitions: int,
        report: Callable[[str], None],
        home: Path,
        choice: Choice,
    ) -> list[Figure]:
        """All figures of the model in ``folder``."""


PARTS: Mapping[str, Part] = {"thread": generation_torch, "mlx": generation_mlx}


def generation(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    device: str | None,
    choice: Choice,
) -> list[Figure]:
    """Figures of one device of ``PARTS``, or of all."""
    chosen = [device] if device else list(PARTS)
    return [
        row
        for name in chosen
        for row in PARTS[name](folder, repetitions, report, model_home(), choice)
    ]
