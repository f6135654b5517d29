"""Reads a Llama's tensors into the matrices that ``llama_torch_layers.py`` works on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from .llama_config import LlamaConfig
from .llama_torch_layers import LlamaWeights
from .weights import EMBED, weight_files

MATRICES = ("qkv", "out", "gate_up", "down")  # of each layer
PACKED_FOR = 16  # rows: packed for fewer, oneDNN's order is slow for many


def read_weights(
    directory: Path, config: LlamaConfig, dtype: torch.dtype, context_len: int, packed: bool = True
) -> LlamaWeights:
    """Every weight in ``dtype``; a layer's query, key and value become one matrix, gate and up too.

    ``packed`` is for the CPU; a GPU wants them plain.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``weights.find_model``.
    """
    keep = pack if packed else plain
    raw: dict[str, Tensor] = {}
    for file in weight_files(directory):
        raw |= {name: tensor.to(dtype) for name, tensor in load_file(file).items()}

    def joined(kind: str, *parts: str) -> list[Tensor]:
        """For each layer its parts' weights or biases in one, [sum of output sizes, ...]."""
        names = [f"model.layers.{{}}.{part}.{kind}" for part in parts]
        return [
            keep(torch.cat([raw.pop(name.format(index)) for name in names]))
            for index in range(config.num_hidden_layers)
        ]

    def layers(*parts: str) -> list[Tensor]:
        """Matrices [sum of output sizes, input size], or norms [dim]."""
        return joined("weight", *parts)

    def biases(there: bool, *parts: str) -> list[Tensor | None]:
        """Biases [sum of output sizes]."""
        none: list[Tensor | None] = [None] * config.num_hidden_layers
        return [*joined("bias", *parts)] if there else none

    embed = raw[EMBED]
    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    cos, sin = rope_tables(config, context_len)
    return LlamaWeights(
        embed=embed,
        attention_norm=torch.stack(layers("input_layernorm")),
        qkv=layers(*qkv),
        qkv_bias=biases(config.qkv_bias, *qkv),
        qk_norm=qk_norms(raw, config),
        out=layers("self_attn.o_proj"),
        out_bias=biases(config.out_bias, "self_attn.o_proj"),
        mlp_norm=torch.stack(layers("post_attention_layernorm")),
        gate_up=layers("mlp.gate_proj", "mlp.up_proj"),
        gate_up_bias=biases(config.mlp_bias, "mlp.gate_proj", "mlp.up_proj"),
        down=layers("mlp.down_proj"),
        down_bias=biases(config.mlp_bias, "mlp.down_proj"),
        final_norm=raw["model.norm.weight"],
        head=keep(embed if config.tie_word_embeddings else raw["lm_head.weight"]),
        cos=cos.to(dtype),
        sin=sin.to(dtype),
        eps=config.rms_norm_eps,
    )


def qk_norms(raw: dict[str, Tensor], config: LlamaConfig) -> list[Tensor | None]:
    """What queries and keys are multiplied by when they are normalized, a row for each head."""
    if not config.qk_norm:
        return [None] * config.num_hidden_layers
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    norms = [
        [raw[f"model.layers.{index}.self_attn.{part}_norm.weight"] for part in "qk"]
        for index in range(config.num_hidden_layers)
    ]
    return [torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)]) for q, k in norms]


def pack(weight: Tensor) -> Tensor:
    """A matrix [out, in] in the order in which oneDNN reads it, if it can; a vector as it is.

    MKL puts a plain float32 matrix in order at every call, and reads it at a third of the rate.
    A tied head lies in memory twice: rows of it are looked up, too.
    """
    known = weight.dtype in (torch.float32, torch.bfloat16)
    if weight.dim() == 1 or weight.is_mkldnn or not known:
        return weight
    if not torch.backends.mkldnn.is_available():
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def plain(weight: Tensor) -> Tensor:
    """A matrix [out, in] in the order in which it was read."""
    return weight.to_dense() if weight.is_mkldnn else weight


def place(weights: LlamaWeights, where: torch.device) -> LlamaWeights:
    """The weights on a device: packed on the CPU, plain elsewhere, and there a tied head once."""
    if where.type == "cpu":
        matrices: dict[str, Any] = {
            name: [pack(part) for part in getattr(weights, name)] for name in MATRICES
        }
        return weights._replace(**matrices, head=pack(weights.head))

    def move(weight: Any) -> Any:
        if isinstance(weight, list):
            return [move(part) for part in weight]
        return plain(weight).to(where) if isinstance(weight, Tensor) else weight

    moved = LlamaWeights(*map(move, weights))
    return moved._replace(head=moved.embed) if weights.head is weights.embed else moved


def rope_tables(config: LlamaConfig, context_len: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context_len, head_dim], in float32 as in transformers."""
    angles = torch.arange(context_len).float()[:, None] * torch.tensor(config.frequencies())
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()
