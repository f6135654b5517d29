"""What is kept of a measurement: ``traces/bench/PART.json``, and as a table ``PART.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..trace.files import write_whole

FOLDER = Path("traces/bench")


def keep(part: str, document: dict[str, Any], root: Path) -> list[Path]:
    """Write both files below ``root``; gives their paths.

    Raises:
        ValueError: they can't be written; one sentence.
    """
    folder = root / FOLDER
    texts = {
        folder / f"{part}.json": json.dumps(document, indent=1) + "\n",
        folder / f"{part}.md": "\n".join(to_markdown(part, document)) + "\n",
    }
    for path, text in texts.items():
        write_whole(path, text, with_folders=True)
    return list(texts)


def to_markdown(part: str, document: dict[str, Any]) -> Iterator[str]:
    """The table of a measurement, and the machine below it."""
    yield f"# minisched bench {part}\n"
    yield "| what | median | min | max | unit | aim | met |"
    yield "|---|--:|--:|--:|---|---|---|"
    for row in document["rows"]:
        yield f"| {' | '.join(cells(row))} |"
    if document.get("asked"):
        yield f"\n{', '.join(f'{name} {value}' for name, value in document['asked'].items())}."
    machine = document["machine"]
    yield f"\n{', '.join(f'{name} {value}' for name, value in machine.items())}."
    yield f"\n{', '.join(f'{name} {version}' for name, version in document['versions'].items())}."


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    numbers = [
        "-" if row[name] is None else f"{row[name]:.4g}" for name in ("median", "min", "max")
    ]
    aim = "" if row["aim"] is None else f"{row['aim']:g}"
    reason = row.get("reason", "")
    met = {None: reason, True: "yes", False: f"no: {reason}" if reason else "no"}[row["met"]]
    return [row["name"], *numbers, row["unit"], aim, met]
