"""What torch's and MLX's Llama have in common: a checked directory, and which rows go together.

The layout is Hugging Face's: config.json, one or more safetensors files, often tokenizer.json.
``find_model`` checks all of it before anything is loaded, and reads only the headers of the
safetensors files. Every complaint is one sentence that names the directory and the file.
``LlamaConfig`` is what a forward needs of config.json: of a Llama's, or a dense Qwen's.
``write_tiny_llama`` writes a directory with random weights, for tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import pi
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple

from .fetch import SOURCES, WeightsError, fetched

AUTO = "auto"  # of dtypes: the checkpoint's own
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
EMBED = "model.embed_tokens.weight"
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model*.safetensors",
    INDEX,
]


def find_model(name_or_dir: str | Path) -> Path:
    """The checked directory of a fetched model, of a path, or of a Hugging Face id ``org/name``.

    A Hugging Face id is downloaded (or taken from the hub's cache).

    Raises:
        WeightsError: there is no such model, or its directory is not a whole Llama.
        FetchError: a fetched one has lost a file.
    """
    name = str(name_or_dir)
    if name in SOURCES:
        found = fetched(name)
        if found is None:
            raise WeightsError(f"{name} is not on this machine yet; run: minisched fetch {name}")
        directory = found
    elif name and Path(name).is_dir():
        directory = Path(name)
    elif re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        directory = _from_hub(name)
    else:
        known = ", ".join(sorted(SOURCES))
        raise WeightsError(
            f"No model {name!r}: it is no known name ({known}), no directory, "
            "and no Hugging Face id (org/name)."
        )
    check_tensors(directory, read_config(directory))
    return directory


def read_config(directory: Path) -> LlamaConfig:
    """config.json, with the end-of-text ids of generation_config.json where there is one."""
    more = "generation_config.json"
    generation = _json(directory, more) if (directory / more).is_file() else {}
    return LlamaConfig.from_json(_json(directory, "config.json"), generation, str(directory))


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files in order: model.safetensors, or the shards that its index names."""
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if (directory / INDEX).is_file():
        shards = _json(directory, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise WeightsError(f"{directory / INDEX} has no weight_map of names to files.")
        return [directory / shard for shard in sorted(set(shards.values()))]
    raise WeightsError(f"{directory} lacks model.safetensors (or {INDEX} and its shards).")


def choose_dtype(directory: Path, wanted: str, known: Mapping[str, object], library: str) -> str:
    """The name of the dtype to compute in: ``wanted``, or for ``auto`` the checkpoint's own.

    That is the embeddings' dtype in the files: bfloat16 stays bfloat16, everything else is float32.
    (vLLM and SGLang read it in config.json, keep float16, and make float16 of float32; here auto
    means the same on every device.)

    Raises:
        ValueError: ``wanted`` is neither ``auto`` nor ``known`` to the library.
    """
    if wanted == AUTO:
        return "bfloat16" if _headers(directory)[EMBED][1] == "BF16" else "float32"
    if wanted not in known:
        names = ", ".join([AUTO, *known])
        raise ValueError(f"dtype is {wanted!r}, but with {library} it must be one of {names}.")
    return wanted


def check_tensors(directory: Path, config: LlamaConfig) -> None:
    """Raise WeightsError at the first tensor that is missing, misshapen or not of floats."""
    found = _headers(directory)
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


def _headers(directory: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor; the library checks that the files are whole."""
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
    """A JSON object read from a file, or WeightsError where it is missing or is none."""
    try:
        content = json.loads((directory / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{directory} lacks {file}.") from None
    except (ValueError, OSError) as error:
        raise WeightsError(f"{directory / file} is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{directory / file} is not a JSON object.")
    return content


def _from_hub(name: str) -> Path:
    """A snapshot of a Hugging Face repository, downloaded unless it is in the hub's cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise WeightsError(
            f"{name} needs the package huggingface_hub; run: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises many kinds, all meaning: not here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{name} could not be taken from Hugging Face: {reason}") from error


# -- config.json, and the tensors that a model of it has -------------------------------------------

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

    All by ``factor`` (``linear``); or (``llama3``) those that turn less than ``low_freq_factor``
    times within ``original_len`` positions, and with a slope up to ``high_freq_factor`` times.
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

        Defaults are transformers' (``LlamaConfig``, ``Qwen2Config``, ``Qwen3Config``).

        Raises:
            WeightsError: another model type, an unsupported setting, or a value out of range.
        """
        read = _Reader(config, f"{where}/config.json")
        kind = read.model_type()
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
        """One of ``MODEL_TYPES``, with nothing on that is not built here."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in MODEL_TYPES:
            known = " and ".join(", ".join(map(repr, MODEL_TYPES)).rsplit(", ", 1))
            raise WeightsError(f"{self.where}: model_type is {kind!r}; only {known} are supported.")
        for name, allowed in UNSUPPORTED.items():
            if (value := self.config.get(name, allowed[0])) not in allowed:
                raise WeightsError(f"{self.where}: {name} {value!r} is not supported.")
        types = self.config.get("layer_types") or []
        for layer in types if isinstance(types, list) else [types]:
            if layer != "full_attention":
                raise WeightsError(f"{self.where}: a layer of type {layer!r} is not supported.")
        return kind

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
        value = default if self.config.get(name) is None else self.config[name]
        if value is None:
            raise WeightsError(f"{self.where}: {name} is missing.")
        return value


# -- Which rows of a batch attend together: neighbours that compute equally many positions ---------

TOGETHER = 32  # positions; rows that compute more fill a kernel alone, and need the memory


class RowRun(NamedTuple):
    """Neighbouring rows of a batch with one extent, and where in it their tokens lie."""

    rows: slice  # of the batch's rows
    tokens: slice  # of the flat batch
    extend_len: int  # positions that each row computes


def equal_extents(extend_lens: Sequence[int]) -> Iterator[RowRun]:
    """The runs of a batch, in order: all rows of a decode, and of a verify step with its drafts.

    Rows that compute more than ``TOGETHER`` positions, which only prompts do, attend one by one.
    """
    row = token = 0
    for extend_len, group in groupby(extend_lens):
        alone = extend_len > TOGETHER
        count = len(list(group))
        for size in [1] * count if alone else [count]:
            end = token + size * extend_len
            yield RowRun(slice(row, row + size), slice(token, end), extend_len)
            row, token = row + size, end


# -- A tiny random Llama, so that tests of real forwards need no download --------------------------

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
