"""Queue, set, slots, pages, rows, tree and counters at a moment, as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from ..trace import Trace
from .counter_units import counted
from .state import Panel, Stay
from .state.memory import pool
from .state.side import one_side
from .watch_signs import FREE, GLYPHS

RING_KINDS = ("promised", "stored", "stale")
BESIDE = {"wasted": " (zombie)", "sending": " (its KV is on its way)"}  # a name in the set
MOST_NODES, MOST_NAMED = 6, 12


def state_lines(trace: Trace, panels: Sequence[Panel], time: int, columns: int) -> list[str]:
    """What the panels hold, no line wider than ``columns``; an empty panel has no line.

    Those of a pair of schedulers stand below the name of their side.
    """
    lines: list[str] = []
    side = ""
    for panel in panels:
        if panel.places:
            lines += [f"-- {panel.side} side --"] * (panel.side != side)
            side = panel.side
            lines += WRITERS[panel.name](trace, panel, time, columns)
    lines += ["-- both sides --"] * bool(side)
    lines += _counters(trace, time)
    return [part for line in lines for part in _broken(line, columns)]


def _broken(line: str, columns: int) -> list[str]:
    """A line as several, if it is too long."""
    return [line] if len(line) <= columns else wrap(line, columns, subsequent_indent="    ")


def _requests(trace: Trace, panel: Panel, time: int, columns: int) -> Iterator[str]:
    """Who is there; of a zombie it is said that it is one, of a transfer that there is one."""
    now = panel.at(time).values()
    names = [stay.rid + BESIDE.get(stay.kind, "") for stay in now]
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    yield f"{panel.title}: {', '.join([*names[:MOST_NAMED], *more]) or 'empty'}"


def _ring(trace: Trace, panel: Panel, time: int, columns: int) -> Iterator[str]:
    """How many slots of each kind, a map, and whose are those that somebody will read."""
    now = panel.at(time)
    kinds = Counter(stay.kind for stay in now.values())
    said = ", ".join(f"{kinds[kind]} {GLYPHS[kind]} {kind}" for kind in RING_KINDS)
    yield f"{panel.title}: {said}"
    yield from _map(panel, now, columns)
    held = [now[place] for place in panel.places if place in now]
    alive = [f"{stay.place.removeprefix('slot ')} {GLYPHS[stay.kind]} {stay.label}"
             for stay in held if stay.kind != "stale"]  # fmt: skip
    if alive:
        yield f"  {', '.join(alive)}"


def _pages(trace: Trace, panel: Panel, time: int, columns: int) -> Iterator[str]:
    """How many each has, and a map."""
    now, size = panel.at(time), pool(one_side(trace, panel.side))
    total = f" of {size.pages}" if size else ""
    whose = Counter(_whose(stay) for stay in now.values())
    said = "; ".join(f"{name} {count}" for name, count in sorted(whose.items()))
    yield f"{panel.title}: {len(now)}{total} in use{': ' if said else ''}{said}"
    yield from _map(panel, now, columns)


def _map(panel: Panel, now: Mapping[str, Stay], columns: int) -> Iterator[str]:
    """A sign a place, two lines at most; where there are more, a sign for several.

    Then it is the first one's that holds anything.
    """
    room = max(1, columns - 2)
    each = max(1, -(-len(panel.places) // (2 * room)))
    groups = [panel.places[at : at + each] for at in range(0, len(panel.places), each)]
    signs = [next((GLYPHS[now[p].kind] for p in group if p in now), FREE) for group in groups]
    for first in range(0, len(signs), room):
        yield "  " + "".join(signs[first : first + room])
    if each > 1:
        yield f"  a sign is {each} {panel.places[0].split()[0]}s"


def _whose(stay: Stay) -> str:
    """A request, the prefix cache, which may be locked, or a zombie."""
    if not stay.rid:
        return "cached, locked" if stay.kind == "protected" else "cached, evictable"
    return f"{stay.rid} (zombie)" if stay.kind == "wasted" else stay.rid


def _rows(trace: Trace, panel: Panel, time: int, columns: int) -> Iterator[str]:
    now = panel.at(time)
    held = [f"{place.removeprefix('row ')} {_whose(now[place])}"
            for place in panel.places if place in now]  # fmt: skip
    yield f"{panel.title}: {', '.join(held) or 'all free'}"


def _tree(trace: Trace, panel: Panel, time: int, columns: int) -> Iterator[str]:
    """A line a node, deeper ones further in."""
    now = panel.at(time)
    nodes = [stay for place in panel.places if (stay := now.get(place))]
    yield f"{panel.title}: {len(nodes)} node{'s' * (len(nodes) != 1)}"
    depths: dict[str, int] = {}
    for stay in nodes[:MOST_NODES]:
        depths[stay.place] = depth = depths.get(stay.parent, 0) + 1
        yield f"{'  ' * depth}{GLYPHS[stay.kind]} {stay.place}: tokens {stay.label}; {stay.about}"
    if len(nodes) > MOST_NODES:
        yield f"  and {len(nodes) - MOST_NODES} more"


def _counters(trace: Trace, time: int) -> Iterator[str]:
    """Every counter that the run has, as it was last set."""
    now: dict[str, int] = {item.name: 0 for item in trace.counters}
    now |= {item.name: item.value for item in trace.counters if item.time <= time}
    if now:
        yield "counters: " + ", ".join(_counter(name, value) for name, value in now.items())


def _counter(name: str, recorded: int) -> str:
    """``kv used 64 tokens``; a ratio needs no unit."""
    of = counted(name)
    unit = "" if of.unit == "ratio" else of.unit
    return f"{of.title} {of.value(recorded):g} {unit}".rstrip()


WRITERS = {
    "queue": _requests, "set": _requests, "ring": _ring, "pages": _pages, "rows": _rows,
    "tree": _tree,
}  # fmt: skip
