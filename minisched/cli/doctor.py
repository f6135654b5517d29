"""``minisched doctor``: the parts that work on this machine, and what the others need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..devices.registry import DEVICES, load, open_device
from ..export.render_puml import find_node
from ..models.fetch import NAME
from ..models.registry import find_model, open_model
from .layout import JSON, print_json, say_table


def doctor(json: bool = JSON) -> None:
    """Print which devices, models and renderers work here, and what the others need."""
    devices = {name: needs(partial(try_device, name)) for name in DEVICES}
    hashes = {
        f"hash on {name}": needs(partial(open_model, "hash", name))
        for name, trouble in devices.items()
        if not trouble
    }
    findings = {
        "device": devices,
        "model": {**hashes, "smollm2": needs(find_smollm2)},
        "renderer": {"plantuml": needs(find_node)},
    }
    if json:
        print_json(findings)
        return
    rows = [
        (kind, name, "no" if trouble else "yes", trouble)
        for kind, names in findings.items()
        for name, trouble in names.items()
    ]
    say_table(("", "name", "works", "what it needs"), rows)


def needs(attempt: Callable[[], object]) -> str:
    """Return the error of an attempt, or an empty text if it succeeds."""
    try:
        attempt()
    except (ValueError, RuntimeError, OSError) as error:
        return str(error)
    return ""


def try_device(name: str) -> None:
    """Open a device and close it."""
    open_device(name).close()


def find_smollm2() -> object:
    """Return the folder of the weights; reading them needs safetensors."""
    load("safetensors", "safe_open", "torch", "model 'smollm2'")
    return find_model(NAME)
