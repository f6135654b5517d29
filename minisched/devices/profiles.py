"""What steps cost on real machines, worked out from published sizes: profiles for ``sim``.

No figure here was measured. Sizes of models and peak figures of GPUs are published; what share of
the peaks a step reaches, and what the host costs, are round figures, named as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .cost import MICROSECOND, CostModel

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
class AttentionCost(CostModel):
    """A cost model that also pays for what new tokens attend to; that part in picoseconds.

    Over a long document attention outgrows everything else: without it, the last chunk of 100,000
    tokens would be as cheap as the first. Time is the sum of four parts, where a real step hides
    some of them behind the others: an upper bound, close where one part dominates.
    """

    kv_read_ps: int = 0  # for each token attended to: its keys and values are read once a row
    attention_ps: int = 0  # for each pair of a new token and one that it attends to

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """Nanoseconds of a forward pass over rows of (first new position, new positions)."""
        tokens = attended = pairs = 0
        for start, length in rows:
            tokens += length
            attended += start + length
            pairs += length * (2 * start + length + 1) // 2
        attention = self.kv_read_ps * attended + self.attention_ps * pairs
        return self.forward(tokens) + attention // 1000


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
    cost: AttentionCost
    kv_tokens: int


def make_profile(name: str, description: str, model: ModelShape, gpu: Gpu) -> Profile:
    """Work a profile out: weights are read once a step, each new token is multiplied by each."""
    compute, bandwidth = gpu.flops * COMPUTE_SHARE, gpu.bandwidth * BANDWIDTH_SHARE
    weights = model.parameters * BYTES
    cost = AttentionCost(
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
        from .profile_file import read_profile

        return read_profile(Path(name))
    if name not in PROFILES:
        raise ValueError(
            f"unknown profile {name!r}; the profiles are {', '.join(PROFILES)}, and files of "
            "calibrate, which end in .json."
        )
    return PROFILES[name]
