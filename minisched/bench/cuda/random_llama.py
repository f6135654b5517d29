"""Llamas of published shapes with random weights: what a step costs does not depend on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
SHAPES: dict[str, dict[str, Any]] = {
    "1B": {  # meta-llama/Llama-3.2-1B, config.json; its head is tied
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "head_dim": 64,
    },
    "8B": {  # meta-llama/Llama-3.1-8B, config.json
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "head_dim": 128,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"},
    "tie_word_embeddings": False,  # tied, random weights repeat one token
    "eos_token_id": 128_001,
    "dtype": "bfloat16",
}


def folder_for(settings: dict[str, Any]) -> TemporaryDirectory[str]:
    """A folder that is gone afterwards; in memory, where that has room for the weights."""
    needed = 2 * (num_parameters(settings) + settings["vocab_size"] * settings["hidden_size"])
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * needed
    return TemporaryDirectory(dir=MEMORY if has_room else None)


def write_random_llama(directory: Path, settings: dict[str, Any], device: str = "cpu") -> Path:
    """Write config.json and model.safetensors in bfloat16, drawn on ``device``; give the directory.

    A norm is ones, a matrix [out, in] has the standard deviation 1 / sqrt(in).
    """
    import torch
    from safetensors.torch import save_file

    from ...models.llama_config import LlamaConfig

    config = LlamaConfig.from_json(settings, {}, where=str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    draw = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, shape in config.tensor_shapes():
        tensor = torch.ones(shape, dtype=torch.bfloat16, device=device)
        if len(shape) > 1:
            tensor.normal_(0, shape[-1] ** -0.5, generator=draw)
        tensors[name] = tensor.cpu()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def num_parameters(settings: dict[str, Any]) -> int:
    """Weights that every decode step reads: all but the embeddings, of which it reads rows."""
    from ...models.llama_config import LlamaConfig

    config = LlamaConfig.from_json(settings, {}, where="settings")
    sizes = (
        (name, shape[0] * (shape[1] if len(shape) > 1 else 1))
        for name, shape in config.tensor_shapes()
    )
    return sum(size for name, size in sizes if "embed_tokens" not in name)
