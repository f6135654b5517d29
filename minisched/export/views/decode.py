"""The running set over time: requests that join, leave, are retracted or become zombies."""

from __future__ import annotations

from ...checks.history import many
from ...trace import Trace
from ...trace.sides import shown_side, side_words
from ..scene import Curve, Data, LaneItem, LaneRow, Lanes, Part, Scene, Series, about_run
from ..state import ENDS, WORDS, ZOMBIE, count, panels_of, up_to
from .marks import first_of, named, short, word
from .steps import WORK, opening, requests_in, retraction_flags, steps_of, work_of

MOST_STEPS, MOST_LANES = 100, 24
LEGEND = {
    "queued": "in the waiting queue",
    "admitted": "in the set: it has memory",
    "sending": WORDS["sending"],
    **WORK,
    "wasted": f"zombie: it {ZOMBIE}; its rows are wasted",
    "flag-head": "retraction: it loses its memory",
}
SAID = {"admitted": "in the set", "queued": "waits", "sending": "transfer", "wasted": "zombie"}


def scene(trace: Trace) -> Scene:
    """Draw the size of the set, and the place of each request, above the computed work.

    A zombie of a retraction has a lane of its own, because its request may run again meanwhile.
    """
    part, shown = opening(trace, MOST_STEPS)
    panels, steps = panels_of(part), steps_of(part)
    stays = up_to([*panels["queue"].stays, *panels["set"].stays], part.end)
    stays.sort(key=lambda stay: (stay.start, stay.end))
    every = list(dict.fromkeys([*(stay.rid for stay in stays), *requests_in(steps)]))
    rids = every[:MOST_LANES]
    why = {
        (word(mark, "rid"), mark.time): word(mark, "reason") if mark.name == "finish" else mark.name
        for mark in named(shown_side(part), *ENDS)
    }
    rows = []
    for rid in rids:
        lives: dict[str, list[LaneItem]] = {rid: []}
        for stay in stays:
            if stay.rid == rid:
                left = why.get((rid, stay.end)) if stay.kind == "admitted" else ""
                said = SAID[stay.kind] + (f"; leaves: {left}" if left else "")
                data: Data = {"stay": stay.kind, "rid": rid, "start": stay.start, "end": stay.end}
                lives.setdefault(stay.place, []).append(
                    LaneItem(stay.kind, stay.start, stay.end, said, SAID[stay.kind], data=data)
                )
        for place, items in lives.items():
            rows.append(LaneRow("is" if place == rid else place, items, group=short(rid, 12)))
            if place == rid:
                rows.append(LaneRow("computes", work_of(steps, rid), group=short(rid, 12)))
    series = [
        Series("in the set", "admitted", count(stays, "admitted")),
        Series("zombies", "wasted", count(stays, "wasted")),
    ]
    flags = retraction_flags(part, rids)
    most = max((value for _, value in series[0].values), default=0)
    left = f"; {len(flags)} is retracted and joins it again later" if len(flags) == 1 else ""
    left = f"; requests are retracted {len(flags)} times" if len(flags) > 1 else left
    cut = first_of(MOST_LANES, len(every), "request")
    return Scene(
        f"decode: at most {many(most, 'request')} in the running set{left}",
        about_run(trace, shown, cut, side_words(trace)),
        [
            Part("Requests in the set", "", [Curve(series, part.end, "requests")]),
            Part("Each request", "where it is, and what the device computes for it",
                 [Lanes(rows, part.end, flags=flags)]),
        ],
        LEGEND,
    )  # fmt: skip
