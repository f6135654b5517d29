"""The three forms of a batch as a class diagram, drawn from the classes themselves."""

from __future__ import annotations

from typing import Any

from ..core import Row, ScheduleBatch
from ..core.fields import residences
from ..models.base import ForwardBatch, ModelWorkerBatch, get_model_worker_batch, make_forward_batch
from .puml_style import LINK_STYLE, Code, linked

HEAD = """\
@startuml
<style>
classDiagram {
  FontSize 12
  class { BackgroundColor #FFFFFF
    LineColor #59636E }
  arrow { FontSize 12
    LineColor #59636E }
}
</style>
title A batch on its way to the device: three forms, what they hold, and where it lives
hide circle
hide empty members
left to right direction
skinparam ranksep 40
"""
TAIL = """\
ScheduleBatch ..> Row : rows: the same,\\nrequest by request
ScheduleBatch --> ModelWorkerBatch : {flat}
ModelWorkerBatch --> ForwardBatch : {shipped}
@enduml
"""
FLAT = (
    "get_model_worker_batch()",
    "requests become rows,",
    "pages become cells",
    "of the page table",
)
SHIPPED = ("make_forward_batch()", "lists become arrays", "on the device")
CODE: Code = {
    "get_model_worker_batch": get_model_worker_batch,
    "make_forward_batch": make_forward_batch,
}
COLOURS = {"host": "#FFF8EC", "device": "#EEF6FC"}


def to_batches() -> str:
    """PlantUML text: every field of each form, with its shape, host and device apart."""
    forms = (ScheduleBatch, ModelWorkerBatch, ForwardBatch)
    tail = TAIL.format(flat=r"\n".join(FLAT), shipped=r"\n".join(SHIPPED))
    style = "".join(f"{line}\n" for line in LINK_STYLE)
    return HEAD + style + _row() + "".join(map(_form, forms)) + linked(tail, CODE)


def _form(batch_type: Any) -> str:
    where: dict[str, list[str]] = {"host": [], "device": []}
    for name, residence in residences(batch_type).items():
        shape = "" if residence.shape == "one" else f" {residence.shape}"
        where[residence.where].append(f"  {{field}} {name}{shape}")
    lines = [f"class {batch_type.__name__} {{"]
    for place, fields in where.items():
        if fields:
            lines += [f"  .. <back:{COLOURS[place]}>on the {place}</back> ..", *fields]
    return "\n".join([*lines, "}", ""])


def _row() -> str:
    """What stands behind ``rows``: the one form that still knows requests."""
    fields = "".join(f"  {{field}} {name}\n" for name in Row._fields)
    return f"class Row {{\n  frozen at commit\n  ..\n{fields}}}\n"
