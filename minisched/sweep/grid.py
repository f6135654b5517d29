"""The grid of a sweep: a TOML file of axes, and their cells.

A grid names settings; a list of values makes an axis, and every combination is a *cell*, one run on
the simulator::

    aim = "ttft"                 # ttft, itl, throughput or makespan: what "best" means
    limits = {itl_p99_ms = 40}   # columns that the best may not exceed

    [grid]
    loop = ["serial", "overlap", "vllm_async"]   # LOOP or LOOP:RELAY
    device_ms = [2, 5, 10, 20]                   # of a step, beside host_ms and copy_ms
    new_tokens = [1, 16]
    schedule_policy = ["fcfs", "lpm"]            # any setting of the scheduler, by its name

Each cell is one line of JSON. A worker receives that line, and a resumed sweep recognizes finished
cells by it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

from ..core import Request, SamplingParams
from ..defaults import MOST_REQUESTS
from ..devices.cost import SIM_COST, CostModel, of_milliseconds
from ..loops.design import find_loop
from ..replay.profiles import find_profile
from ..scheduler import SchedulerConfig
from ..trace.files import read_text

VOCAB = 257
MOST_TOKENS = 100_000  # of a request, or of its prompt


@dataclass(frozen=True)
class Setting:
    """A name in a grid other than the scheduler's settings: its default and its limits."""

    default: Any
    about: str
    least: float = 0.0
    most: float = 60_000.0


SETTINGS: Mapping[str, Setting] = {
    "loop": Setting("overlap", "a loop, or LOOP:RELAY"),
    "profile": Setting("", "what steps cost: a profile's name, or a file of calibrate"),
    "host_ms": Setting(None, "milliseconds of host work a step"),
    "device_ms": Setting(None, "milliseconds of a forward pass"),
    "token_ms": Setting(None, "milliseconds more for each token of it"),
    "copy_ms": Setting(None, "milliseconds of the copy back"),
    "requests": Setting(8, "how many", 1, MOST_REQUESTS),
    "prompt_tokens": Setting(32, "of each", 1, MOST_TOKENS),
    "new_tokens": Setting(64, "of each, at most", 1, MOST_TOKENS),
    "stop": Setting(0.0, "the chance that a token ends its request", 0, 0.9),
    "rate": Setting(0.0, "arrivals a second, at random; 0: all together", 0, 1e6),
    "seed": Setting(0, "of prompts and arrivals", 0, 2**63),
    "trace": Setting("", "recorded requests instead, a file as replay takes it"),
    "trace_requests": Setting(1000, "how many of them, the first", 1, 10**9),
}
MADE = ("requests", "prompt_tokens", "new_tokens", "stop", "rate", "seed")  # not from a trace
USERS = tuple(item.name for item in fields(SchedulerConfig) if "help" in item.metadata)
AIMS = {  # aim -> its column, and whether less is better
    "ttft": ("ttft_p99_ms", True),
    "itl": ("itl_p99_ms", True),
    "throughput": ("tokens_per_s", False),
    "makespan": ("makespan_ms", True),
}
COLUMNS = (
    "makespan_ms", "steps", "tokens", "wasted_rows", "tokens_per_s", "device_busy", "ttft_p50_ms",
    "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms",
)  # fmt: skip


@dataclass(frozen=True)
class SweepGrid:
    """The axes of a grid, which are lists of values, and the settings that all cells share."""

    axes: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    aim: str = "makespan"
    limits: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[SweepCell]:
        """Return every combination; the last axis changes fastest."""
        return [
            SweepCell({**dict(zip(self.axes, values, strict=True)), **self.fixed})
            for values in product(*self.axes.values())
        ]

    @property
    def choices(self) -> list[str]:
        """Return the axes of choices; the others describe the workload or the machine."""
        return [name for name in self.axes if name == "loop" or name not in SETTINGS]


