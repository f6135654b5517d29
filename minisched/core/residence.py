"""Where a batch's field lives, and what shape it has: said in the field itself."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple


class Residence(NamedTuple):
    """``where`` is host or device; ``shape`` is ``[num_reqs]`` and the like, or ``one``."""

    where: str
    shape: str


def on_host(shape: str = "one", factory: Any = MISSING) -> Any:
    """A dataclass field that the scheduler's process owns."""
    return field(default_factory=factory, metadata={"residence": Residence("host", shape)})


def on_device(shape: str) -> Any:
    """A dataclass field that only ops on the device may read."""
    return field(metadata={"residence": Residence("device", shape)})


def residences(batch_type: Any) -> dict[str, Residence]:
    """Every field of a batch's class with its residence."""
    every: tuple[Field[Any], ...] = fields(batch_type)
    return {item.name: item.metadata["residence"] for item in every}
