"""When a device ran dry, in words: how often, for how long, and what the host did before."""

from __future__ import annotations

from statistics import median

from .bubble_words import milliseconds
from .overlap import Interval

UNTOLD = "no blocking call"


def dry_words(
    device: str, dry: tuple[Interval, ...], percent: float, launcher: str,
    blocking: dict[str, int], deserted: int, queued: int,
) -> str:  # fmt: skip
    """``the device ran dry once, for 7.2 ms (3.3 % of the time); ...``, without a full stop.

    ``launcher`` is the lane that launched what came after. ``deserted`` is how many spells more
    there were in which nobody was left to be served, and ``queued`` how many gaps end with
    something that had been launched before them.
    """
    if not dry:
        only = f"ran dry only where nobody was left to be served ({_times(deserted)})"
        said = f"{device} {only if deserted else 'never ran dry'}"
        others = "its other gaps" if deserted else "its gaps"
        return said + (f", as what ended {others} had been launched before them" if queued else "")
    typical = milliseconds(int(median(end - start for start, end in dry)))
    said = f"{device} ran dry {_times(len(dry))}, for {typical}"
    said += f" ({percent:.1f} %" if len(dry) == 1 else f" at the median ({percent:.1f} %"
    said += " of the time)" if len(dry) == 1 else " of the time in all)"
    if deserted:
        said += f", besides {_times(deserted)} when nobody was left to be served"
    return f"{said}; {_before(len(dry), launcher, blocking)}"


def _before(spells: int, launcher: str, blocking: dict[str, int]) -> str:
    call, count = next(iter(blocking.items()))
    which = f"before {count} of them" if count < spells else "before each of them"
    who = "the host" if launcher == "host" else f"the {launcher}, which launches,"
    when = "just before," if spells == 1 else which
    if call == UNTOLD:
        return f"{when} no call had blocked {who}".rstrip(",")
    return f"{when} {who} was blocked in {call}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
