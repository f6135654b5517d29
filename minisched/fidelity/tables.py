"""The tables of the page "How true is it?": the last counts, and the rules that differ on purpose.

``lessons/site/docs/fidelity.json`` keeps the counts. A pipe from ``minisched fidelity NAME --json``
into ``python -m minisched.fidelity.tables`` stores new ones and writes the page's tables anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..policy.systems import DELIBERATE, RULES
from ..trace.files import write_whole
from .lockstep import UNEXPLAINED
from .run import ORIGINALS

ROOT = Path(__file__).resolve().parents[2]
PAGE = "lessons/site/docs/how_true_is_it.md"
KEPT = ROOT / "lessons/site/docs/fidelity.json"
COUNTED = ("original", "version", "seed", "cases", "equal", "unexplained", "parts")

PLACE = re.compile(r"<!-- (?P<name>[\w -]+) -->.*?<!-- / -->", re.DOTALL)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table without a newline at the end."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


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


def totals_table(kept: Mapping[str, Any]) -> str:
    """Return one row for each original: cases, equal, different on purpose, and the rest."""
    rows = []
    for name, told in kept.items():
        purpose = told["cases"] - told["equal"] - told["unexplained"]
        numbers = told["cases"], told["equal"], purpose, told["unexplained"]
        rows.append([f"{ORIGINALS[name].title} {told['version']}", *map(str, numbers)])
    heads = ("original", "cases", "equal", "differ by a rule on purpose", "differ otherwise")
    return table(heads, rows)


def parts_table(told: Mapping[str, Any]) -> str:
    """Return the counts of one original by part."""
    rows = []
    for part, count in told["parts"].items():
        rules = Counter(count["rules"])
        left = rules.pop(UNEXPLAINED, 0)
        said = ", ".join(f"`{rule}` {number}" for rule, number in rules.most_common())
        rows.append([part, str(count["cases"]), str(count["equal"]), said, str(left or "")])
    return table(("part", "cases", "equal", "on purpose, by", "otherwise"), rows)


def deliberate_table() -> str:
    """Return the rules in which a preset differs on purpose, with its answer and the original's."""
    rows = []
    for system, rules in DELIBERATE.items():
        for name, item in rules.items():
            here = getattr(RULES[system], name)
            rows.append([f"`{word}`" for word in (system, name, here, item.answer)] + [item.reason])
    return table(("rules", "field", "here", "the original", "why"), rows)


def stand_ins_table(name: str) -> str:
    """Return the table of an original's stand-ins."""
    rows = [
        [f"`{item.name.removeprefix('sglang.srt.')}`", item.kind, item.replaces]
        for item in ORIGINALS[name].stand_ins
    ]
    return table(("replaces", "kind", "what it is"), rows)


def tables(kept: Mapping[str, Any]) -> dict[str, str]:
    """Return all tables of the page, by the name of their place in it."""
    return {
        "totals": totals_table(kept),
        "deliberate": deliberate_table(),
        **{
            f"parts of {name}": parts_table(kept[name]) if name in kept else "not counted yet"
            for name in ORIGINALS
        },
        **{f"stand-ins of {name}": stand_ins_table(name) for name in ORIGINALS},
    }


def main() -> None:
    """Keep the counts that come on stdin, if any, and write the tables."""
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    for line in sys.stdin if not sys.stdin.isatty() else ():
        told = json.loads(line)
        kept[told["original"]] = {name: told[name] for name in COUNTED}
    kept = {name: kept[name] for name in ORIGINALS if name in kept}
    write_whole(KEPT, json.dumps(kept, indent=1) + "\n")
    write_whole(ROOT / PAGE, filled(PAGE, **tables(kept)))


if __name__ == "__main__":
    main()
