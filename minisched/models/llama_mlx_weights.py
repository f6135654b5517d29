"""Reads a Llama's tensors into the form that ``llama_mlx_layers.py`` multiplies by."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from safetensors import safe_open

from ..devices.mlx_evaluate import evaluate
from .llama_config import LlamaConfig, WeightsError
from .llama_mlx_matrix import Matrix, lay, quickest
from .weights import EMBED, weight_files


class LayerWeights(NamedTuple):
    """One layer; ``dim`` is the hidden size, ``d`` a head's, ``width`` that of the MLP."""

    attention_norm: mx.array  # [dim]
    qkv: Matrix  # [dim, (heads + 2 kv_heads) * d]
    out: Matrix  # [heads * d, dim]
    mlp_norm: mx.array  # [dim]
    gate: Matrix  # [dim, width]
    up: Matrix  # [dim, width]
    down: Matrix  # [width, dim]
    qk_norm: mx.array | None  # [heads + kv_heads, d]: queries and keys are normalized if it's there


class LlamaWeights(NamedTuple):
    """Every weight, and what a forward takes from the configuration."""

    embed: mx.array  # [vocab, dim]
    layers: list[LayerWeights]
    final_norm: mx.array  # [dim]
    head: Matrix  # [dim, vocab]
    cos: mx.array  # [context_len, d / 2]
    sin: mx.array  # [context_len, d / 2]
    eps: float  # of the norms
    heads: int
    kv_heads: int


def read_weights(directory: Path, config: LlamaConfig, dtype: mx.Dtype) -> LlamaWeights:
    """Every weight in ``dtype``; matrices, [out, in] in files, in the layout that is quickest.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``weights.find_model``.
    """
    raw: dict[str, mx.array] = {}
    for file in weight_files(directory):
        raw |= {name: tensor.astype(dtype) for name, tensor in load(file).items()}
    head = EMBED.removesuffix(".weight") if config.tie_word_embeddings else "lm_head"
    asked = {name for name, _ in config.tensor_shapes()}  # files may have more
    layout = quickest(raw[f"{head}.weight"])

    def matrix(*names: str) -> Matrix:
        """Matrices side by side, [in, sum of out]."""
        weight, bias = (
            [raw[full] for name in names if (full := f"{name}.{part}") in asked]
            for part in ("weight", "bias")
        )
        return lay(mx.concatenate(weight), layout, mx.concatenate(bias) if bias else None)

    def qk_norm(at: str) -> mx.array:
        """What each head's query and key are multiplied by."""
        counts = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        norms = {part: raw[f"{at}.self_attn.{part}_norm.weight"] for part in counts}
        return mx.concatenate([mx.tile(norms[part], (n, 1)) for part, n in counts.items()])

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
            qk_norm=qk_norm(at) if config.qk_norm else None,
        )

    embed = raw[EMBED]
    cos, sin = rope_tables(config, dtype)
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


def load(file: Path) -> dict[str, mx.array]:
    """The tensors of one file, float64 as float32: MLX reads no file that has any.

    Raises:
        WeightsError: there is bfloat16 beside float64, which numpy, by which that goes, lacks.
    """
    with safe_open(file, framework="np") as tensors:
        names = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        if "F64" not in names.values():
            found: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
            return found
        if "BF16" in names.values():
            raise WeightsError(f"{file} has float64 beside bfloat16, which can't be read for MLX.")
        return {name: mx.array(tensors.get_tensor(name)) for name in names}


def rope_tables(config: LlamaConfig, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Cosines and sines [context_len, d / 2]: what MLX's rotary embedding makes of (1, 0)."""
    half = config.head_dim // 2
    turning: dict[str, Any] = {"base": config.rope_theta}
    if config.rope_scaling:
        turning = {"base": None, "freqs": mx.array([1 / each for each in config.frequencies()])}
    ones = mx.ones((config.max_position_embeddings, half), dtype)
    rotated = mx.fast.rope(
        mx.concatenate([ones, mx.zeros_like(ones)], axis=-1)[None],
        config.head_dim, traditional=False, scale=1.0, offset=0, **turning,
    )  # fmt: skip
    cos, sin = mx.split(rotated[0], 2, axis=-1)
    return cos, sin
