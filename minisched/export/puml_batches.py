"""The three forms of a batch as a class diagram, drawn from the classes themselves."""

from __future__ import annotations

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
    lines = [*LINK_STYLE, "class Row {", "  frozen at commit", "  .."]
    lines += [*(f"  {{field}} {name}" for name in Row._fields), "}"]
    for form in (ScheduleBatch, ModelWorkerBatch, ForwardBatch):
        lines.append(f"class {form.__name__} {{")
        for place, colour in COLOURS.items():
            fields = [f"  {{field}} {name}" + f" {of.shape}" * (of.shape != "one")
                      for name, of in residences(form).items() if of.where == place]  # fmt: skip
            if fields:
                lines += [f"  .. <back:{colour}>on the {place}</back> ..", *fields]
        lines.append("}")
    tail = TAIL.format(flat=r"\n".join(FLAT), shipped=r"\n".join(SHIPPED))
    return "\n".join([HEAD + lines[0], *lines[1:], linked(tail, CODE)])
