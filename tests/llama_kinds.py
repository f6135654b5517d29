"""Tiny checkpoints of every kind of model that is taken: what config.json adds to a plain Llama.

Prompts of tests are longer than the 64 positions that rope scaling starts from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minisched.models.tiny import write_tiny_llama

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "norms": {"rms_norm_eps": 1e-2, "num_attention_heads": 8, "head_dim": 24},
    "llama 3.1": {"rope_theta": 500.0, "rope_scaling": LLAMA3},
    "llama 3.2": {  # as transformers 5 writes it
        "rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 500.0, "factor": 32.0},
        "tie_word_embeddings": True, "head_dim": 32,
    },
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "mlp bias": {"mlp_bias": True, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "use_sliding_window": False,
              "sliding_window": 16, "max_window_layers": 1},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 300.0,
                   "rope_scaling": LLAMA3},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1e6},
    "qwen3 biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True,
                     "rope_theta": 1000.0, "rope_scaling": LLAMA3},
}  # fmt: skip


def write_kinds(folder: Path) -> dict[str, Path]:
    """A checkpoint of each kind; the plain one is ``write_tiny_llama``'s own."""
    return {
        kind: write_tiny_llama(folder / kind.replace(" ", "_"), more=more)
        for kind, more in KINDS.items()
    }


def prompt(start: int, length: int) -> list[int]:
    """Tokens that go nowhere in circles."""
    return [(7 * start + 3 * at * at) % 512 for at in range(length)]
