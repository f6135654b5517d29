"""What a run's state was at any moment, read from its events: everything is a stay.

A stay is one thing in one place for some time: a request in the waiting queue, a request in the
running set, a token in a future slot, a page in somebody's hands, a node in the radix tree. What
was true at a moment are the stays that hold it, so a picture over time, a picture of one moment
and a player that jumps to and fro read the same lists. Each module has ``panel(trace) -> Panel``;
a panel of a part that the run did not have is empty.
"""

from __future__ import annotations

from .stay import Panel, Stay

__all__ = ["Panel", "Stay"]
