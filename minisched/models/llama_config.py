"""What a Llama's or a dense Qwen's forward needs of config.json, and the tensors it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import pi
from sys import float_info
from typing import Any


class WeightsError(ValueError):
    """A model cannot be used; the message says why in one sentence."""


# transformers' defaults where model types differ: (context, key-value heads, head_dim); None:
# as many as attention heads, and the hidden size over them
MODEL_TYPES: dict[str, tuple[int, int | None, int | None]] = {
    "llama": (2048, None, None),
    "qwen2": (32_768, 32, None),
    "qwen3": (32_768, 32, 128),
}
# A setting that would change the result but is not built here, and the values that leave it off.
UNSUPPORTED = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
    "quantization": (None,),
}
ROPE_TYPES = ("default", "linear", "llama3")
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched, for texts longer than the first training's.

    All by ``factor`` (``linear``); or those of long waves by it and those of short ones not at all,
    with a slope between (``llama3``): short is what turns more than ``high_freq_factor`` times
    within ``original_len`` positions, long what turns less than ``low_freq_factor`` times.
    """

    factor: float
    low_freq_factor: float = float_info.max  # linear: every wave is long
    high_freq_factor: float = float_info.max
    original_len: int = 1

    def of(self, frequency: float) -> float:
        """The frequency to turn by, in radians a position (transformers modeling_rope_utils.py)."""
        turns = self.original_len * frequency / (2 * pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - kept) * frequency / self.factor + kept * frequency


