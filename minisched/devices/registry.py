"""Opens a device by name, and says in one sentence what is missing if it can't."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, cast

from .base import Device

# name -> (module, class or what makes one, the extra that brings what it needs)
DEVICES = {
    "sim": ("minisched.devices.sim", "SimDevice", ""),
    "thread": ("minisched.devices.thread", "ThreadDevice", "torch"),
    "cuda": ("minisched.devices.cuda", "CudaDevice", "torch"),
    "mlx": ("minisched.devices.mlx", "MlxDevice", "mlx"),
}


def library(device: str) -> str:
    """The extra that brings the library of a device's arrays; the empty one is the standard's."""
    return DEVICES[device][2]


class MissingExtra(ValueError):
    """A package that an extra would bring is not installed."""


def load_module(name: str, extra: str, wanted_by: str) -> ModuleType:
    """A module of an extra.

    Raises:
        MissingExtra: a package it imports is not installed; the sentence says how it is.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{wanted_by} needs the package {error.name!r}; "
            f"install it with: pip install 'minisched[{extra}]'."
        ) from error


def load(module: str, name: str, extra: str, wanted_by: str) -> type:
    """The class ``name`` of ``module``.

    Raises:
        MissingExtra: a package it imports is not installed.
    """
    return cast(type, getattr(load_module(module, extra, wanted_by), name))


def open_device(name: str, **options: Any) -> Device:
    """A fresh device; ``options`` are those of its class.

    Raises:
        ValueError: there is none of that name, its extra is missing, or the machine lacks it.
    """
    if name not in DEVICES:
        raise ValueError(f"unknown device {name!r}; the devices are {', '.join(DEVICES)}.")
    module, cls, extra = DEVICES[name]
    return cast(Device, load(module, cls, extra, f"device {name!r}")(**options))
