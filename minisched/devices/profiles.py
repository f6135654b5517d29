"""What steps cost: profiles of real machines for ``sim``, worked out, or measured; or as told.

A published profile is worked out from sizes of models and peak figures of GPUs; no figure of it was
measured. A measured one is what ``minisched calibrate`` fits to runs on a machine.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from ..trace.files import read_text
from .cost import ADDED_TO, MICROSECOND, MILLISECOND, CostModel, Pace

# -- A machine of which one says what it takes ----------------------------------------------------


def of_milliseconds(host: float, device: float, copy: float, token: float = 0) -> CostModel:
    """Costs of one step, in ms; the host spends half of its time before a step and half behind it.

    ``token`` is what each token of a step costs the device, beside ``device``.
    """
    before = round(host * MILLISECOND) // 2
    return CostModel(
        {"schedule": before, "process": round(host * MILLISECOND) - before},
        forward_base=round(device * MILLISECOND),
        forward_per_token=round(token * MILLISECOND),
        copy=round(copy * MILLISECOND),
    )


# -- What steps cost on one machine: more than a few constants -------------------------------------

Knots = tuple[tuple[int, int], ...]  # (tokens, nanoseconds), tokens ascending


@dataclass(frozen=True)
class HostCost:
    """The host's side of one loop: nanoseconds a phase, for each row, and for each new token.

    ``after`` is ``Pace.after``: what follows a phase and is no slice.
    """

    base: Mapping[str, int] = field(default_factory=dict)
    per_row: Mapping[str, int] = field(default_factory=dict)
    per_token: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineCost(CostModel):
    """Costs with which ``sim`` predicts a machine; all in nanoseconds unless the name says more.

    A forward pass takes ``forward_base``, and of its new tokens, padded to a multiple of
    ``pad_to``, ``forward_per_token`` and what ``forward_knots`` say, with straight lines between;
    ``forward_per_row`` and what new tokens attend to come on top. (Over a long document attention
    outgrows everything else. Time is a sum of parts, where a real step hides some behind others: an
    upper bound, close where one part dominates.)
    ``loops`` has the host's side of each loop, if it was measured; a loop that was not takes that
    of ``serial``. Of 1000 nanoseconds of host work that a run is told to add, ``added_work`` pass.
    """

    kv_read_ps: int = 0  # for each token attended to: its keys and values are read once a row
    attention_ps: int = 0  # for each pair of a new token and one that it attends to
    forward_knots: Knots = ()
    forward_per_row: int = 0
    sample_per_row: int = 0
    pad_to: int = 1
    loops: Mapping[str, HostCost] = field(default_factory=dict)
    side: HostCost = HostCost()  # of the loop that runs, beside ``host``
    host_work: int = 0
    added_work: int = 1000

    def phase(self, name: str, rows: int = 0, tokens: int = 0) -> int:
        """The cost of a phase of the host for a batch of so many rows and new tokens."""
        side, added = self.side, 0
        if name in ADDED_TO:
            added = self.host_work // 2 * self.added_work // 1000
        growth = rows * side.per_row.get(name, 0) + tokens * side.per_token.get(name, 0)
        return self.host.get(name, 0) + side.base.get(name, 0) + growth + added

    def forward(self, num_tokens: int) -> int:
        """The cost of a forward pass over ``num_tokens`` positions, without attention."""
        padded = -(-num_tokens // self.pad_to) * self.pad_to
        return super().forward(padded) + interpolate(self.forward_knots, padded)

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """The cost of a forward pass over rows of (first new position, new positions)."""
        count = tokens = attended = pairs = 0
        for start, length in rows:
            count += 1
            tokens += length
            attended += start + length
            pairs += length * (2 * start + length + 1) // 2
        attention = self.kv_read_ps * attended + self.attention_ps * pairs
        return self.forward(tokens) + attention // 1000 + self.forward_per_row * count

    def sample_rows(self, rows: int) -> int:
        """The cost of sampling so many tokens."""
        return self.sample + self.sample_per_row * rows

    def of_loop(self, loop: str) -> MachineCost:
        """The same with the host's side of one loop; its relay and options make no difference."""
        name = loop.partition(":")[0].partition("(")[0]
        side = self.loops.get(name, self.loops.get("serial", self.side))
        return replace(self, side=side, pace=replace(self.pace, after=side.after))

    def with_host_work(self, nanoseconds: int) -> Self:
        """The same with so much pure-Python work added to each step, half before, half after."""
        return replace(self, host_work=nanoseconds)


def interpolate(knots: Knots, at: int) -> int:
    """The value at ``at``, never less than 0.

    Beyond the first and the last knot, the line next to it goes on; measured knots that lie close
    together may be so steep that it would get below 0.
    """
    if len(knots) < 2:
        return knots[0][1] if knots else 0
    right = min(max(1, bisect_right(knots, (at, -1))), len(knots) - 1)
    (x0, y0), (x1, y1) = knots[right - 1], knots[right]
    return max(0, y0 + (y1 - y0) * (at - x0) // (x1 - x0))


# -- What steps cost on real machines, worked out from published sizes: profiles for ``sim`` -------
#
# No figure here was measured. Sizes of models and peak figures of GPUs are published; what share of
# the peaks a step reaches, and what the host costs, are round figures, named as such.

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
    """What of a model decides its costs."""

    parameters: int
    layers: int
    hidden_size: int  # of all query heads
    kv_size: int  # of all key heads; the value heads have the same

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache for one token."""
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
    """The object; ``about`` is what else people want to know of it."""
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
    """The profile in a file.

    Raises:
        ValueError: it can't be read, or is none.
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
    """The profile that an object describes.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is another thing, or of another version;
            or something is missing, or is no number.
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
    """What JSON has, if all of it are whole numbers from 0 on, in tables or lists.

    Raises:
        ValueError: one is something else.
    """
    if isinstance(found, dict):
        return {name: whole(each) for name, each in found.items()}
    if isinstance(found, list):
        return [whole(each) for each in found]
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r} is no whole number from 0 on")
    return found
