"""What happened to the running set, read for every form in which it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from ..state import Stay
from ..state.requests import RunningChange
from .steps import StepWork, requests_in

MOST_STEPS, MOST_LANES = 100, 24
TITLE = "decode: the set of running requests over time"


def requests_of(stays: Sequence[Stay], steps: Sequence[StepWork]) -> list[str]:
    """Request ids in the order in which they came."""
    return list(dict.fromkeys([*(stay.rid for stay in stays), *requests_in([*steps])]))


def lives(rids: Sequence[str], stays: Sequence[Stay]) -> list[tuple[str, list[Stay]]]:
    """A lane a request; and one for each row that it had as a zombie after a retraction."""
    found: dict[str, dict[str, list[Stay]]] = {rid: {rid: []} for rid in rids}
    for stay in stays:
        if stay.rid in found:
            found[stay.rid].setdefault(stay.place, []).append(stay)
    return [lane for lanes in found.values() for lane in lanes.items()]


def set_after(changes: Sequence[RunningChange]) -> list[list[str]]:
    """Who is in the set after each change."""
    now: dict[str, None] = {}
    found = []
    for change in changes:
        if change.joins:
            now[change.rid] = None
        else:
            del now[change.rid]
        found.append(list(now))
    return found
