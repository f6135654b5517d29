"""The common parts of torch's and MLX's Llama: a checked directory, its weights, and runs of rows.

The layout is Hugging Face's: config.json, one or more safetensors files, often tokenizer.json.
``check_tensors`` checks all of it before anything is loaded, and reads only the headers of the
safetensors files. Every error is one sentence that names the directory and the file.
``LlamaConfig`` contains the values of config.json that a forward needs: a Llama's, or a dense
Qwen's. ``write_tiny_llama`` writes a directory with random weights, for tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import pi, prod
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple

AUTO = "auto"  # of dtypes: the checkpoint's own
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")
EMBED = "model.embed_tokens.weight"
MATRICES = ("qkv", "out", "gate_up", "down")  # of each layer


class WeightsError(ValueError):
    """A model cannot be used; the message is one sentence with the reason."""


def read_config(directory: Path) -> LlamaConfig:
    """Read config.json, with the end-of-text ids of generation_config.json if that exists."""
    more = "generation_config.json"
    generation = _json(directory, more) if (directory / more).is_file() else {}
    return LlamaConfig.from_json(_json(directory, "config.json"), generation, str(directory))


def is_llama(directory: Path) -> bool:
    """Return whether config.json is that of a Llama without settings that are not built here.

    Raises:
        WeightsError: config.json is missing or damaged.
    """
    config = _json(directory, "config.json")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
    is_plain = config.get("model_type") == "llama" and kind in (None, "default")
    return is_plain and not unsupported(config)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files in order: model.safetensors, or the shards of its index."""
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if (directory / INDEX).is_file():
        shards = _json(directory, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise WeightsError(f"{directory / INDEX} has no weight_map of names to files.")
        return [directory / shard for shard in sorted(set(shards.values()))]
    raise WeightsError(f"{directory} lacks model.safetensors (or {INDEX} and its shards).")


def choose_dtype(directory: Path, wanted: str, known: Mapping[str, object], library: str) -> str:
    """Return the name of the dtype to compute in: ``wanted``, or for ``auto`` the checkpoint's.

    The checkpoint's is the largest tensor's dtype in the files: bfloat16 stays bfloat16, everything
    else is float32. (vLLM and SGLang read it in config.json, keep float16, and make float16 of
    float32. Here auto means the same on every device.)

    Raises:
        ValueError: ``wanted`` is neither ``auto`` nor ``known`` to the library.
    """
    if wanted == AUTO:
        largest = max(read_headers(directory).values(), key=lambda tensor: prod(tensor[0]))
        return "bfloat16" if largest[1] == "BF16" else "float32"
    if wanted not in known:
        names = ", ".join([AUTO, *known])
        raise ValueError(f"dtype is {wanted!r}, but with {library} it must be one of {names}.")
    return wanted


def check_tensors(directory: Path, config: LlamaConfig) -> None:
    """Raise WeightsError at the first tensor that is missing, misshapen or not of floats."""
    found = read_headers(directory)
    for name, shape in config.tensor_shapes():
        if name not in found:
            raise WeightsError(f"{directory} lacks the tensor {name}.")
        got, dtype = found[name]
        if got != shape:
            raise WeightsError(
                f"{directory}: the tensor {name} has shape {list(got)}, "
                f"but config.json asks for {list(shape)}."
            )
        if dtype not in FLOATS:
            raise WeightsError(
                f"{directory}: the tensor {name} is {dtype}; expected one of {', '.join(FLOATS)}."
            )


def read_headers(directory: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and type of each tensor; the library checks that the files are whole.

    Raises:
        WeightsError: a file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    found = {}
    for file in weight_files(directory):
        if not file.is_file():
            raise WeightsError(f"{directory} lacks {file.name}.")
        try:
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    found[name] = tuple(part.get_shape()), part.get_dtype()
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{file} is not a whole safetensors file ({error}).") from error
    return found


def _json(directory: Path, file: str) -> dict[str, Any]:
    """Read a JSON object from a file; raise WeightsError where it is missing or of another type."""
    try:
        content = json.loads((directory / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{directory} lacks {file}.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise WeightsError(f"{directory / file} is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{directory / file} is not a JSON object.")
    return content


# -- config.json, and the tensors that a model of it has -------------------------------------------

# transformers' defaults where model types differ: (context, key-value heads, head_dim); None:
# as many as attention heads, and the hidden size over them
MODEL_TYPES: dict[str, tuple[int, int | None, int | None]] = {
    "llama": (2048, None, None),
    "qwen2": (32_768, 32, None),
    "qwen3": (32_768, 32, 128),
    "mistral": (131_072, 8, None),
}
MISTRAL_WINDOW = 4096  # transformers' default; null in config.json switches it off
QUANTIZED = ("quantization", "quantization_config")
# A setting that would change the result but is not built here, and the values that leave it off.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
ROPE_TYPES = ("default", "llama3")
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of rotary frequencies, for texts longer than the first training's.

    Frequencies with fewer than ``low_freq_factor`` turns within ``original_len`` positions are
    divided by ``factor``; those up to ``high_freq_factor`` turns, with a slope.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int

    def of(self, frequency: float) -> float:
        """Return the new frequency, in radians a position (transformers modeling_rope_utils.py)."""
        turns = self.original_len * frequency / (2 * pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = min(max(0.0, (turns - self.low_freq_factor) / span), 1.0)
        return (1 - kept) * frequency / self.factor + kept * frequency


@dataclass(frozen=True)
class LlamaConfig:
    """The values that a forward needs; the names are Hugging Face's."""

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
    qk_norm: bool = False  # each head's query and key are normalized before they are turned

    @classmethod
    def from_json(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], where: str
    ) -> LlamaConfig:
        """Read config.json and generation_config.json (empty if there is none) of ``where``.

        Raises:
            WeightsError: another model type, an unsupported setting, or a value out of range.
        """
        try:
            return cls(**read_fields(config), eos_ids=eos_of(config) | eos_of(generation))
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise WeightsError(f"{where}/config.json: {error}") from error

    def frequencies(self) -> list[float]:
        """Return the radians by which a position turns each pair of a head, [head_dim / 2]."""
        scaling, width = self.rope_scaling, self.head_dim
        plain = [self.rope_theta ** (-at / width) for at in range(0, width, 2)]
        return [scaling.of(each) for each in plain] if scaling else plain

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape [out, in] of each tensor, in the order of the forward."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))
        norms = ("self_attn.q_norm", "self_attn.k_norm") if self.qk_norm else ()
        qkv = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]
        layer: list[tuple[str, tuple[int, ...]]] = [
            ("input_layernorm.weight", (hidden,)),
            *((f"{part}.weight", (size, hidden)) for part, size in qkv),
            *((f"{part}.bias", (size,)) for part, size in qkv if self.qkv_bias),
            *((f"{norm}.weight", (self.head_dim,)) for norm in norms),
            ("self_attn.o_proj.weight", (hidden, q)),
            ("post_attention_layernorm.weight", (hidden,)),
            ("mlp.gate_proj.weight", (inner, hidden)),
            ("mlp.up_proj.weight", (inner, hidden)),
            ("mlp.down_proj.weight", (hidden, inner)),
        ]
        yield EMBED, (self.vocab_size, hidden)
        for index in range(self.num_hidden_layers):
            for part, shape in layer:
                yield f"model.layers.{index}.{part}", shape
        yield "model.norm.weight", (hidden,)
        if not self.tie_word_embeddings:
            yield "lm_head.weight", (self.vocab_size, hidden)


def read_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ``LlamaConfig`` except ``eos_ids``.

    Defaults are transformers' (``LlamaConfig``, ``Qwen2Config``, ``Qwen3Config``).

    Raises:
        ValueError: another model type, an unsupported setting, or a value out of range.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        known = " and ".join(", ".join(map(repr, MODEL_TYPES)).rsplit(", ", 1))
        raise ValueError(f"model_type is {kind!r}; only {known} are supported.")
    if reason := unsupported(config):
        raise ValueError(reason)
    context, kv_heads, head_dim = MODEL_TYPES[kind]
    fields = {name: number(config, name, int) for name in SIZES}
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    if "num_key_value_heads" in config:
        kv_heads = None  # null is no default: with it, heads share no keys or values
    kv_heads = number(config, "num_key_value_heads", int, kv_heads or heads)
    head_dim = number(config, "head_dim", int, head_dim or hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ValueError(
            f"{heads} attention heads cannot share {kv_heads} key-value heads of head_dim "
            f"{head_dim} (a divisor, and an even width)."
        )
    max_len = number(config, "max_position_embeddings", int, context)
    if kind == "mistral":
        check_window(config, max_len)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = number(config, "rope_theta", float, 10_000.0)
    return {
        **fields,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_len,
        "rms_norm_eps": number(config, "rms_norm_eps", float, 1e-6),
        "rope_theta": number(rope, "rope_theta", float, theta),
        "tie_word_embeddings": config.get("tie_word_embeddings") is True,
        "rope_scaling": read_scaling(rope, max_len),
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
    }


def unsupported(config: Mapping[str, Any]) -> str:
    """Return a sentence on the first setting that is not built here; empty if there is none."""
    if any(config.get(name) is not None for name in QUANTIZED):
        return (
            "the weights are quantized, but only float32, float16 and bfloat16 are read; take the "
            "checkpoint that they were made from (of mlx-community, one with a name in -bf16)."
        )
    for name, allowed in UNSUPPORTED.items():
        if config.get(name) not in (None, *allowed):
            return f"{name} {config[name]!r} is not supported."
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        return f"layer_types {config['layer_types']!r} is not supported."
    return ""


def check_window(config: Mapping[str, Any], max_len: int) -> None:
    """Accept a Mistral that attends to the whole context; it is then a Llama in form.

    Raises:
        ValueError: its sliding window is shorter than the context of ``max_len`` tokens.
    """
    window = {"sliding_window": MISTRAL_WINDOW, **config}["sliding_window"]
    if window is not None and number({"sliding_window": window}, "sliding_window", int) < max_len:
        raise ValueError(
            f"sliding_window is {window}, below the context of {max_len}, and sliding windows are "
            "not supported; take a Mistral of version 0.2 or later, which has none."
        )


def read_scaling(rope: Mapping[str, Any], max_len: int) -> RopeScaling | None:
    """Return the scaling of ``rope_scaling``, or ``rope_parameters``.

    ``max_len`` is the length of the longest text.

    Raises:
        ValueError: something that is not built here, or a number out of range.
    """
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind not in ROPE_TYPES or any(isinstance(value, dict) for value in rope.values()):
        names = ", ".join(ROPE_TYPES)
        raise ValueError(f"rope of type {kind!r} is not supported; only {names} are.")
    if kind == "default":
        return None
    factor = number(rope, "factor", float)
    low: float = number(rope, "low_freq_factor", float)
    high: float = number(rope, "high_freq_factor", float)
    if low >= high:
        raise ValueError(f"low_freq_factor is {low}, but it must be below {high}.")
    original = number(rope, "original_max_position_embeddings", int, max_len)
    return RopeScaling(factor, low, high, original)


def number(config: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return a number above 0; where it is absent or null, ``default``.

    Raises:
        ValueError: it is something else, or it is missing and has no default.
    """
    found = default if config.get(name) is None else config[name]
    value = float(found) if kind is float and type(found) is int else found
    is_in_range = isinstance(value, int | float) and 0 < value <= float_info.max
    if type(value) is not kind or not is_in_range:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is {found!r}, not {what} above 0.")
    return value


def eos_of(config: Mapping[str, Any]) -> frozenset[int]:
    """Return ``eos_token_id``: absent, one id, or a list of ids.

    Raises:
        ValueError: it is something else.
    """
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ValueError(f"eos_token_id is {value!r}, not an id or a list.")
    return frozenset(ids)


# -- Weights, in the arrays of torch or of MLX -----------------------------------------------------


class Weights(NamedTuple):
    """Every weight, and what a forward takes from the configuration.

    ``layers`` has by name a list with an entry for each layer; ``dim`` is the hidden size, ``d`` a
    head's, ``width`` that of the MLP. There are ``attention_norm`` and ``mlp_norm`` [dim], ``qkv``
    [(heads + 2 kv_heads) * d, dim], ``out`` [dim, heads * d], ``gate_up`` [2 * width, dim] and
    ``down`` [dim, width]; of models that have them, ``qkv_bias`` [(heads + 2 kv_heads) * d] and
    ``qk_norm`` [heads + kv_heads, d]. Matrices lie as the library wants them.
    """

    embed: Any  # [vocab, dim]
    layers: dict[str, list[Any]]
    final_norm: Any  # [dim]
    head: Any  # [vocab, dim], a matrix
    cos: Any  # [context_len, d] of the rotary embedding, for both halves of a head
    sin: Any  # [context_len, d]
    eps: float  # of the norms


def read_weights(
    directory: Path,
    config: LlamaConfig,
    context_len: int,
    xp: Any,
    dtype: Any,
    load: Callable[[Path], Mapping[str, Any]],
    matrix: Callable[[Any], Any],
) -> Weights:
    """Read every weight in ``dtype``; query, key and value of a layer become one matrix.

    Gate and up become one matrix, too. ``xp`` are the library's arrays
    (``sampling_arrays.arrays_of``), ``load`` reads a safetensors file, and ``matrix`` puts [out,
    in] in the fastest order.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``fetch.find_model``.
    """
    import numpy as np

    raw: dict[str, Any] = {}
    for file in weight_files(directory):
        raw |= {name: xp.numbers(tensor, dtype) for name, tensor in load(file).items()}

    def joined(kind: str, *parts: str) -> list[Any]:
        """Return each layer's weights or biases of the parts, joined: [sum of sizes, ...]."""
        names, found = [f"model.layers.{{}}.{part}.{kind}" for part in parts], []
        for layer in range(config.num_hidden_layers):
            whole = xp.lib.concatenate([raw.pop(name.format(layer)) for name in names])
            found.append(matrix(whole) if whole.ndim == 2 else whole)
        return found

    embed, qkv = raw[EMBED], [f"self_attn.{part}_proj" for part in "qkv"]
    layers = {
        "attention_norm": joined("weight", "input_layernorm"),
        "qkv": joined("weight", *qkv),
        "out": joined("weight", "self_attn.o_proj"),
        "mlp_norm": joined("weight", "post_attention_layernorm"),
        "gate_up": joined("weight", "mlp.gate_proj", "mlp.up_proj"),
        "down": joined("weight", "mlp.down_proj"),
    }
    if config.qkv_bias:
        layers["qkv_bias"] = joined("bias", *qkv)
    if config.qk_norm:
        norms = [joined("weight", f"self_attn.{part}_norm") for part in "qk"]
        counts = config.num_attention_heads, config.num_key_value_heads
        layers["qk_norm"] = [
            xp.lib.stack([norm for norm, count in zip(pair, counts, strict=True)
                          for _ in range(count)])
            for pair in zip(*norms, strict=True)
        ]  # fmt: skip
    positions = np.arange(context_len, dtype=np.float32)  # in float32, as in transformers
    angles = np.outer(positions, np.array(config.frequencies() * 2, np.float32))
    return Weights(
        embed=embed,
        layers=layers,
        final_norm=raw["model.norm.weight"],
        head=matrix(embed if config.tie_word_embeddings else raw["lm_head.weight"]),
        cos=xp.numbers(np.cos(angles), dtype),
        sin=xp.numbers(np.sin(angles), dtype),
        eps=config.rms_norm_eps,
    )


# -- Rows of a batch that attend together: neighbours that compute equally many positions ----------

TOGETHER = 32  # positions; rows that compute more fill a kernel alone, and need the memory


class RowRun(NamedTuple):
    """Neighbouring rows of a batch with one extent, and the place of their tokens."""

    rows: slice  # of the batch's rows
    tokens: slice  # of the flat batch
    extend_len: int  # positions that each row computes


def equal_extents(extend_lens: Sequence[int]) -> Iterator[RowRun]:
    """Yield the runs of a batch, in order: all rows of a decode, or of a verify step with drafts.

    Rows that compute more than ``TOGETHER`` positions, which only prompts do, attend singly.
    """
    row = token = 0
    for extend_len, group in groupby(extend_lens):
        alone = extend_len > TOGETHER
        count = len(list(group))
        for size in [1] * count if alone else [count]:
            end = token + size * extend_len
            yield RowRun(slice(row, row + size), slice(token, end), extend_len)
            row, token = row + size, end


# -- A tiny random Llama, for tests of real forwards without a download ----------------------------

# Wide logits and sharp attention: without either, sequences soon repeat.
SCALE = {"lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0, "q_norm": 2.0, "k_norm": 2.0}
BIAS = 0.2  # a bias's standard deviation: of the size of its terms
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

    The numbers depend on ``seed`` alone, and are of a normal distribution, times their part's entry
    in SCALE: a matrix [out, in] has std 1 / sqrt(in), a bias ``BIAS``. The head is not tied to the
    embeddings: with random weights that makes every sequence repeat one token. ``more`` of
    config.json takes the place of what is there; norms are random then, so that none can be
    mistaken for another.

    Raises:
        WeightsError: sizes do not fit together.
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
    config = LlamaConfig.from_json(settings, {}, where=str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    random, norms = np.random.default_rng(seed), 0.3 if more else 0.0
    tensors: dict[str, Any] = {}
    for name, shape in config.tensor_shapes():
        scale = np.float32(SCALE.get(name.split(".")[-2], 1.0))
        is_norm = name.endswith("norm.weight")
        if is_norm and not norms:
            tensors[name] = np.full(shape, scale)
            continue
        std = norms if is_norm else BIAS if len(shape) == 1 else 1 / np.sqrt(shape[-1])
        drawn = random.standard_normal(shape, np.float32) * np.float32(std)
        tensors[name] = (drawn + np.float32(is_norm)) * scale
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
