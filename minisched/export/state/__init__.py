"""What a run's state was at any moment, read from its events: everything is a stay.

A stay is one thing in one place for some time: a request in the waiting queue, a request in the
running set, a token in a future slot, a page in somebody's hands, a node in the radix tree. What
was true at a moment are the stays that hold it, so a picture over time, a picture of one moment
and a player that jumps to and fro read the same lists. Each function of ``panels`` gives one
``Panel``; that of a part which the run did not have is empty. Of a pair of schedulers (``pd``) it
is the state of the side that decodes.
"""

from __future__ import annotations

from ...trace import Trace
from .memory import pages, rows
from .requests import queue, running
from .ring import ring
from .stay import Panel, Stay
from .tree import tree

__all__ = ["Panel", "Stay", "panels"]


def panels(trace: Trace) -> tuple[Panel, ...]:
    """Everything there is to show of a moment: queue, set, ring, pages, rows and tree.

    Raises:
        NothingToShow: a mark of the trace does not say what it should.
    """
    return queue(trace), running(trace), ring(trace), pages(trace), rows(trace), tree(trace)
