"""A checkpoint's directory in Hugging Face's form, and a Llama's configuration.

A directory has config.json, one or more safetensors files, and often tokenizer.json. Every error is
one sentence that names the directory and the file. ``find_llama`` recognizes a plain Llama, which
this project computes itself (``llama_torch.py``). A library computes everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

AUTO = "auto"  # of dtypes: the checkpoint's own
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")
EMBED = "model.embed_tokens.weight"


class WeightsError(ValueError):
    """A model cannot be used; the message is one sentence with the reason."""


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files in order: model.safetensors, or the shards of its index."""
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if (directory / INDEX).is_file():
        shards = read_json(directory, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise WeightsError(f"{directory / INDEX} has no weight_map of names to files.")
        return [directory / shard for shard in sorted(set(shards.values()))]
    raise WeightsError(f"{directory} lacks model.safetensors (or {INDEX} and its shards).")


def choose_dtype(directory: Path, wanted: str, known: Mapping[str, object], library: str) -> str:
    """Return the name of the dtype to compute in: ``wanted``, or for ``auto`` the checkpoint's.

    The checkpoint's is the largest tensor's dtype in the files: bfloat16 stays bfloat16, any other
    is float32. (vLLM and SGLang read it in config.json, keep float16, and make float16 of
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


def read_json(directory: Path, file: str) -> dict[str, Any]:
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


# -- A plain Llama: its configuration, and the tensors that it has ---------------------------------

PLAIN: dict[str, Any] = {  # settings of config.json, with the value that an absent one means
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1,
    "quantization": None,
    "quantization_config": None,
}
DEFAULTS = {  # transformers' for a Llama
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


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

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> LlamaConfig | None:
        """Return the values of config.json; None if it is not that of a plain Llama."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        given = {name: value for name, value in config.items() if value is not None}
        if (
            given.get("model_type") != "llama"
            or any(given.get(name, value) != value for name, value in PLAIN.items())
            or not isinstance(rope, dict)
            or rope.get("rope_type", rope.get("type", "default")) != "default"
            or rope.get("partial_rotary_factor", 1) != 1
        ):
            return None
        try:
            heads = given["num_attention_heads"]
            of_heads = {
                "num_key_value_heads": heads,
                "head_dim": given["hidden_size"] // heads,
            }
            theta = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
            filled = {**DEFAULTS, **of_heads, **given, **theta}
            found = cls(**{name: filled[name] for name in cls.__dataclass_fields__})
            return found if found.is_sound else None
        except (ArithmeticError, KeyError, TypeError):
            return None

    @property
    def is_sound(self) -> bool:
        """Return whether every number is in its range, and the heads fit together."""
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        *sizes, eps, theta, length, is_tied = values
        return (
            all(type(size) is int and size > 0 for size in (*sizes, length))
            and all(type(each) in (int, float) and isfinite(each) for each in (eps, theta))
            and min(eps, theta) > 0
            and type(is_tied) is bool
            and self.num_attention_heads % self.num_key_value_heads == 0
            and self.head_dim % 2 == 0
        )

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape [out, in] of each tensor, in the order of the forward."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))
        layer: list[tuple[str, tuple[int, ...]]] = [
            ("input_layernorm", (hidden,)),
            ("self_attn.q_proj", (q, hidden)),
            ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, q)),
            ("post_attention_layernorm", (hidden,)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ]
        yield EMBED, (self.vocab_size, hidden)
        for index in range(self.num_hidden_layers):
            for part, shape in layer:
                yield f"model.layers.{index}.{part}.weight", shape
        yield "model.norm.weight", (hidden,)
        if not self.tie_word_embeddings:
            yield "lm_head.weight", (self.vocab_size, hidden)


def find_llama(directory: Path) -> LlamaConfig | None:
    """Return the configuration of a plain Llama with all its tensors; None for any other model.

    A Llama with a setting that is not built here is another model. So is one with a tensor that is
    missing or misshapen: the library that loads it reports the reason.

    Raises:
        WeightsError: a file is missing or damaged.
    """
    config = LlamaConfig.from_json(read_json(directory, "config.json"))
    headers = read_headers(directory)
    if config is None:
        return None
    found = {name: shape for name, (shape, dtype) in headers.items() if dtype in FLOATS}
    has_all = all(found.get(name) == shape for name, shape in config.tensor_shapes())
    return config if has_all else None


def read_eos_ids(directory: Path) -> frozenset[int]:
    """Return the end-of-text ids of config.json, and of generation_config.json if that exists.

    Raises:
        WeightsError: a file is missing or damaged, or an id is no number.
    """
    files = ["config.json", "generation_config.json"]
    present = files if (directory / files[1]).is_file() else files[:1]
    try:
        return frozenset().union(*(eos_of(read_json(directory, file)) for file in present))
    except ValueError as error:
        raise WeightsError(f"{directory}: {error}") from error


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
