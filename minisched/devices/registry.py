"""Opens a device by name; an error names the missing package, device or extra."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, cast

from .base import Device

# name -> (module, class or function that makes one, extra that installs its packages)
DEVICES = {
    "sim": ("minisched.devices.sim", "SimDevice", ""),
    "thread": ("minisched.devices.thread", "ThreadDevice", "torch"),
    "cuda": ("minisched.devices.cuda", "CudaDevice", "torch"),
    "mlx": ("minisched.devices.mlx", "MlxDevice", "mlx"),
}


def library(device: str) -> str:
    """Return the extra with the library of a device's arrays; empty: the standard library."""
    return DEVICES[device][2]


class MissingExtra(ValueError):
    """A package of an extra is not installed."""


def load_module(name: str, extra: str, wanted_by: str) -> ModuleType:
    """Return a module of an extra.

    Raises:
        MissingExtra: a package it imports is not installed; the message has the command for it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{wanted_by} needs the package {error.name!r}; "
            f"install it with: pip install 'minisched[{extra}]'."
        ) from error


def load(module: str, name: str, extra: str, wanted_by: str) -> type:
    """Return the class ``name`` of ``module``.

    Raises:
        MissingExtra: a package it imports is not installed.
    """
    return cast(type, getattr(load_module(module, extra, wanted_by), name))


def open_device(name: str, **options: Any) -> Device:
    """Return a fresh device; ``options`` are those of its class.

    Raises:
        ValueError: the name is unknown, its extra is missing, or the machine has no such device.
    """
    if name not in DEVICES:
        raise ValueError(f"unknown device {name!r}; the devices are {', '.join(DEVICES)}.")
    module, cls, extra = DEVICES[name]
    return cast(Device, load(module, cls, extra, f"device {name!r}")(**options))
