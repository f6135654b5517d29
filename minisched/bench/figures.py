"""A measured figure with its spread; what is measured in turn; and the table that is kept of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from ..trace.files import write_whole

# -- The machine that something was measured on, in a few words ------------------------------------

GIBIBYTE = 1 << 30


def machine() -> dict[str, Any]:
    """System, processor, cores that this process may use, and memory in GiB where it is known."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cpus": cpus(),
        "memory_gib": memory_gib(),
    }


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def memory_gib() -> float | None:
    """Memory of the machine, where the system tells."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIBIBYTE, 1)


# -- A measured figure with its spread, and the machine it was measured on -------------------------

Measure = Callable[[], float]
PEER_AIM = 1.0  # at most what the peer takes
GROWTH_AIM = 1.2  # at most a fifth more, for what should make no difference
PACKAGES = ("torch", "transformers", "mlx", "mlx-lm", "numpy", "xxhash")


@dataclass(frozen=True)
class Figure:
    """One line of a bench's table.

    ``aim`` is what the median should reach, or with ``at_most`` not exceed in size, if anything.
    ``reason`` says why nothing was measured, with None for the numbers, or why an aim is missed.
    """

    name: str
    median: float | None
    min: float | None
    max: float | None
    unit: str
    aim: float | None = None
    at_most: bool = False
    reason: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median is where the aim wants it; None without one of the two."""
        if self.aim is None or self.median is None:
            return None
        return abs(self.median) <= self.aim if self.at_most else self.median >= self.aim

    def because(self, why: str) -> Figure:
        """The same, with the reason if it misses its aim."""
        return replace(self, reason=why) if self.met is False else self

    def as_json(self) -> dict[str, Any]:
        """One of the ``rows``; ``reason`` is there only if there is one."""
        names = ("name", "median", "min", "max", "unit", "aim", "met")
        row = {name: getattr(self, name) for name in names}
        return {**row, "reason": self.reason} if self.reason else row


def figure(
    name: str, values: Sequence[float], unit: str, aim: float | None = None, at_most: bool = False
) -> Figure:
    """The figure of repeated measurements."""
    return Figure(name, median(values), min(values), max(values), unit, aim, at_most)


def ratio(
    name: str, values: Sequence[float], base: Sequence[float], aim: float | None = None
) -> Figure:
    """How many times ``base`` it is, repetition by repetition; at most ``aim`` is good."""
    times = [one / other for one, other in zip(values, base, strict=True)]
    return figure(name, times, "ratio", aim, at_most=True)


def not_measured(name: str, unit: str, reason: str, aim: float | None = None) -> Figure:
    """A line for what could not be measured."""
    return Figure(name, None, None, None, unit, aim, at_most=True, reason=reason)


def interleave(
    measures: Mapping[str, Measure],
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


@dataclass(frozen=True)
class SideBySide:
    """The same cases measured here and at a peer, in turn.

    ``growth`` lists pairs of our cases: what the first costs for each unit of the second.
    Where ``theirs`` is None the peer can't be measured, and ``reason`` says why. ``slower`` says
    what ours does in a case that the peer does not, should it take longer.
    """

    peer: str
    ours: Mapping[str, Measure]
    theirs: Mapping[str, Measure | None]  # by the name of our case that does the same
    growth: Sequence[tuple[str, str]] = ()
    unit: str = "us"
    reason: str = ""
    slower: Mapping[str, str] = field(default_factory=dict)

    def figures(self, repetitions: int, report: Callable[[str], None]) -> list[Figure]:
        """Each case with its peer and their ratio, then how ours grows."""
        measures = {}
        for case, measure in self.ours.items():
            measures[f"minisched: {case}"] = measure
            if peer := self.theirs.get(case):
                measures[f"{self.peer}: {case}"] = peer
        values = interleave(measures, repetitions, report)
        rows = [row for case in self.ours for row in self._case(case, values)]
        for case, base in self.growth:
            grown, at_first = values[f"minisched: {case}"], values[f"minisched: {base}"]
            rows.append(ratio(f"growth: {case} / {base}", grown, at_first, GROWTH_AIM))
        return rows

    def _case(self, case: str, values: Mapping[str, list[float]]) -> list[Figure]:
        own, other = f"minisched: {case}", f"{self.peer}: {case}"
        both = f"minisched / {self.peer}: {case}"
        rows = [figure(own, values[own], self.unit)]
        if other in values:
            rows.append(figure(other, values[other], self.unit))
            row = ratio(both, values[own], values[other], PEER_AIM)
            rows.append(row.because(self._why(case, values[own], values[other])))
        elif case in self.theirs:
            rows.append(not_measured(other, self.unit, self.reason))
            rows.append(not_measured(both, "ratio", self.reason, PEER_AIM))
        return rows

    def _why(self, case: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
        why = self.slower.get(case, "")
        more = median(one - other for one, other in zip(ours, theirs, strict=True))
        return f"{more:.1f} {self.unit} more: {why}" if why else ""


def as_json(
    figures: Sequence[Figure],
    peers: Mapping[str, str] | None = None,
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What ``bench --json`` prints.

    ``peers`` are versions in other environments than this one; ``asked`` are options, and when.
    """
    return {
        "rows": [item.as_json() for item in figures],
        "asked": dict(asked or {}),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions(), **(peers or {})},
    }


def versions() -> dict[str, str]:
    """The installed versions of what is measured."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


# -- What is kept of a measurement: ``traces/bench/PART.json``, and as a table ``PART.md`` ---------

FOLDER = Path("traces/bench")


def save(part: str, document: dict[str, Any], root: Path) -> list[Path]:
    """Write both files below ``root``; gives their paths.

    Raises:
        ValueError: they can't be written; one sentence.
    """
    folder = root / FOLDER
    texts = {
        folder / f"{part}.json": json.dumps(document, indent=1) + "\n",
        folder / f"{part}.md": "\n".join(to_markdown(part, document)) + "\n",
    }
    for path, text in texts.items():
        write_whole(path, text, with_folders=True)
    return list(texts)


def to_markdown(part: str, document: dict[str, Any]) -> Iterator[str]:
    """The table of a measurement, and the machine below it."""
    yield f"# minisched bench {part}\n"
    yield "| what | median | min | max | unit | aim | met |"
    yield "|---|--:|--:|--:|---|---|---|"
    for row in document["rows"]:
        yield f"| {' | '.join(cells(row))} |"
    if document.get("asked"):
        yield f"\n{', '.join(f'{name} {value}' for name, value in document['asked'].items())}."
    machine = document["machine"]
    yield f"\n{', '.join(f'{name} {value}' for name, value in machine.items())}."
    yield f"\n{', '.join(f'{name} {version}' for name, version in document['versions'].items())}."


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    numbers = [
        "-" if row[name] is None else f"{row[name]:.4g}" for name in ("median", "min", "max")
    ]
    aim = "" if row["aim"] is None else f"{row['aim']:g}"
    reason = row.get("reason", "")
    met = {None: reason, True: "yes", False: f"no: {reason}" if reason else "no"}[row["met"]]
    return [row["name"], *numbers, row["unit"], aim, met]
