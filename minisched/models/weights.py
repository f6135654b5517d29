"""Finds a model's directory and checks it before anything is loaded; writes a tiny one, for tests.

The layout is Hugging Face's: config.json, one or more safetensors files, often tokenizer.json.
Only the headers of the safetensors files are read here. Every complaint is one sentence that
names the directory and the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .fetch import SOURCES, fetched
from .llama_config import LlamaConfig, WeightsError
from .registry import AUTO

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

    A Hugging Face id is downloaded (or taken from the hub's cache). Raises WeightsError where
    there is no such model, or where its directory is not a whole Llama; FetchError where a
    fetched one has lost a file.
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
    config = _json(directory, "config.json")
    generation: dict[str, Any] = {}
    if (directory / "generation_config.json").is_file():
        generation = _json(directory, "generation_config.json")
    return LlamaConfig.from_json(config, generation, where=str(directory))


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

    That is the embeddings' dtype in the files. bfloat16 stays bfloat16, and everything else is
    float32: float16, every number of which float32 has, and float64. (vLLM and SGLang read it in
    config.json, keep float16, and make float16 of float32; that doesn't hold here, where auto means
    the same on every device.)

    Raises:
        ValueError: ``wanted`` is neither ``auto`` nor ``known`` to the library.
    """
    if wanted == AUTO:
        shapes_and_types = (_header(file) for file in weight_files(directory))
        own = next(found[EMBED][1] for found in shapes_and_types if EMBED in found)
        return "bfloat16" if own == "BF16" else "float32"
    if wanted not in known:
        names = ", ".join([AUTO, *known])
        raise ValueError(f"dtype is {wanted!r}, but with {library} it must be one of {names}.")
    return wanted


def check_tensors(directory: Path, config: LlamaConfig) -> None:
    """Raise WeightsError at the first tensor that is missing, misshapen or not of floats."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in weight_files(directory):
        found |= _header(file)
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


def _header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor in one file; the library checks that the file is whole."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise WeightsError(f"{file.parent} lacks {file.name}.")
    try:
        with safe_open(file, framework="np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} is not a whole safetensors file ({error}).") from error


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

    The numbers come from numpy and depend on ``seed`` alone, so torch and MLX load the same ones.
    Each is of a normal distribution, times its part's entry in SCALE: a matrix [out, in] has std
    1 / sqrt(in), a bias ``BIAS``. The head is not tied to the embeddings: with random weights a
    tied head makes every sequence repeat one token, and a test over it could not fail.
    ``more`` of config.json, such as ``model_type`` or ``rope_scaling``, takes the place of what is
    there; norms are random then: as ones, they and their places could be mistaken for each other.
    ``intermediate`` must be a multiple of 32: otherwise torch's SiLU on the CPU is not
    batch-invariant. Raises ValueError for that, WeightsError for sizes that do not fit together.
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
