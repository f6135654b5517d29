"""Models by name for a device.

A file that imports a library is read only when a model of it is opened.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from ..devices.base import reason_of
from ..devices.registry import library, load
from .base import Model
from .checkpoint import AUTO, WeightsError, is_plain_llama, model_home, read_config
from .fetch import NAME, find_converted
from .hash import HashModel
from .promise import measure_apart
from .tokenizer import Tokenizer

BY_LIBRARY = "transformers:"  # before a name: also a Llama is computed by the library
HUB_FILES = ["*.json", "*.jinja", "model*.safetensors"]
LLAMA = {  # device -> (module, class, extra)
    "thread": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "cuda": ("minisched.models.llama_graphs", "LlamaGraphs", "torch"),
}
LIBRARY = {  # device -> (module, class, extra) for the models of a library
    "mlx": ("minisched.models.mlx_lm", "MlxLm", "mlx"),
    "thread": ("minisched.models.transformers_lm", "TransformersLM", "torch"),
    "cuda": ("minisched.models.transformers_lm", "TransformersLM", "torch"),
}


def find_model(name_or_dir: str | Path) -> Path:
    """Return the directory of ``smollm2``, of a path, or of a Hugging Face id ``org/name``.

    A Hugging Face id is downloaded, or taken from the hub's cache. A GGUF file is converted once.

    Raises:
        WeightsError: there is no such model, its directory lacks config.json, or a GGUF file can't
            be converted.
    """
    name = str(name_or_dir).removeprefix(BY_LIBRARY)
    directory = Path(name)
    if directory.suffix == ".gguf":
        directory = find_converted(directory)
    elif name == NAME:
        directory = model_home() / name
        if not directory.exists():
            raise WeightsError(f"{name} is not on this machine yet; run: minisched fetch {name}")
    elif re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and not directory.is_dir():
        from huggingface_hub import snapshot_download

        try:
            directory = Path(snapshot_download(name, allow_patterns=HUB_FILES))
        except Exception as error:  # the hub's client raises many kinds, all meaning: not here
            reason = reason_of(error)
            raise WeightsError(f"{name} could not be taken from Hugging Face: {reason}") from error
    elif not name or not directory.is_dir():
        raise WeightsError(
            f"No model {name!r}: it is no known name ({NAME}), no directory, no GGUF file "
            "and no Hugging Face id (org/name)."
        )
    elif not (directory / "config.json").exists() and (files := sorted(directory.glob("*.gguf"))):
        raise WeightsError(f"{name} has GGUF files; name one of them, such as {files[0]}.")
    read_config(directory)
    return directory


def open_model(name: str | tuple[object, object], device: str, dtype: str = AUTO) -> Model:
    """Open ``hash``, ``smollm2``, a directory in Hugging Face's form, a GGUF file or a hub id.

    With torch, this project's own code computes a plain Llama, and transformers any other model;
    with ``transformers:`` before its name, a Llama too. On ``mlx`` mlx-lm computes all of them.
    Instead of a name, a pair is a model that the library has loaded, with its tokenizer. How far a
    real model's logits move with the batch is measured, too (``promise.py``).

    ``dtype`` is the dtype of a real model's arithmetic: ``auto``, which is the checkpoint's own on
    every device (``checkpoint.check_dtype``), ``float32``, ``bfloat16``, or with torch ``float64``.

    Raises:
        ValueError: the model is unknown, not fetched or incomplete; the device can't run it, or not
            in this dtype; or an extra is missing.
    """
    if isinstance(name, tuple):
        return open_loaded(name, device)
    if name == "hash":
        if dtype != AUTO:
            raise ValueError(
                f"dtype is {dtype!r}, but model 'hash' computes in whole numbers; real models "
                "have a dtype."
            )
        return hash_class(device)()
    if device not in LIBRARY:
        raise ValueError(
            f"model {name!r} can't run on device {device!r}, which only knows 'hash'; "
            f"use --device {' or '.join(LIBRARY)}."
        )
    wanted_by = f"model {name!r} on device {device!r}"
    directory = find_model(name)
    opened: Any
    by_library = name.startswith(BY_LIBRARY) or not is_plain_llama(read_config(directory))
    if device in LLAMA and not by_library:
        opened = load(*LLAMA[device], wanted_by)(directory, dtype)
    else:
        opener: Any = load(*LIBRARY[device], wanted_by)
        opened = opener.from_directory(directory, dtype)
    opened.apart = measure_apart(opened, device, directory)
    return cast(Model, opened)


def open_loaded(pair: tuple[object, object], device: str) -> Model:
    """Take a model that mlx-lm or transformers has loaded, with its tokenizer.

    Raises:
        ValueError: the device has no such library, or can't run the model.
    """
    model, tokenizer = pair
    what = type(model).__name__
    if device not in LIBRARY:
        raise ValueError(
            f"a loaded {what} can't run on device {device!r}; use device {' or '.join(LIBRARY)}."
        )
    module, cls, extra = LIBRARY[device]
    opened: Any = load(module, cls, extra, f"a loaded {what}")(model, tokenizer)
    opened.tokenizer = Tokenizer.from_loaded(tokenizer)
    opened.apart = measure_apart(opened, device)
    return cast(Model, opened)


def hash_class(device: str) -> type[HashModel]:
    """Return the hash model's class in a device's arrays.

    Raises:
        MissingExtra: the library is not installed.
    """
    if not (extra := library(device)):
        return HashModel
    wanted_by = f"model 'hash' on device {device!r}"
    return load("minisched.models.hash_arrays", "HashArrays", extra, wanted_by)
