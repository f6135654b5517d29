"""``minisched museum``: the published bugs, listed, shown one by one, or all of them tried."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ..museum import Exhibit, Refuted, exhibits, find, refuted
from ..museum.standing import Standing, bug_json, nothing_broken, refuted_json, standing_of
from .layout import say
from .museum_page import show, table, write
from .progress import named_progress


def run_list(as_json: bool) -> int:
    """Print names, titles and references by chapter. JSON says what stands, so it tries all."""
    if as_json:
        return run_all(as_json)
    console = Console(highlight=False, emoji=False)
    for chapter, items in groupby(exhibits(), lambda item: item.chapter):
        print_chapter(console, chapter, list(items))
    print_chapter(console, "refuted", list(refuted()))
    return 0


def print_chapter(console: Console, heading: str, items: list[Exhibit] | list[Refuted]) -> None:
    """A chapter: each exhibit's name, its title and where it was published."""
    if items:
        console.print(f"\n[bold]{heading[0].upper()}{heading[1:]}[/bold]")
    for item in items:
        title = Text.assemble((item.name, "cyan"), f": {item.title}")
        console.print(Padding(title, (0, 0, 0, 2)))
        is_confirmed = isinstance(item, Exhibit) and item.suspected_at
        confirmed = " (a suspicion, confirmed)" if is_confirmed else ""
        references = Text(", ".join(item.references) + confirmed, style="dim")
        console.print(Padding(references, (0, 0, 0, 4)))


def run_one(name: str, out: Path | None, as_json: bool) -> int:
    """Show one exhibit; gives 1 if the bug is not caught or the healthy code does not pass.

    Raises:
        ValueError: nothing has this name, or the picture can't be written.
    """
    item = find(name)
    if out:
        write(item, out)
    if isinstance(item, Refuted):
        is_good = nothing_broken(item)
        if as_json:
            print_json([], [item])
    else:
        standing = standing_of(item)
        is_good = standing.is_good
        if as_json:
            print_json([standing], [])
    if not as_json:
        console = Console(highlight=False, emoji=False)
        show(item, console)
        if out:
            say(console, escape(f"\nDrawn in {out}."))
    return 0 if is_good else 1


def run_all(as_json: bool) -> int:
    """Try every exhibit and every refuted suspicion, with a bar; then a table, or JSON."""
    with named_progress(len(exhibits()) + len(refuted())) as hear:
        standings = []
        for exhibit in exhibits():
            hear(exhibit.name)
            standings.append(standing_of(exhibit))
        holds = {}
        for item in refuted():
            hear(item.name)
            holds[item.name] = nothing_broken(item)
    if as_json:
        print_json(standings, list(refuted()))
    else:
        Console(highlight=False, emoji=False).print(*table(standings, holds), sep="\n")
    return 0 if all(item.is_good for item in standings) and all(holds.values()) else 1


def print_json(standings: list[Standing], items: list[Refuted]) -> None:
    """One object: ``bugs`` and ``refuted``."""
    bugs = [bug_json(standing) for standing in standings]
    print(json.dumps({"bugs": bugs, "refuted": [refuted_json(item) for item in items]}))
