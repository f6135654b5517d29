"""Reads a Llama's tensors into the form that ``llama_mlx_layers.py`` multiplies by."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import mlx.core as mx

from ..devices.mlx_evaluate import evaluate
from .llama_config import LlamaConfig
from .weights import weight_files

TIMINGS = 3  # of which the shortest counts


class LayerWeights(NamedTuple):
    """One layer; ``dim`` is the hidden size, ``d`` a head's, ``width`` that of the MLP."""

    attention_norm: mx.array  # [dim]
    qkv: mx.array  # [dim, (heads + 2 kv_heads) * d]
    out: mx.array  # [heads * d, dim]
    mlp_norm: mx.array  # [dim]
    gate: mx.array  # [dim, width]
    up: mx.array  # [dim, width]
    down: mx.array  # [width, dim]


class LlamaWeights(NamedTuple):
    """Every weight, and what a forward takes from the configuration."""

    embed: mx.array  # [vocab, dim]
    layers: list[LayerWeights]
    final_norm: mx.array  # [dim]
    head: mx.array  # [dim, vocab]
    cos: mx.array  # [context_len, d / 2]
    sin: mx.array  # [context_len, d / 2]
    eps: float  # of the norms
    heads: int
    kv_heads: int


def read_weights(directory: Path, config: LlamaConfig) -> LlamaWeights:
    """Every weight in its own dtype, [in, out] for ``x @ w``, in the order that is quicker.

    Files hold [out, in], and so may the memory.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``weights.find_model``.
    """
    raw: dict[str, mx.array] = {}
    for file in weight_files(directory):
        raw |= mx.load(str(file))  # type: ignore[arg-type]
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    turn = turned_is_quicker(raw[f"{head}.weight"])

    def matrix(*names: str) -> mx.array:
        """Matrices side by side, [in, sum of out]."""
        lying = mx.concatenate([raw[f"{name}.weight"] for name in names]).T
        return mx.contiguous(lying) if turn else lying

    def layer(index: int) -> LayerWeights:
        at = f"model.layers.{index}"
        return LayerWeights(
            attention_norm=raw[f"{at}.input_layernorm.weight"],
            qkv=matrix(*(f"{at}.self_attn.{part}_proj" for part in "qkv")),
            out=matrix(f"{at}.self_attn.o_proj"),
            mlp_norm=raw[f"{at}.post_attention_layernorm.weight"],
            gate=matrix(f"{at}.mlp.gate_proj"),
            up=matrix(f"{at}.mlp.up_proj"),
            down=matrix(f"{at}.mlp.down_proj"),
        )

    embed = raw["model.embed_tokens.weight"]
    cos, sin = rope_tables(config, embed.dtype)
    weights = LlamaWeights(
        embed=embed,
        layers=[layer(index) for index in range(config.num_hidden_layers)],
        final_norm=raw["model.norm.weight"],
        head=matrix(head),
        cos=cos,
        sin=sin,
        eps=config.rms_norm_eps,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
    )
    evaluate(weights)  # type: ignore[arg-type]
    return weights


def turned_is_quicker(weight: mx.array) -> bool:
    """Whether to turn matrices over, by what one row times the largest, [out, in], takes each way.

    The plain BLAS of the stock Linux wheel then adds vectors instead of multiplying them to a
    number each: half the time, the same bits. OpenBLAS takes one and a half times as long. On a
    GPU nothing is timed, so that two processes compute the same.
    """
    if mx.default_device().type == mx.DeviceType.gpu:
        return True
    row = mx.ones((1, weight.shape[1]), weight.dtype)
    return seconds(row, mx.contiguous(weight.T)) < seconds(row, weight.T)


def seconds(row: mx.array, matrix: mx.array) -> float:
    """How long the product takes."""
    evaluate(row, matrix)
    times = []
    for _ in range(TIMINGS):
        start = perf_counter()
        evaluate(row @ matrix)
        times.append(perf_counter() - start)
    return min(times)


def rope_tables(config: LlamaConfig, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Cosines and sines [context_len, d / 2]: what MLX's rotary embedding makes of (1, 0)."""
    half = config.head_dim // 2
    ones = mx.ones((config.max_position_embeddings, half), dtype)
    rotated = mx.fast.rope(
        mx.concatenate([ones, mx.zeros_like(ones)], axis=-1)[None],
        config.head_dim, traditional=False, base=config.rope_theta, scale=1.0, offset=0,
    )  # fmt: skip
    cos, sin = mx.split(rotated[0], 2, axis=-1)
    return cos, sin
