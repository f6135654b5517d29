"""The call of a part of the bench, the turns of its arms, and its table.

A part is a module with a ``PART``: one function from a ``BenchCall`` to rows. A row has a name, a
median, its spread, an aim if there is one, and the reason if that is missed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from ..sweep.workers import num_cores
from ..trace.files import write_whole
from .peers.peer import Answer, PeerError, start_peer

# -- The machine that something was measured on, in a few words ------------------------------------


def machine() -> dict[str, Any]:
    """Return system, processor, cores of this process, and memory where the system counts it."""
    memory = 0
    if sys.platform != "win32":
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"system": platform.platform(), "processor": processor(), "cpus": num_cores(),
            "memory_gib": round(memory / 2**30, 1) or None}  # fmt: skip


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


# -- The call of a part: the options of ``minisched bench`` that were given ------------------------

Report = Callable[[str], None]  # shows the current work
OPTIONS = ("device", "model", "dtype", "requests", "max_new_tokens")  # of what is measured
CHECKOUTS = ("nano_vllm",)  # of peers that have no wheels


@dataclass(frozen=True)
class BenchCall:
    """One call of ``minisched bench``; for None each part has its own default.

    ``repetitions`` are interleaved; ``report`` shows the current work.
    """

    part: str
    device: str | None = None
    model: str | None = None
    requests: int | None = None
    max_new_tokens: int | None = None
    repetitions: int = 5
    nano_vllm: Path | None = None
    dtype: str | None = None
    report: Report = lambda doing: None

    @property
    def options(self) -> dict[str, Any]:
        """The given options besides the part, as a table names them."""
        named = {name.replace("_", "-"): getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class BenchPart:
    """A part: its rows, the options that it takes, and the devices that it knows (all, if none)."""

    rows: Callable[[BenchCall], list[Figure]]
    takes: tuple[str, ...]
    devices: tuple[str, ...] = ()
    repetitions: int = BenchCall.repetitions  # without ``--repeat``

    def measure(self, call: BenchCall) -> list[Figure]:
        """The rows.

        Raises:
            ValueError: the part has no use for an option, or doesn't know the device.
        """
        for name in (*OPTIONS, *CHECKOUTS):
            if name not in self.takes and getattr(call, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is of no use to bench {call.part}.")
        if self.devices and call.device not in (None, *self.devices):
            known = ", ".join(self.devices)
            raise ValueError(f"--device is {call.device!r}; bench {call.part} knows {known}.")
        if call.model == "hash" and "model" in self.takes:
            raise ValueError(f"bench {call.part} measures real models, so --model can't be hash.")
        if call.requests is not None and call.requests < 1:
            raise ValueError(f"--requests is {call.requests}, but it must be at least 1.")
        return self.rows(call)


# -- A measured figure with its spread -------------------------------------------------------------

Measure = Callable[[], float]
PEER_AIM = 1.0  # at most what the peer takes
GROWTH_AIM = 1.2  # at most a fifth more, for what should make no difference
PACKAGES = ("torch", "transformers", "mlx", "mlx-lm", "numpy", "xxhash")


@dataclass(frozen=True)
class Figure:
    """One line of a bench's table.

    The median should reach ``aim``, or with ``at_most`` not exceed it in size. ``reason`` is why
    nothing was measured, or why an aim is missed.
    """

    name: str
    values: Sequence[float]  # of each repetition; none: it could not be measured
    unit: str
    aim: float | None = None
    at_most: bool = False
    reason: str = ""

    @property
    def median(self) -> float | None:
        """Of all repetitions; None of nothing."""
        return median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """The median meets the aim; None without one of the two."""
        if self.aim is None or self.median is None:
            return None
        return abs(self.median) <= self.aim if self.at_most else self.median >= self.aim

    def because(self, why: str) -> Figure:
        """The same, with the reason if it misses its aim."""
        return replace(self, reason=why) if self.met is False else self

    def as_json(self) -> dict[str, Any]:
        """One of the ``rows``; ``reason`` is there only if there is one."""
        numbers = {"median": self.median, "min": min(self.values, default=None),
                   "max": max(self.values, default=None)}  # fmt: skip
        row = {"name": self.name, **numbers, "unit": self.unit, "aim": self.aim, "met": self.met}
        return {**row, "reason": self.reason} if self.reason else row


def ratio(
    name: str,
    values: Sequence[float],
    base: Sequence[float],
    aim: float | None = None,
    at_most: bool = True,
) -> Figure:
    """How many times ``base`` it is, repetition by repetition."""
    times = [one / other for one, other in zip(values, base, strict=True)]
    return Figure(name, times, "ratio", aim, at_most)


def not_measured(name: str, unit: str, reason: str, aim: float | None = None) -> Figure:
    """A line for what could not be measured."""
    return Figure(name, (), unit, aim, reason=reason)


# -- Arms that take turns: a machine that drifts drifts for all of them ----------------------------


def interleave(
    arms: Mapping[str, Measure], repetitions: int, report: Report
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measure each arm in turn; return the values, and why a peer that broke off was left out."""
    reasons: dict[str, str] = {}
    values: dict[str, list[float]] = {name: [] for name in arms}
    for repetition in range(repetitions):
        for name, arm in arms.items():
            if name not in reasons:
                report(f"{name}, repetition {repetition + 1} of {repetitions}")
                try:
                    values[name].append(arm())
                except PeerError as error:
                    reasons[name] = str(error).rstrip(".")
    return values, reasons


