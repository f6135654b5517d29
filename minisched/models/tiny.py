"""Writes a tiny random Llama, so that tests of real forwards need no download.

The head is not tied to the embeddings: with random weights a tied head makes every sequence repeat
one token, and a test over it could not fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .llama_config import LlamaConfig

# Wide logits, and attention that singles tokens out: without either, sequences soon go in circles.
SCALE = {"lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0, "q_norm": 2.0, "k_norm": 2.0}
BIAS = 0.2  # a bias's standard deviation: of the size of what it is added to


FIXED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "dtype": "float32",
}


def write_tiny_llama(
    directory: Path,
    seed: int = 0,
    vocab: int = 512,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 128,
    context: int = 512,
    eos_id: int = 0,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write config.json and model.safetensors (float32) and give the directory.

    The numbers come from numpy and depend on ``seed`` alone, so torch and MLX load the same ones.
    ``more`` of config.json, such as ``model_type`` or ``rope_scaling``, takes the place of what is
    there; norms are random then: as ones, they and their places could be mistaken for each other.
    ``intermediate`` must be a multiple of 32: otherwise torch's SiLU on the CPU is not
    batch-invariant. Raises ValueError for that, WeightsError for sizes that do not fit together.
    """
    if intermediate % 32:
        raise ValueError(f"intermediate is {intermediate}, not a multiple of 32.")
    settings = {
        **FIXED,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
        "max_position_embeddings": context,
        "eos_token_id": eos_id,
        **(more or {}),
    }
    config = LlamaConfig.from_json(settings, {}, where=str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    _write_tensors(directory / "model.safetensors", config, seed, norms=0.3 if more else 0.0)
    return directory


def _write_tensors(file: Path, config: LlamaConfig, seed: int, norms: float) -> None:
    """Each number is of a normal distribution, times its part's entry in SCALE.

    A matrix [out, in] has std 1 / sqrt(in) and a bias ``BIAS``; a norm has std ``norms`` around 1.
    """
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in config.tensor_shapes():
        scale = np.float32(SCALE.get(name.split(".")[-2], 1.0))
        is_norm = name.endswith("norm.weight")
        if is_norm and not norms:
            tensors[name] = np.full(shape, scale)
            continue
        std = norms if is_norm else BIAS if len(shape) == 1 else 1 / np.sqrt(shape[-1])
        drawn = random.standard_normal(shape, np.float32) * np.float32(std)
        tensors[name] = (drawn + np.float32(is_norm)) * scale
    save_file(tensors, file, metadata={"format": "pt"})
