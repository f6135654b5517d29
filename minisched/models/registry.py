"""Opens a model by name for the device it is to run on.

A file that imports a library is read only when a model of it is opened.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from ..devices.registry import library, load
from .base import Model
from .fetch import find_model
from .hash import HashModel
from .llama import AUTO

LLAMA = {  # device -> (module, class, extra)
    "thread": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "dist": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "cuda": ("minisched.models.llama_graphs", "LlamaGraphs", "torch"),
    "mlx": ("minisched.models.llama_mlx", "LlamaMlx", "mlx"),
}

SPLIT_LLAMA = ("minisched.models.llama_tp", "LlamaTP", "torch")


def open_model(name: str, device: str, dtype: str = AUTO, split: bool = False) -> Model:
    """``hash``, ``smollm2``, a directory with a model in Hugging Face's form, or a hub id.

    ``dtype`` is what a real model computes in: ``auto``, which is the checkpoint's own on every
    device (``llama.choose_dtype``), ``float32``, ``bfloat16``, or with torch ``float64``. With
    ``split`` ranks of device ``dist`` can share it (``llama_tp.py``).

    Raises:
        ValueError: the model is unknown, not fetched or incomplete; the device can't run it, or not
            in this dtype; or an extra is missing.
    """
    if split and name == "hash":
        raise ValueError("model 'hash' can't be split over ranks, but a Llama can; name one.")
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
    cls = load(*(SPLIT_LLAMA if split else LLAMA[device]), f"model {name!r} on device {device!r}")
    return cast(Model, cls(find_model(name), dtype))


def hash_class(device: str) -> type[HashModel]:
    """The hash model's class in a device's arrays.

    Raises:
        MissingExtra: the library is not installed.
    """
    if not (extra := library(device)):
        return HashModel
    wanted_by = f"model 'hash' on device {device!r}"
    return load("minisched.models.hash_arrays", "HashArrays", extra, wanted_by)


# -- The same model in another process -------------------------------------------------------------


def origin_of(model: Any) -> tuple[Any, ...]:
    """What another process opens the same model from: a class and its arguments.

    Raises:
        ValueError: it is neither a hash model nor a Llama on torch.
    """
    if type(model) is hash_class("dist"):
        return type(model), model.vocab_size, model.context_len, model.eos_ids
    if model.dtype and hasattr(model, "directory"):
        return type(model), str(model.directory), model.dtype, model.context_len
    raise ValueError(
        f"model {model.name!r} can't be opened in several processes: the hash model on torch, and "
        "Llamas from a directory can."
    )


@lru_cache(maxsize=1)
def opened_again(origin: tuple[Any, ...]) -> Model:
    """The model that ``origin_of`` told of; the newest one stays open."""
    cls, *given = origin
    return cast(Model, cls(*given))
