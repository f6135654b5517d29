"""A measured figure with its spread, and the machine it was measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One line of a bench's table. ``aim`` is what the median should reach, if anything."""

    name: str
    median: float
    min: float
    max: float
    unit: str
    aim: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the aim; None without one."""
        return None if self.aim is None else self.median >= self.aim


def figure(name: str, values: Sequence[float], unit: str, aim: float | None = None) -> Figure:
    """The figure of repeated measurements."""
    return Figure(name, median(values), min(values), max(values), unit, aim)


def interleave(
    measures: Mapping[str, Callable[[], float]],
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> dict[str, list[float]]:
    """Take each measurement once, then each again: a machine that drifts drifts for all of them."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for repetition in range(repetitions):
        for name, measure in measures.items():
            report(f"{name}, repetition {repetition + 1} of {repetitions}")
            values[name].append(measure())
    return values


def as_json(figures: Sequence[Figure]) -> dict[str, Any]:
    """What ``bench --json`` prints."""
    return {
        "rows": [{**asdict(item), "met": item.met} for item in figures],
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "versions": {"python": platform.python_version(), **versions()},
    }


def versions() -> dict[str, str]:
    """The installed versions of what is measured."""
    found = {}
    for package in ("torch", "transformers", "mlx", "mlx-lm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