@dataclass(frozen=True)
class SweepCell:
    """One run: its settings from the grid; other settings have their defaults."""

    given: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return the line of JSON that identifies the cell."""
        return json.dumps(self.given, sort_keys=True)

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, SETTINGS[name].default)

    @property
    def config(self) -> dict[str, Any]:
        """Return the settings of the scheduler."""
        return {name: value for name, value in self.given.items() if name not in SETTINGS}

    @property
    def cost(self) -> CostModel:
        """Return the costs of its steps: in milliseconds, of a profile, or the usual ones."""
        if self["profile"]:
            return find_profile(self["profile"]).cost
        told = [self[name] for name in ("host_ms", "device_ms", "copy_ms", "token_ms")]
        if all(value is None for value in told):
            return SIM_COST
        return of_milliseconds(*(value or 0 for value in told))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Return end tokens, as many as give a random token the probability ``stop``."""
        return frozenset(range(round(self["stop"] * VOCAB)))

    def requests(self) -> list[Request]:
        """Return the requests with their arrivals, drawn from the seed."""
        draw, params = Random(self["seed"]), SamplingParams(max_new_tokens=self["new_tokens"])
        found, now = [], 0.0
        for at in range(self["requests"]):
            prompt = [draw.randrange(VOCAB) for _ in range(self["prompt_tokens"])]
            found.append(Request(f"r{at}", prompt, params, arrival_time=round(now)))
            now += draw.expovariate(self["rate"]) * 1e9 if self["rate"] else 0.0
        return found


# -- Reading ---------------------------------------------------------------------------------------


def read_grid(path: Path, register: Callable[[str], str] = str) -> SweepGrid:
    """Read the grid of a file. ``register`` gives the name of a loop, such as ``FILE.py:NAME``.

    Raises:
        ValueError: it is none; the sentence names the file and what is wrong.
    """
    try:
        found = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}.") from error
    except RecursionError:
        raise ValueError(f"{path} is no grid: it is nested too deep.") from None
    try:
        return make_grid(found, register)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def make_grid(found: Mapping[str, Any], register: Callable[[str], str] = str) -> SweepGrid:
    """Return the grid of a table; ``register`` gives the name of each loop.

    Raises:
        ValueError: a name is unknown, or a value is outside its limits.
    """
    for name in found:
        if name in SETTINGS or name in USERS:
            raise ValueError(f"{name} stands at the top of the file, but it belongs below [grid].")
    _check_names("the file", found, ("grid", "aim", "limits"))
    grid, aim, limits = found.get("grid", {}), found.get("aim", "makespan"), found.get("limits", {})
    for name, value in (("grid", grid), ("limits", limits)):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {value!r}, but it must be a table.")
    if not grid:
        raise ValueError("there is no [grid], so there is nothing to run.")
    if aim not in AIMS:
        raise ValueError(f"aim is {aim!r}, but it must be one of {', '.join(AIMS)}.")
    _check_names("limits", limits, COLUMNS)
    _check_names("the grid", grid, (*SETTINGS, *USERS))
    if "loop" in grid:
        named = [register(it) if isinstance(it, str) else it for it in _listed(grid["loop"])]
        grid = {**grid, "loop": named if isinstance(grid["loop"], list) else named[0]}
    for name, values in grid.items():
        for value in _listed(values):
            _check_value(name, value)
        if isinstance(values, list) and not values:
            raise ValueError(f"{name} is an empty list, so there is no cell.")
    axes = {name: values for name, values in grid.items() if isinstance(values, list)}
    fixed = {name: value for name, value in grid.items() if name not in axes}
    for name, values in axes.items():
        if len(set(map(str, values))) < len(values):
            raise ValueError(f"{name} has a value twice: {values}.")
    in_ms = [name for name in grid if name.endswith("_ms")]
    if "profile" in grid and in_ms:
        raise ValueError(
            "profile has the costs of steps, and so do host_ms, device_ms, ..: one of them."
        )
    if "trace" in grid:
        for name in (*MADE, *in_ms):
            if name in grid:
                raise ValueError(
                    f"trace is for recorded requests, but {name} is not: leave it out."
                )
    return SweepGrid(axes, fixed, aim, limits)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_names(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise ValueError(f"{where} has no {name!r}; {hint}")


def _check_value(name: str, value: Any) -> None:
    if name == "loop":
        if not isinstance(value, str):
            raise ValueError(f"loop is {value!r}, but it must be the name of one.")
        find_loop(value.partition(":")[0]).check_device(value, "sim")
    elif name == "profile":
        find_profile(str(value))
    elif name == "trace":
        if not isinstance(value, str) or not Path(value).is_file():
            raise ValueError(f"trace is {value!r}, but there is no such file.")
    elif name in SETTINGS:
        setting = SETTINGS[name]
        is_whole = isinstance(setting.default, int)
        kind = int if is_whole else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not isfinite(value):
            a = "a whole number" if is_whole else "a number"
            raise ValueError(f"{name} is {value!r}, but it must be {a}: {setting.about}.")
        if not setting.least <= value <= setting.most:
            raise ValueError(
                f"{name} is {value}, but it must be between {setting.least:g} and {setting.most:g}."
            )
