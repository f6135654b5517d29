"""The sizes of a Llama, read from config.json, and the tensors that they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any


class WeightsError(ValueError):
    """A model cannot be used; the message says why in one sentence."""


# A setting that would change the result but is not built here, and the values that leave it off.
UNSUPPORTED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (None,),
    "quantization": (None,),
}
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


@dataclass(frozen=True)
class LlamaConfig:
    """What a Llama's forward needs to know; the names are Hugging Face's."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_ids: frozenset[int]

    @classmethod
    def from_json(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], where: str
    ) -> LlamaConfig:
        """From config.json and generation_config.json (empty if there is none) in ``where``.

        Defaults are transformers' (``LlamaConfig``). Raises WeightsError for what is not a Llama,
        for an unsupported setting, and for a value out of range.
        """
        read = _Reader(config, f"{where}/config.json")
        read.refuse_unsupported()
        sizes = {name: read.count(name) for name in SIZES}
        heads = sizes["num_attention_heads"]
        rope = config.get("rope_parameters") or {}
        built = cls(
            **sizes,
            num_key_value_heads=read.count("num_key_value_heads", heads),
            head_dim=read.count("head_dim", sizes["hidden_size"] // heads),
            max_position_embeddings=read.count("max_position_embeddings", 2048),
            rms_norm_eps=read.positive("rms_norm_eps", 1e-6),
            rope_theta=read.positive("rope_theta", rope.get("rope_theta", 10_000.0)),
            tie_word_embeddings=config.get("tie_word_embeddings") is True,
            eos_ids=read.eos_ids()
            | _Reader(generation, f"{where}/generation_config.json").eos_ids(),
        )
        if heads % built.num_key_value_heads or built.head_dim % 2:
            raise WeightsError(
                f"{read.where}: {heads} attention heads cannot share {built.num_key_value_heads} "
                f"key-value heads of head_dim {built.head_dim} (a divisor, and an even width)."
            )
        return built

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape [out, in] of each tensor, in the order of the forward."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))
        layer = {
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
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for index in range(self.num_hidden_layers):
            for part, shape in layer.items():
                yield f"model.layers.{index}.{part}.weight", shape
        yield "model.norm.weight", (hidden,)
        if not self.tie_word_embeddings:
            yield "lm_head.weight", (self.vocab_size, hidden)


@dataclass(frozen=True)
class _Reader:
    """Reads values out of config.json, with one sentence for each that is wrong."""

    config: Mapping[str, Any]
    where: str

    def refuse_unsupported(self) -> None:
        """Raise unless this is a plain Llama."""
        if (kind := self.config.get("model_type")) != "llama":
            raise WeightsError(f"{self.where}: model_type is {kind!r}; only 'llama' is supported.")
        for name, allowed in UNSUPPORTED.items():
            if (value := self.config.get(name, allowed[0])) not in allowed:
                raise WeightsError(f"{self.where}: {name} {value!r} is not supported.")
        for name in ("rope_scaling", "rope_parameters"):
            rope = self.config.get(name) or {}
            if not isinstance(rope, dict):
                raise WeightsError(f"{self.where}: {name} is {rope!r}, not an object.")
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind not in ("default", None):
                raise WeightsError(f"{self.where}: {name} of type {kind!r} is not supported.")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise WeightsError(f"{self.where}: {name} is {value!r}, not a whole number above 0.")
        return value

    def positive(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self._value(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= float_info.max:
            raise WeightsError(f"{self.where}: {name} is {value!r}, not a number above 0.")
        return float(value)

    def eos_ids(self) -> frozenset[int]:
        """``eos_token_id``: absent, one id, or a list of ids."""
        value = self.config.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) for token in ids):
            raise WeightsError(f"{self.where}: eos_token_id is {value!r}, not an id or a list.")
        return frozenset(ids)

    def _value(self, name: str, default: Any) -> Any:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise WeightsError(f"{self.where}: {name} is missing.")
        return value
