"""Opens a model by name for the device it is to run on."""

from __future__ import annotations

from typing import cast

from ..devices.registry import library, load
from .base import Model
from .hash import HashModel
from .hash_arrays import HashMlx, HashTorch

AUTO = "auto"
HASH = {"": HashModel, "torch": HashTorch, "mlx": HashMlx}  # by library of the device's arrays
LLAMA = {  # device -> (module, class, extra)
    "thread": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "cuda": ("minisched.models.llama_graphs", "LlamaGraphs", "torch"),
    "mlx": ("minisched.models.llama_mlx", "LlamaMlx", "mlx"),
}


def hash_class(device: str) -> type[HashModel]:
    """The hash model's class in a device's arrays.

    Raises:
        MissingExtra: the library is not installed.
    """
    extra = library(device)
    if extra:  # which its forward imports only when it runs
        wanted_by = f"model 'hash' on device {device!r}"
        load(f"minisched.models.sampling_{extra}", "sample", extra, wanted_by)
    return HASH[extra]


def open_model(name: str, device: str, dtype: str = AUTO) -> Model:
    """``hash``, ``smollm2``, a directory with a model in Hugging Face's form, or a hub id.

    ``dtype`` is what a real model computes in: ``auto``, which is the checkpoint's own on every
    device (``weights.choose_dtype``), ``float32``, ``bfloat16``, or with torch ``float64``.

    Raises:
        ValueError: the model is unknown, not fetched or incomplete; the device can't run it, or not
            in this dtype; or an extra is missing.
    """
    if name == "hash":
        if dtype != AUTO:
            raise ValueError(
                f"dtype is {dtype!r}, but model 'hash' computes in whole numbers; real models "
                "have a dtype."
            )
        return hash_class(device)()
    if device not in LLAMA:
        raise ValueError(
            f"model {name!r} can't run on device {device!r}, which only knows 'hash'; "
            f"use --device {' or '.join(LLAMA)}."
        )
    cls = load(*LLAMA[device], f"model {name!r} on device {device!r}")
    find_model = load("minisched.models.weights", "find_model", LLAMA[device][2], f"model {name!r}")
    return cast(Model, cls(find_model(name), dtype))