def contest(
    title: str,
    arms: Mapping[str, Measure],
    unit: str,
    aims: Mapping[str, float],
    call: BenchCall,
    at_most: bool = True,
    why: str = "",
) -> list[Figure]:
    """Do the same work by all arms in turn: each one's figure, then the first one's ratio to each.

    ``aims`` are of these ratios, by the other arm; ``why`` is the known reason for a missed aim.
    """
    values, reasons = interleave(
        arms, call.repetitions, lambda doing: call.report(f"{title}: {doing}")
    )
    rows = [
        not_measured(f"{title}: {name}", unit, reasons[name])
        if name in reasons
        else Figure(f"{title}: {name}", values[name], unit)
        for name in arms
    ]
    first, *others = arms
    for other in others:
        name, aim = f"{title}: {first} / {other}", aims.get(other)
        if reason := reasons.get(first) or reasons.get(other):
            rows.append(not_measured(name, "ratio", reason, aim))
        else:
            rows.append(ratio(name, values[first], values[other], aim, at_most).because(why))
    return rows


Ask = Callable[[Mapping[str, Any]], Answer]  # puts a question to a peer


def peer_asked(
    module: str,
    settings: Mapping[str, Any],
    call: BenchCall,
    stack: ExitStack,
    env: Mapping[str, str] | None = None,
    or_here: Sequence[str] = (),
) -> Ask:
    """Start a side that runs as long as the stack; if it can't start, a question raises."""
    try:
        peer = start_peer(module, settings, call.report, env, or_here=or_here)
        return stack.enter_context(peer).ask
    except PeerError as error:
        return no_peer(str(error))


def no_peer(reason: str) -> Ask:
    """Return a side that raises ``reason`` at each question."""

    def ask(question: Mapping[str, Any]) -> Answer:
        """Refuse the question."""
        raise PeerError(reason)

    return ask


# -- The one JSON object of a measurement, and the tables that are made of it ----------------------


def as_json(
    figures: Sequence[Figure],
    peers: Mapping[str, str] | None = None,
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the object that ``bench --json`` prints.

    ``peers`` are versions in other environments; ``asked`` are the options and the date.
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
        *figures, met, why = cells(row)
        verdict = [f"{met}."] * bool(met and why) + [f"{why[:1].upper()}{why[1:]}." if why else met]
        yield f"| {' | '.join([*figures, ' '.join(verdict)])} |"
    for facts in (document["asked"], document["machine"], document["versions"]):
        yield f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}."


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table: name, median, min, max, unit, aim, whether it is met, and why not."""
    numbers = [
        "-" if row[name] is None else f"{row[name]:.4g}" for name in ("median", "min", "max")
    ]
    aim = "" if row["aim"] is None else f"{row['aim']:g}"
    met = {None: "", True: "yes", False: "no"}[row["met"]]
    return [row["name"], *numbers, row["unit"], aim, met, row.get("reason", "")]
