"""Metadata in fields: the residence of a batch's field, the option of a setting."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from math import inf
from typing import Any, NamedTuple

# -- The residence of a batch's field, host or device, and its shape -------------------------------
#
# Tests compare ``diagrams/batches.puml`` with it, and check that the host does not change an array
# on the device.


class Residence(NamedTuple):
    """``where`` is host or device; ``shape`` is ``[num_reqs]`` and the like, or ``one``."""

    where: str
    shape: str


def on_host(shape: str = "one", factory: Any = MISSING, default: Any = MISSING) -> Any:
    """A dataclass field that the scheduler's process owns."""
    residence = {"residence": Residence("host", shape)}
    return field(default=default, default_factory=factory, metadata=residence)


def on_device(shape: str) -> Any:
    """A dataclass field that only ops on the device may read."""
    return field(metadata={"residence": Residence("device", shape)})


def residences(batch_type: Any) -> dict[str, Residence]:
    """Every field of a batch's class with its residence."""
    every: tuple[Field[Any], ...] = fields(batch_type)
    return {item.name: item.metadata["residence"] for item in every}


# -- A field that users set: its default and its help stand in one place ---------------------------


def setting(
    default: Any, help: str, *, shown: str | None = None, alias: str = "",
    least: float | None = None, most: float = inf,
) -> Any:  # fmt: skip
    """A dataclass's field that is also an option of the command line (``cli/options.py``).

    ``shown`` is what the help names as the default, where that is not ``default`` itself; empty: it
    differs from command to command. A ``default`` that can be called makes one. With a ``least``, a
    command line may say nothing below it, nor above ``most``.
    """
    limits = None if least is None else (least, most)
    option = {"help": help, "shown": shown, "alias": alias, "limits": limits}
    if callable(default):
        return field(default_factory=default, hash=False, metadata=option)
    return field(default=default, metadata=option)
