"""Opens a model by name for the device it is to run on."""

from __future__ import annotations

from typing import cast

from ..devices.registry import load
from .base import Model

# device -> (module, class, extra) of the hash model and of the Llama
HASH = {
    "sim": ("minisched.models.hash", "HashModel", ""),
    "thread": ("minisched.models.hash_torch", "HashTorch", "torch"),
    "cuda": ("minisched.models.hash_torch", "HashTorch", "torch"),
    "mlx": ("minisched.models.hash_mlx", "HashMlx", "mlx"),
}
LLAMA = {
    "thread": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "cuda": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "mlx": ("minisched.models.llama_mlx", "LlamaMlx", "mlx"),
}


def open_model(name: str, device: str) -> Model:
    """``hash``, ``smollm2``, a directory with a Llama in Hugging Face's form, or a hub id.

    Raises:
        ValueError: the model is unknown, not fetched or incomplete; the device can't run it; or
            an extra is missing.
    """
    if name == "hash":
        return cast(Model, load(*HASH[device], f"model 'hash' on device {device!r}")())
    if device not in LLAMA:
        raise ValueError(
            f"model {name!r} can't run on device {device!r}, which only knows 'hash'; "
            f"use --device {' or '.join(LLAMA)}."
        )
    cls = load(*LLAMA[device], f"model {name!r} on device {device!r}")
    find_model = load("minisched.models.weights", "find_model", LLAMA[device][2], f"model {name!r}")
    return cast(Model, cls(find_model(name)))
