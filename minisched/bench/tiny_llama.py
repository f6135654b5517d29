"""A tiny random Llama, for benchmarks and tests of real forwards without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Wide logits and sharp attention: without either, sequences soon repeat.
SCALE = {"lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0}
FIXED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "dtype": "float32",
}


def tensor_shapes(settings: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape [out, in] of each tensor of a Llama, in the order of the forward."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    heads, kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
    q, kv = (number * settings["head_dim"] for number in (heads, kv_heads))
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    yield "model.embed_tokens.weight", (settings["vocab_size"], hidden)
    for index in range(settings["num_hidden_layers"]):
        for part, shape in layer.items():
            yield f"model.layers.{index}.{part}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not settings["tie_word_embeddings"]:
        yield "lm_head.weight", (settings["vocab_size"], hidden)


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
    """Write config.json and model.safetensors (float32), and return the directory.

    The numbers depend on ``seed`` alone, and are of a normal distribution: a matrix [out, in] has
    the standard deviation 1 / sqrt(in), times its part's entry in ``SCALE``. The head is not tied
    to the embeddings: with random weights that makes every sequence repeat one token. ``more``
    replaces entries of config.json. With it norms are random, so that they differ from each other.

    Raises:
        ValueError: ``intermediate`` is no multiple of 32, without which torch's SiLU on the CPU is
            not batch-invariant.
    """
    import numpy as np
    from safetensors.numpy import save_file

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
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    random, norms = np.random.default_rng(seed), 0.3 if more else 0.0
    tensors: dict[str, Any] = {}
    for name, shape in tensor_shapes(settings):
        scale = np.float32(SCALE.get(name.split(".")[-2], 1.0))
        is_norm = name.endswith("norm.weight")
        if is_norm and not norms:
            tensors[name] = np.full(shape, scale)
            continue
        std = norms if is_norm else 1 / np.sqrt(shape[-1])
        drawn = random.standard_normal(shape, np.float32) * np.float32(std)
        tensors[name] = (drawn + np.float32(is_norm)) * scale
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
