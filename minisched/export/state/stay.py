"""One thing in one place for some time, and the part of the engine that the place belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stay:
    """What was where, from ``start`` up to, but not including, ``end`` (nanoseconds).

    Where it is still there when the run ends, ``end`` is one more than the run's: so it is there
    at the run's last moment, too. Who draws it over time cuts that off (``up_to``).
    """

    place: str  # a request id, ``page 7``, ``slot 3``, ``row 2``, ``node 5``
    kind: str  # a look: ``queued``, ``admitted``, ``stored``, ``evictable``, .. (``looks.py``)
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
    side: str = ""  # of a pair of schedulers (``pd``): ``prefill`` or ``decode``

    def at(self, time: int) -> dict[str, Stay]:
        """What is where at a moment; of two in one place the later."""
        return {stay.place: stay for stay in self.stays if stay.holds(time)}


def up_to(stays: Iterable[Stay], end: int) -> list[Stay]:
    """Stays as far as they lie before a moment, which is mostly the run's end."""
    before = (stay for stay in stays if stay.start < end)
    return [stay if stay.end <= end else replace(stay, end=end) for stay in before]
