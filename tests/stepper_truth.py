"""What the stepper should show, worked out from the trace."""

from __future__ import annotations

from typing import Any

from minisched.export.html_data import NOTABLE
from minisched.export.state import Panel, panels
from minisched.trace import Trace

last: list[tuple[Trace, tuple[Panel, ...]]] = []  # the panels of a long run take a second


def panels_of(trace: Trace) -> tuple[Panel, ...]:
    """The run's panels; those of the last run that was asked for are kept."""
    if not last or last[0][0] is not trace:
        last[:] = [(trace, panels(trace))]
    return last[0][1]


def expected(trace: Trace, time: int) -> dict[str, Any]:
    """What it should say, from the trace."""
    found: dict[str, Any] = {}
    for panel in (one for one in panels_of(trace) if one.stays):
        now = panel.at(time)
        stays = [now[place] for place in panel.places if place in now]
        number = {"ring": "slot ", "rows": "row ", "tree": "node "}.get(panel.name, "")
        found[f"{panel.side} {panel.name}".strip()] = [
            [
                stay.place,
                stay.kind,
                (stay.place.removeprefix(number) if number and panel.name != "pages" else "")
                + stay.label
                + (stay.about if panel.name == "tree" else ""),
            ]
            for stay in stays
        ]
    for lane in {item.lane for item in trace.slices if "line" in item.attrs}:
        before = [s for s in trace.on(lane) if "line" in s.attrs and s.start <= time]
        found[f"line of {lane}"] = before[-1].attrs["line"] if before else None
    found["counters"] = {}
    for counter in trace.counters:
        value = counter.value / 1000 if counter.name.endswith("ratio") else counter.value
        if counter.time <= time:
            found["counters"][counter.name] = f"{value:g}"
        else:
            found["counters"].setdefault(counter.name, "–")
    return found


def events(trace: Trace) -> list[int]:
    """Every moment at which something begins, ends or changes."""
    times = {0, trace.end, *(counter.time for counter in trace.counters)}
    times |= {time for item in trace.slices for time in (item.start, item.end)}
    times |= {time for p in panels_of(trace) for stay in p.stays for time in (stay.start, stay.end)}
    return sorted(times | {mark.time for mark in trace.marks if mark.name in NOTABLE})
