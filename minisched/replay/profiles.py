"""Costs of steps for ``sim`` from a profile of a real machine.

A published profile is computed from sizes of models and peak figures of GPUs; no figure of it was
measured. ``minisched calibrate`` fits a measured profile to runs on a machine.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from ..devices.cost import ADDED_TO, MICROSECOND, CostModel, Pace
from ..trace.files import read_text

# -- The costs of steps on one machine: more than a few constants ----------------------------------

Knots = tuple[tuple[int, int], ...]  # (tokens, nanoseconds), tokens ascending


@dataclass(frozen=True)
class HostCost:
    """The host's costs in one loop, in nanoseconds: of a phase, of each row, of each new token.

    ``after`` is ``Pace.after``, the time after a phase that no slice shows.
    """

    base: Mapping[str, int] = field(default_factory=dict)
    per_row: Mapping[str, int] = field(default_factory=dict)
    per_token: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineCost(CostModel):
    """The costs of a machine that ``sim`` predicts, in nanoseconds; ``_ps`` means picoseconds.

    The time of a forward pass is a sum. Its new tokens, padded to a multiple of ``pad_to``, take
    ``forward_base``, ``forward_per_token`` for each, and a term from ``forward_knots``, linear
    between two knots. Rows and attention are added. Over a long document attention is the largest
    part. A real step overlaps some of the parts, so the sum is an upper bound.

    ``loops`` has the measured host costs of each loop; other loops take those of ``serial``. If a
    run adds 1000 nanoseconds of host work, ``added_work`` of them pass.
    """

    kv_read_ps: int = 0  # for each token attended to: a row reads its keys and values once
    attention_ps: int = 0  # for each pair of a new token and one that it attends to
    forward_knots: Knots = ()
    forward_per_row: int = 0
    sample_per_row: int = 0
    pad_to: int = 1
    loops: Mapping[str, HostCost] = field(default_factory=dict)
    side: HostCost = HostCost()  # of the loop that runs, in addition to ``host``
    host_work: int = 0
    added_work: int = 1000

    def phase(self, name: str, rows: int = 0, tokens: int = 0) -> int:
        """Return the cost of a phase of the host for a batch of rows and new tokens."""
        side, added = self.side, 0
        if name in ADDED_TO:
            added = self.host_work // 2 * self.added_work // 1000
        growth = rows * side.per_row.get(name, 0) + tokens * side.per_token.get(name, 0)
        return self.host.get(name, 0) + side.base.get(name, 0) + growth + added

    def forward(self, num_tokens: int) -> int:
        """Return the cost of a forward pass over ``num_tokens`` positions, without attention."""
        padded = -(-num_tokens // self.pad_to) * self.pad_to
        return super().forward(padded) + interpolate(self.forward_knots, padded)

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """Return the cost of a forward pass over rows of (first new position, new positions)."""
        count = tokens = attended = pairs = 0
        for start, length in rows:
            count += 1
            tokens += length
            attended += start + length
            pairs += length * (2 * start + length + 1) // 2
        attention = self.kv_read_ps * attended + self.attention_ps * pairs
        return self.forward(tokens) + attention // 1000 + self.forward_per_row * count

    def sample_rows(self, rows: int) -> int:
        """Return the cost of sampling ``rows`` tokens."""
        return self.sample + self.sample_per_row * rows

    def of_loop(self, loop: str) -> MachineCost:
        """Return the costs with the host's of one loop; its relay and options are ignored."""
        name = loop.partition(":")[0].partition("(")[0]
        side = self.loops.get(name, self.loops.get("serial", self.side))
        return replace(self, side=side, pace=replace(self.pace, after=side.after))

    def with_host_work(self, nanoseconds: int) -> Self:
        """Return costs with pure-Python work added to each step, half before and half after."""
        return replace(self, host_work=nanoseconds)