@dataclass(frozen=True)
class LlamaConfig:
    """What the forward needs to know; the names are Hugging Face's."""

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
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False  # added to queries, keys and values
    out_bias: bool = False  # added to what attention gives
    mlp_bias: bool = False
    qk_norm: bool = False  # each head's query and key are normalized before they are turned

    @classmethod
    def from_json(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], where: str
    ) -> LlamaConfig:
        """From config.json and generation_config.json (empty if there is none) in ``where``.

        Defaults are transformers' (``LlamaConfig``, ``Qwen2Config``, ``Qwen3Config``). Raises
        WeightsError for another model type, for an unsupported setting, and for a value out of
        range.
        """
        read = _Reader(config, f"{where}/config.json")
        kind = read.model_type()
        read.refuse_unsupported()
        sizes = {name: read.count(name) for name in SIZES}
        heads = sizes["num_attention_heads"]
        context, kv_heads, head_dim = MODEL_TYPES[kind]
        if "num_key_value_heads" in read.config:
            kv_heads = None  # null is no default: it says that heads share nothing
        max_len = read.count("max_position_embeddings", context)
        rope = read.rope()
        bias = kind != "qwen2" and read.flag("attention_bias")
        built = cls(
            **sizes,
            num_key_value_heads=read.count("num_key_value_heads", kv_heads or heads),
            head_dim=read.count("head_dim", head_dim or sizes["hidden_size"] // heads),
            max_position_embeddings=max_len,
            rms_norm_eps=read.positive("rms_norm_eps", 1e-6),
            rope_theta=rope.positive("rope_theta", read.positive("rope_theta", 10_000.0)),
            tie_word_embeddings=config.get("tie_word_embeddings") is True,
            eos_ids=read.eos_ids()
            | _Reader(generation, f"{where}/generation_config.json").eos_ids(),
            rope_scaling=rope.scaling(max_len),
            qkv_bias=kind == "qwen2" or bias,
            out_bias=bias,
            mlp_bias=kind == "llama" and read.flag("mlp_bias"),
            qk_norm=kind == "qwen3",
        )
        if heads % built.num_key_value_heads or built.head_dim % 2:
            raise WeightsError(
                f"{read.where}: {heads} attention heads cannot share {built.num_key_value_heads} "
                f"key-value heads of head_dim {built.head_dim} (a divisor, and an even width)."
            )
        return built

    def frequencies(self) -> list[float]:
        """By how many radians a position turns each pair of a head's numbers, [head_dim / 2]."""
        scaling, width = self.rope_scaling, self.head_dim
        plain = [self.rope_theta ** (-at / width) for at in range(0, width, 2)]
        return [scaling.of(each) for each in plain] if scaling else plain

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape [out, in] of each tensor, in the order of the forward."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))
        norms = ("self_attn.q_norm", "self_attn.k_norm") if self.qk_norm else ()
        layer: list[tuple[str, tuple[int, ...], bool]] = [  # the last: with a bias
            ("input_layernorm", (hidden,), False),
            ("self_attn.q_proj", (q, hidden), self.qkv_bias),
            ("self_attn.k_proj", (kv, hidden), self.qkv_bias),
            ("self_attn.v_proj", (kv, hidden), self.qkv_bias),
            *((norm, (self.head_dim,), False) for norm in norms),
            ("self_attn.o_proj", (hidden, q), self.out_bias),
            ("post_attention_layernorm", (hidden,), False),
            ("mlp.gate_proj", (inner, hidden), self.mlp_bias),
            ("mlp.up_proj", (inner, hidden), self.mlp_bias),
            ("mlp.down_proj", (hidden, inner), self.mlp_bias),
        ]
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for index in range(self.num_hidden_layers):
            for part, shape, has_bias in layer:
                yield f"model.layers.{index}.{part}.weight", shape
                if has_bias:
                    yield f"model.layers.{index}.{part}.bias", shape[:1]
        yield "model.norm.weight", (hidden,)
        if not self.tie_word_embeddings:
            yield "lm_head.weight", (self.vocab_size, hidden)


@dataclass(frozen=True)
class _Reader:
    """Reads values out of config.json, with one sentence for each that is wrong."""

    config: Mapping[str, Any]
    where: str

    def model_type(self) -> str:
        """One of ``MODEL_TYPES``."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in MODEL_TYPES:
            known = " and ".join(", ".join(map(repr, MODEL_TYPES)).rsplit(", ", 1))
            raise WeightsError(f"{self.where}: model_type is {kind!r}; only {known} are supported.")
        return kind

    def refuse_unsupported(self) -> None:
        """Raise where a setting is on that is not built here."""
        for name, allowed in UNSUPPORTED.items():
            if (value := self.config.get(name, allowed[0])) not in allowed:
                raise WeightsError(f"{self.where}: {name} {value!r} is not supported.")
        types = self.config.get("layer_types") or []
        for kind in types if isinstance(types, list) else [types]:
            if kind != "full_attention":
                raise WeightsError(f"{self.where}: a layer of type {kind!r} is not supported.")

    def rope(self) -> _Reader:
        """A reader of ``rope_scaling``, or what newer files call ``rope_parameters``."""
        found = {}
        for name in ("rope_scaling", "rope_parameters"):
            if rope := self.config.get(name):
                if not isinstance(rope, dict):
                    raise WeightsError(f"{self.where}: {name} is {rope!r}, not an object.")
                found[name] = rope
        if len(found) > 1 and found["rope_scaling"] != found["rope_parameters"]:
            raise WeightsError(
                f"{self.where}: rope_scaling and rope_parameters are there, and differ."
            )
        name, rope = found.popitem() if found else ("rope_parameters", {})
        kind = rope.get("rope_type", rope.get("type", "default")) or "default"
        by_layer = any(isinstance(value, dict) for value in rope.values())
        partial = rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor"))
        if kind not in ROPE_TYPES:
            raise WeightsError(
                f"{self.where}: {name} of type {kind!r} is not supported; "
                f"only {', '.join(ROPE_TYPES)} are."
            )
        if by_layer or (kind != "default" and partial not in (None, 1)):  # transformers, too,
            # ignores a partial factor where nothing is scaled
            what = "by layer type" if by_layer else f"with partial_rotary_factor {partial!r}"
            raise WeightsError(f"{self.where}: {name} {what} is not supported.")
        return _Reader({**rope, "rope_type": kind}, f"{self.where}: {name}")

    def scaling(self, max_len: int) -> RopeScaling | None:
        """What a reader of ``rope_scaling`` asks for; ``max_len`` is the longest text."""
        if self.config["rope_type"] == "default":
            return None
        factor = self.positive("factor")
        if self.config["rope_type"] == "linear":
            return RopeScaling(factor)
        low, high = self.positive("low_freq_factor"), self.positive("high_freq_factor")
        if low >= high:
            raise WeightsError(
                f"{self.where}: low_freq_factor is {low}, but it must be below high_freq_factor, "
                f"which is {high}."
            )
        original = self.count("original_max_position_embeddings", max_len)
        return RopeScaling(factor, low, high, original)

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self.config.get(name)
        if not isinstance(value, bool | None):
            raise WeightsError(f"{self.where}: {name} is {value!r}, not true or false.")
        return value is True

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise WeightsError(f"{self.where}: {name} is {value!r}, not a whole number above 0.")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
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
