"""The running set over time: who joins, who leaves and why, who gives way, who is a zombie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...trace import Trace
from ...trace.sides import side_words
from ..scene import Curve, LaneItem, LaneRow, Lanes, Part, Scene, Series, TextTable, about_run
from ..state import Stay, up_to
from ..state.memory import WORDS, ZOMBIE
from ..state.requests import RunningChange, changes_of, request_stays
from ..units import ms
from .marks import many, short
from .steps import WORK, StepWork, opening, requests_in, retraction_flags, steps_of, work_of

# -- How many things were in a state over time: stays, counted -------------------------------------


def count(stays: Iterable[Stay], *kinds: str) -> list[tuple[int, int]]:
    """(time, how many there are from then on) of these kinds, at every change."""
    delta: Counter[int] = Counter()
    for stay in stays:
        if stay.kind in kinds:
            delta[stay.start] += 1
            delta[stay.end] -= 1
    now, series = 0, []
    for time in sorted(delta):
        if delta[time]:
            now += delta[time]
            series.append((time, now))
    return series


# -- What happened to the running set, read for every form in which it is shown --------------------

MOST_STEPS, MOST_LANES, MOST_CHANGES = 100, 24, 60


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


# -- One lane a request for where it was (queue, set, zombie), and one for what it computed --------

LEGEND = {
    "queued": "in the waiting queue",
    "admitted": "in the set: it has memory",
    "sending": WORDS["sending"],
    "line second": "waiting",
    **WORK,
    "wasted": f"zombie: it {ZOMBIE}; its rows are wasted",
    "flag-head": "retraction: it loses its memory",
}
SAID = {"admitted": "in the set", "queued": "waits", "sending": "transfer", "wasted": "zombie"}
HEADS = ("ms", "", "request", "why", "size", "the set after it")


def scene(trace: Trace) -> Scene:
    """How many there are in the set, where each request is, and every change of the set.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps, stays = steps_of(part), up_to(request_stays(part), part.end)
    changes, rids = changes_of(part), requests_of(stays, steps)
    cut = f"the first {MOST_LANES} of {len(rids)} requests" * (len(rids) > MOST_LANES)
    leaves = {(change.rid, change.time): change.why for change in changes if not change.joins}
    rows = []
    for place, mine in lives(rids[:MOST_LANES], stays):
        rid = mine[0].rid if mine else place
        items = [item_of(stay, leaves.get((stay.rid, stay.end), "")) for stay in mine]
        rows.append(LaneRow("is" if place == rid else place, items, group=short(rid, 12)))
        if place == rid:
            rows.append(LaneRow("computes", work_of(steps, rid), group=short(rid, 12)))
    running, zombies = count(stays, "admitted"), count(stays, "wasted")
    series = [Series("in the set", "admitted", running), Series("zombies", "wasted", zombies)]
    series.append(Series("waiting", "line second", count(stays, "queued")))
    flags = retraction_flags(part, rids[:MOST_LANES])
    lines = [
        (ms(change.time), "+ joins" if change.joins else "- leaves", short(change.rid, 16),
         change.why, len(after), " ".join(after))
        for change, after in zip(changes, set_after(changes), strict=True)
    ]  # fmt: skip
    told = f"the first {MOST_CHANGES} of {len(lines)}" * (len(lines) > MOST_CHANGES)
    most = max((value for _, value in running), default=0)
    return Scene(
        f"decode: at most {many(most, 'request')} at once, {many(len(flags), 'retraction')}",
        about_run(trace, shown, *filter(None, [cut, side_words(trace)])),
        [
            Part("How many", "dashed line: waiting", [Curve(series, part.end, "requests")]),
            Part("Who", "where a request is, and what the device computes for it",
                 [Lanes(rows, part.end, flags=flags)]),
            Part("Who joins and who leaves", told, [TextTable(HEADS, lines[:MOST_CHANGES])]),
        ],
        LEGEND,
    )  # fmt: skip


def item_of(stay: Stay, why: str) -> LaneItem:
    """Where a request is; whoever is in the set leaves it for a reason."""
    why = why if stay.kind == "admitted" else ""
    ends = f"; leaves: {why}" * bool(why)
    about = f"{stay.place}, {ms(stay.start)} to {ms(stay.end)} ms: {stay.about}{ends}"
    return LaneItem(
        stay.kind, stay.start, stay.end, f"{SAID[stay.kind]}{ends}", SAID[stay.kind], about,
        {"stay": stay.kind, "rid": stay.rid, "why": why, "start": stay.start, "end": stay.end},
    )  # fmt: skip