def interpolate(knots: Knots, at: int) -> int:
    """Return the value at ``at``, at least 0.

    Outside the knots, the line of the nearest two continues. It may be so steep that it falls below
    0, if two measured knots are close to each other.
    """
    if len(knots) < 2:
        return knots[0][1] if knots else 0
    right = min(max(1, bisect_right(knots, (at, -1))), len(knots) - 1)
    (x0, y0), (x1, y1) = knots[right - 1], knots[right]
    return max(0, y0 + (y1 - y0) * (at - x0) // (x1 - x0))


# -- Costs on real machines, computed from published sizes: profiles for ``sim`` -------------------
#
# No figure here was measured. Sizes of models and peak figures of GPUs are published. The share of
# a peak that a step reaches, and the costs of the host, are round figures, named as such.

BYTES = 2  # of a weight and of a cached number: bfloat16
COMPUTE_SHARE = 0.5  # of the peak, in matrix products of prompts; a round figure
BANDWIDTH_SHARE = 0.8  # of the peak, when weights and KV cache are read; a round figure
MEMORY_SHARE = 0.9  # of a GPU's memory, for weights and KV cache; a round figure

# Round figures too: a tenth of SIM_COST, which is ten times too large so that pictures can be read.
# Launched op by op, a step is some 300 kernels of 5 microseconds.
HOST = MappingProxyType({
    "receive": 30 * MICROSECOND,
    "schedule": 220 * MICROSECOND,
    "prepare": 100 * MICROSECOND,
    "launch": 50 * MICROSECOND,
    "launch eager": 1500 * MICROSECOND,
    "process": 220 * MICROSECOND,
    "output": 80 * MICROSECOND,
})  # fmt: skip
SAMPLE, COPY = 100 * MICROSECOND, 50 * MICROSECOND


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that determine its costs."""

    parameters: int
    layers: int
    hidden_size: int  # of all query heads
    kv_size: int  # of all key heads; the value heads have the same

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of the KV cache for one token."""
        return 2 * self.layers * self.kv_size * BYTES


@dataclass(frozen=True)
class Gpu:
    """Peak figures of one GPU."""

    flops: float  # a second, bfloat16, dense
    bandwidth: float  # bytes a second
    memory: float  # bytes


SMOLLM2_135M = ModelShape(134_515_008, 30, 576, 192)  # HuggingFaceTB/SmolLM2-135M, config.json
LLAMA_8B = ModelShape(8_030_261_248, 32, 4096, 1024)  # meta-llama/Llama-3.1-8B, config.json
A100 = Gpu(312e12, 2.039e12, 80e9)  # NVIDIA's data sheet, A100 80 GB SXM
H100 = Gpu(989e12, 3.35e12, 80e9)  # NVIDIA's data sheet, H100 SXM, without sparsity


@dataclass(frozen=True)
class Profile:
    """One model on one GPU: what steps cost, and how many tokens the KV cache holds."""

    name: str
    description: str
    cost: MachineCost
    kv_tokens: int


def make_profile(name: str, description: str, model: ModelShape, gpu: Gpu) -> Profile:
    """Work a profile out: weights are read once a step, each new token is multiplied by each."""
    compute, bandwidth = gpu.flops * COMPUTE_SHARE, gpu.bandwidth * BANDWIDTH_SHARE
    weights = model.parameters * BYTES
    cost = MachineCost(
        host=HOST,
        forward_base=round(weights / bandwidth * 1e9),
        forward_per_token=round(2 * model.parameters / compute * 1e9),
        sample=SAMPLE,
        copy=COPY,
        kv_read_ps=round(model.kv_bytes / bandwidth * 1e12),
        attention_ps=round(4 * model.layers * model.hidden_size / compute * 1e12),
    )
    free = int(gpu.memory * MEMORY_SHARE) - weights
    return Profile(name, description, cost, free // model.kv_bytes // 1024 * 1024)


PROFILES = {
    profile.name: profile
    for profile in (
        make_profile("llama8b-h100", "Llama 3.1 8B on one H100 80 GB", LLAMA_8B, H100),
        make_profile("llama8b-a100", "Llama 3.1 8B on one A100 80 GB", LLAMA_8B, A100),
        make_profile("smollm2-h100", "SmolLM2 135M on one H100 80 GB", SMOLLM2_135M, H100),
    )
}
DEFAULT_PROFILE = "llama8b-h100"


def find_profile(name: str) -> Profile:
    """The profile of that name, or the one that ``minisched calibrate`` has left in a file.

    Raises:
        ValueError: there is none, or the file is no profile.
    """
    if name.endswith((".json", ".json.gz")):
        return read_profile(Path(name))
    if name not in PROFILES:
        raise ValueError(
            f"unknown profile {name!r}; the profiles are {', '.join(PROFILES)}, and files of "
            "calibrate, which end in .json."
        )
    return PROFILES[name]


# -- A cost profile as a file: what ``minisched calibrate`` writes and ``--profile`` reads ---------
#
# One JSON object: ``format`` and ``version``; ``name``, ``description``, ``machine`` and
# ``versions`` for people; ``kv_tokens``, the KV pool of ``replay``; ``cost``, the fields of
# ``MachineCost`` that are numbers, with ``forward_knots`` as pairs of tokens and nanoseconds;
# ``pace``, those of ``Pace``; and ``loops``, for each loop the four tables of ``HostCost``. All
# times are integers.

FORMAT, VERSION = "minisched cost profile", 1
COSTS = (
    "sample", "sample_per_row", "copy", "forward_per_row", "kv_read_ps", "attention_ps", "pad_to",
    "added_work",
)  # fmt: skip


def as_json(profile: Profile, cost: MachineCost, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of a file; ``about`` is added for readers."""
    costs: dict[str, Any] = {name: getattr(cost, name) for name in COSTS}
    costs["forward_knots"] = [list(knot) for knot in cost.forward_knots]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "description": profile.description,
        **about,
        "kv_tokens": profile.kv_tokens,
        "cost": costs,
        "pace": asdict(cost.pace),
        "loops": {loop: asdict(side) for loop, side in cost.loops.items()},
    }


def read_profile(file: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        ValueError: the file can't be read, or has no profile.
    """
    text = read_text(file, f"--profile {file}")
    try:
        return from_json(json.loads(text))
    except RecursionError:
        raise ValueError(f"--profile {file} is no cost profile: it is nested too deep.") from None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"--profile {file} is no cost profile, as minisched calibrate writes one: {error!r}."
        ) from error


def from_json(found: Mapping[str, Any]) -> Profile:
    """Return the profile of an object.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the object has another format or version,
            or a part of it is missing or no number.
    """
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"its version is {found.get('version')}, and not {VERSION}")
    costs: dict[str, Any] = {name: whole(found["cost"][name]) for name in COSTS}
    knots: Knots = tuple((at, cost) for at, cost in whole(found["cost"]["forward_knots"]))
    tokens = [at for at, _ in knots]
    if tokens != sorted(set(tokens)) or costs["pad_to"] < 1:
        raise ValueError("forward_knots must ascend in tokens, and pad_to must be at least 1")
    pace = Pace(**{item.name: whole(found["pace"][item.name]) for item in fields(Pace)})
    loops = {loop: HostCost(**whole(side)) for loop, side in found["loops"].items()}
    cost = replace(MachineCost(**costs), forward_knots=knots, pace=pace, loops=loops)
    return Profile(found["name"], found["description"], cost, whole(found["kv_tokens"]))


def whole(found: Any) -> Any:
    """Return whole numbers from 0 on, alone or in tables and lists, as JSON has them.

    Raises:
        ValueError: a value is no such number.
    """
    if isinstance(found, dict):
        return {name: whole(each) for name, each in found.items()}
    if isinstance(found, list):
        return [whole(each) for each in found]
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r} is no whole number from 0 on")
    return found
