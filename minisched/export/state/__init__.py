"""What a run's state was at any moment, read from its events: everything is a stay.

A stay is one thing in one place for some time: a request in the waiting queue, a request in the
running set, a token in a future slot, a page in somebody's hands, a node in the radix tree. What
was true at a moment are the stays that hold it, so a picture over time, a picture of one moment
and a player that jumps to and fro read the same lists. Each function of ``panels`` gives one
``Panel``; that of a part which the run did not have is empty. A pair of schedulers (``pd``) has
each panel twice, once for each ``side``.
"""

from __future__ import annotations

from dataclasses import replace

from ...trace import Trace
from ...trace.sides import one_side, sides
from .memory import pages, rows
from .requests import queue, ring, running
from .stay import Panel, Stay, up_to
from .tree import tree

__all__ = ["Panel", "Stay", "panels", "up_to"]
PARTS = (queue, running, ring, pages, rows, tree)


def panels(trace: Trace) -> tuple[Panel, ...]:
    """Everything there is to show of a moment: queue, set, ring, pages, rows and tree.

    Of a pair of schedulers first those of the prefill side, then those of the decode side.

    Raises:
        NothingToShow: a mark of the trace does not say what it should.
    """
    alone = [(side, one_side(trace, side)) for side in sides(trace)]
    return tuple(_panel(part(run), side, trace.end) for side, run in alone for part in PARTS)


def _panel(panel: Panel, side: str, end: int) -> Panel:
    """A side's panel without what is marked after the run's last slice."""
    return replace(panel, side=side, stays=tuple(up_to(panel.stays, end + 1)))
