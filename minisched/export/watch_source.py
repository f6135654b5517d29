"""Where in its source a loop is at a moment."""

from __future__ import annotations

from collections.abc import Sequence

from ..loops.design import LoopSource, source_of
from ..trace import Trace

HERE, ELSEWHERE = "▶", " "


def sources_of(trace: Trace) -> dict[str, LoopSource]:
    """The source of each host lane of a run; none where its loop is not one of ours."""
    try:
        return source_of(trace.loop)
    except ValueError:
        return {}


def line_at(trace: Trace, lane: str, time: int) -> int:
    """The line that the last slice to begin on a host lane names; 0: nobody knows."""
    line = 0
    for item in trace.slices:
        if item.start > time:
            break
        if item.lane == lane:
            line = int(item.attrs.get("line", line))
    return line


def listing(source: LoopSource, line: int, most: int) -> list[str]:
    """At most ``most`` lines of a source around the one marked; the first says where it is from."""
    lines = source.lines
    room = max(1, most - 1)
    first = min(max(0, line - room // 2), max(0, len(lines) - room))
    numbered = [
        f"{HERE if at == line and line else ELSEWHERE} {source.first_line + at:3} {lines[at]}"
        for at in range(first, min(first + room, len(lines)))
    ]
    where = f"{source.path}:{source.first_line + line}" if line else source.path
    return [where, *numbered]


def listings(trace: Trace, time: int, most: int) -> list[str]:
    """The source of every host's loop, sharing ``most`` lines."""
    found = sources_of(trace)
    if not found:
        return [f"the loop {trace.loop!r} is not one of ours: no source to show"]
    room: Sequence[int] = [most // len(found)] * len(found)
    return [
        text
        for (lane, source), share in zip(found.items(), room, strict=True)
        for text in listing(source, line_at(trace, lane, time), share)
    ]
