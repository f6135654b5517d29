"""Reads the text and PlantUML forms of views back: boxes on lanes, and lines of tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from minisched.export.puml_axis import UNITS
from minisched.export.puml_style import creole
from minisched.export.state import Stay
from minisched.export.views.puml_stays import fill

Boxes = dict[str, list[tuple[str, int, int]]]  # by lane: (fill, start, end), nanoseconds


def read_timing_boxes(puml: str) -> Boxes:
    """Every box of a timing diagram: what a lane shows until it shows something else."""
    titles = dict(re.findall(r'^rectangle "(.*)" as (lane\d+)$', puml, re.M))
    lanes = {name: title for title, name in titles.items()}
    assert len(lanes) == len(titles)
    unit = UNITS[re.findall(r"^caption time in (\w+)$", puml, re.M)[0]]
    found: Boxes = {title: [] for title in lanes.values()}
    now: dict[str, tuple[str, int]] = {}
    time = 0
    for line in puml.splitlines():
        if line.startswith("@") and line[1:2].isdigit():
            time = int(Decimal(line[1:]) * unit)
        elif state := re.match(r"(lane\d+) is (\{-\}|\".*\" (#\w+))$", line):
            name, colour = state[1], state[3]
            if name in now:
                before, since = now.pop(name)
                found[lanes[name]].append((before, since, time))
            if colour:
                now[name] = (colour, time)
    assert not now, "every box ends"
    return found


def boxes_of(rows: Iterable[tuple[str, Iterable[Stay]]]) -> Boxes:
    """The same, as stays say it."""
    return {
        creole(title): [(fill(stay.kind), stay.start, stay.end) for stay in stays]
        for title, stays in rows
    }


def lanes_in(text: str) -> dict[str, str]:
    """The lanes and curves of a text page, by title."""
    found = (line.partition("│") for line in text.splitlines() if "│" in line)
    return {title.strip(): drawn for title, _, drawn in found}


def table_in(text: str, heading: str) -> list[str]:
    """The lines under a heading, without the row of column titles."""
    part = text.split(f"\n{heading}")[1].split("\n\n")[0]
    return part.splitlines()[2:]
