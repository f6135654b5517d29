"""PD separation: two hosts, two devices, and the link between them."""

from __future__ import annotations

from ...trace import Trace
from .loop_parts import loop_parts

PARTS = loop_parts(timing=0, about="prompts here, decoding there, KV in between")


def view(trace: Trace) -> str:
    """The whole run: who computes prompts, who decodes, and what is sent."""
    return PARTS["timing"].svg(trace)
