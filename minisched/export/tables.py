"""Figures in pages that are written by hand: tables and numbers from the code, never by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..loops.design import LOOPS
from ..relay import RELAYS

# -- Tables as Markdown ----------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A line for the heads, one that sets them off, and one a row; no newline at the end."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- A page whose figures are filled in ------------------------------------------------------------

DIAGRAMS = Path(__file__).resolve().parents[2] / "diagrams"
PLACE = re.compile(r"<!-- (?P<name>[\w ]+) -->.*?<!-- / -->", re.DOTALL)


def filled(name: str, figures: Mapping[str, str]) -> str:
    """The page ``diagrams/NAME.md`` with its figures as they are now, each in its places.

    A place is ``<!-- name -->..<!-- / -->``, which no reader sees; all around it is prose.

    Raises:
        ValueError: a figure has no place, or a place no figure.
    """
    page = (DIAGRAMS / f"{name}.md").read_text(encoding="utf-8")
    places = {found["name"] for found in PLACE.finditer(page)}
    if places != figures.keys():
        wrong = ", ".join(sorted(places ^ figures.keys()))
        raise ValueError(f"{name}.md and the code do not agree on the figures in it: {wrong}.")
    return PLACE.sub(lambda found: placed(found["name"], figures[found["name"]]), page)


def placed(name: str, figure: str) -> str:
    """A figure in its place; a table stands on lines of its own."""
    around = "\n\n" if "\n" in figure else ""
    return f"<!-- {name} -->{around}{figure}{around}<!-- / -->"


# -- Tables of loops and relays, for ``designs.md`` ------------------------------------------------


def loops_table() -> str:
    """Markdown: each loop with its source, its depth and its relays, the default first."""
    head = ("loop", "follows", "steps in flight", "past a length", "relays")
    rows = (
        (f"`{name}`", spec.follows, str(spec.depth), str(spec.overrun), ", ".join(spec.relays))
        for name, spec in LOOPS.items()
    )
    return table(head, rows)


def relays_table() -> str:
    """Markdown: which loop may use which relay, and what the others lack."""
    head = ("relay", "needs", "loops that take it")
    rows = (
        (f"`{name}`", spec.needs, ", ".join(loops_with(name)) or "none")
        for name, spec in RELAYS.items()
    )
    return table(head, rows)


def loops_with(relay: str) -> Iterator[str]:
    """The loops that a relay fits."""
    return (name for name, spec in LOOPS.items() if relay in spec.relays)


def refusals_table() -> str:
    """Markdown: what does not go with a loop, and the original's reason; all the rest goes."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, spec in LOOPS.items():
        for word, reason in spec.refuses.items():
            feature, _, relay = word.partition(" with ")
            if feature not in ("other relays", "real devices"):
                design = f"{name}:{relay}" if relay else name
                found.setdefault((design, reason), []).append(feature)
    loops_of: dict[tuple[str, str], list[str]] = {}
    for (name, reason), features in found.items():
        loops_of.setdefault((", ".join(features), reason), []).append(f"`{name}`")
    rows = ((features, ", ".join(names), reason) for (features, reason), names in loops_of.items())
    return table(("refused", "by", "because"), rows)
