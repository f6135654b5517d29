"""Tiny checkpoints of every kind of model that is taken: what config.json adds to a plain Llama."""

from __future__ import annotations

from typing import Any

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 10_000.0},
    "llama 3.1": {"rope_theta": 500_000.0, "rope_scaling": LLAMA3},
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
                     "tie_word_embeddings": True, "rope_theta": 1000.0},
}  # fmt: skip
