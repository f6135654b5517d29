"""One thing in one place for some time, and the part of the engine that the place belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stay:
    """What was where, from ``start`` up to, but not including, ``end`` (nanoseconds)."""

    place: str  # a request id, ``page 7``, ``slot 3``, ``row 2``, ``node 5``
    kind: str  # a look: ``queued``, ``admitted``, ``stored``, ``evictable``, .. (``views/look.py``)
    start: int
    end: int
    label: str = ""  # what stands in its box: mostly whose it is
    rid: str = ""  # the request it belongs to, if there is one
    about: str = ""  # one sentence for who points at it
    parent: str = ""  # the place that this one hangs on, in a tree
    holders: tuple[str, ...] = ()  # who keeps it there, where several requests may

    def holds(self, time: int) -> bool:
        """Whether it is there at a moment."""
        return self.start <= time < self.end


@dataclass(frozen=True)
class Panel:
    """A part of the engine: its places in order, and everything that ever was in them."""

    name: str  # ``queue``, ``set``, ``ring``, ``pages``, ``rows``, ``tree``
    title: str
    places: tuple[str, ...]
    stays: tuple[Stay, ...]

    def at(self, time: int) -> dict[str, Stay]:
        """What is where at a moment; of two in one place the later."""
        return {stay.place: stay for stay in self.stays if stay.holds(time)}
