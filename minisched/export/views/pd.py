"""PD separation on a time axis: two hosts, two devices, and the link between them."""

from __future__ import annotations

from ...trace import Trace
from ..svg import to_svg
from .steps import forwards_of


def view(trace: Trace) -> str:
    """The whole run (``export/svg.py``): who computes prompts, who decodes, and what is sent.

    Raises:
        NothingToShow: no step ran.
    """
    forwards_of(trace)
    return to_svg([trace], whole=True, title="pd: prompts here, decoding there, KV in between")
