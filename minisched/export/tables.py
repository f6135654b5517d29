"""Tables and numbers from the code in pages that are otherwise written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..loops.design import LOOPS
from ..relay import RELAYS

# -- Tables as Markdown ----------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table without a newline at the end."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- A page with places for figures ----------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"<!-- (?P<name>[\w -]+) -->.*?<!-- / -->", re.DOTALL)


def filled(path: str, **figures: object) -> str:
    """Return a page of the repository with its current figures, each in its place.

    A place is ``<!-- name -->..<!-- / -->``, which a reader does not see; the rest is prose.

    Raises:
        ValueError: a figure has no place, or a place no figure.
    """
    page = (ROOT / path).read_text(encoding="utf-8")
    places = {found["name"] for found in PLACE.finditer(page)}
    if places != figures.keys():
        wrong = ", ".join(sorted(places ^ figures.keys()))
        raise ValueError(f"{path} and the code do not agree on the figures in it: {wrong}.")

    def placed(found: re.Match[str]) -> str:
        """Put a figure in its place; a table gets lines of its own."""
        figure = str(figures[found["name"]])
        around = "\n\n" if "\n" in figure else ""
        return f"<!-- {found['name']} -->{around}{figure}{around}<!-- / -->"

    return PLACE.sub(placed, page)


# -- ``designs.md``: the loops and the relays ------------------------------------------------------


def designs_page() -> str:
    """Fill the page: the loops, the relays, and the features that loops refuse, with reasons."""
    loops = (
        (f"`{name}`", spec.follows, str(spec.depth), str(spec.overrun), ", ".join(spec.relays))
        for name, spec in LOOPS.items()
    )
    taken_by = {relay: [name for name, spec in LOOPS.items() if relay in spec.relays]
                for relay in RELAYS}  # fmt: skip
    relays = (
        (f"`{name}`", spec.needs, ", ".join(taken_by[name]) or "none")
        for name, spec in RELAYS.items()
    )
    return filled(
        "lessons/site/docs/designs.md",
        loops=table(("loop", "follows", "steps in flight", "past a length", "relays"), loops),
        relays=table(("relay", "needs", "loops that take it"), relays),
        refusals=table(("refused", "by", "because"), refusals()),
    )


def refusals() -> Iterator[tuple[str, str, str]]:
    """Yield refused features, the designs that refuse them, and the original's reason."""
    features_of: dict[tuple[str, str], list[str]] = {}
    for name, spec in LOOPS.items():
        for word, reason in spec.refuses.items():
            feature, _, relay = word.partition(" with ")
            if feature not in ("other relays", "real devices"):
                design = f"`{name}:{relay}`" if relay else f"`{name}`"
                features_of.setdefault((design, reason), []).append(feature)
    designs_of: dict[tuple[str, str], list[str]] = {}
    for (design, reason), features in features_of.items():
        designs_of.setdefault((", ".join(features), reason), []).append(design)
    for (refused, reason), designs in designs_of.items():
        yield refused, ", ".join(designs), reason
