"""Reads a Llama's tensors into the stacks that ``llama_torch_layers.py`` works on."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from .llama_config import LlamaConfig
from .llama_torch_layers import LlamaWeights
from .weights import weight_files


def read_weights(
    directory: Path, config: LlamaConfig, dtype: torch.dtype, context_len: int
) -> LlamaWeights:
    """Every weight in ``dtype``; a layer's query, key and value become one matrix, gate and up too.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``weights.find_model``.
    """
    raw: dict[str, Tensor] = {}
    for file in weight_files(directory):
        raw |= {name: tensor.to(dtype) for name, tensor in load_file(file).items()}

    def stack(*parts: str) -> Tensor:
        """Matrices of all layers, side by side: [layers, sum of output sizes, input size]."""
        layers = [
            torch.cat([raw.pop(f"model.layers.{index}.{part}.weight") for part in parts])
            for index in range(config.num_hidden_layers)
        ]
        return torch.stack(layers)

    embed = raw["model.embed_tokens.weight"]
    cos, sin = rope_tables(config, context_len)
    return LlamaWeights(
        embed=embed,
        attention_norm=stack("input_layernorm"),
        qkv=stack("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=stack("self_attn.o_proj"),
        mlp_norm=stack("post_attention_layernorm"),
        gate_up=stack("mlp.gate_proj", "mlp.up_proj"),
        down=stack("mlp.down_proj"),
        final_norm=raw["model.norm.weight"],
        head=embed if config.tie_word_embeddings else raw["lm_head.weight"],
        cos=cos.to(dtype),
        sin=sin.to(dtype),
        eps=config.rms_norm_eps,
    )


def rope_tables(config: LlamaConfig, context_len: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context_len, head_dim], in float32 as in transformers."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angles = torch.arange(context_len).float()[:, None] / config.rope_theta**exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()
