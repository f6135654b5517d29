"""What each counter is called, what it counts, and in which unit: one table for every reader."""

from __future__ import annotations

from typing import NamedTuple

from .state.side import PAIR

UNITS = {  # counter -> (what it is called, its unit)
    "waiting": ("waiting", "requests"),
    "running": ("running", "requests"),
    "kv used": ("kv used", "tokens"),
    "kv cached": ("kv cached", "tokens"),
    "new token ratio": ("new token ratio", "ratio"),
    "future slots": ("next future slot", ""),  # the ring's counter: where the next token goes
    "active memory": ("active memory", "bytes"),
    "cache memory": ("cache memory", "bytes"),
}
THOUSANDTHS = frozenset({"new token ratio"})  # are recorded in these (``worker/recording.py``)


class Counted(NamedTuple):
    """A counter as a reader should see it; of a pair of schedulers its name begins with a side."""

    title: str
    unit: str
    scale: int  # what a recorded value is divided by

    def value(self, recorded: int) -> int | float:
        """The value in its unit."""
        return recorded / self.scale if self.scale > 1 else recorded


def counted(name: str) -> Counted:
    """What a counter is; one that nobody has heard of is shown as it is."""
    side, _, own = name.partition(" ")
    before, plain = (f"{side} ", own) if side in PAIR else ("", name)
    title, unit = UNITS.get(plain, (plain, ""))
    return Counted(before + title, unit, 1000 if plain in THOUSANDTHS else 1)
