"""``minisched museum``: the published bugs, listed, shown one by one, or all of them tried."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import typer
from rich.text import Text

from ..export.looks import MARK
from ..export.scene_svg import to_svg
from ..export.scene_text import to_text
from ..museum import Exhibit, Refuted, exhibits, find, refuted
from ..museum.exhibit import Standing, address, nothing_broken, standing_of
from ..museum.page import PagePart, bug_json, page, refuted_json
from ..museum.picture import exhibit_scene
from ..trace.files import write_whole
from .layout import JSON, columns, print_json, say, say_command, say_table, work_progress
from .options import setting, with_options

museum = typer.Typer(
    name="museum", help="Published bugs, each put back, caught by a law, drawn, and cured."
)


@museum.callback(invoke_without_command=True)
def choose(context: typer.Context) -> None:
    """Published bugs, each put back, caught by a law, drawn, and cured."""
    if context.invoked_subcommand is None:
        raise ValueError(
            "museum lists or runs bugs: `museum list`, `museum run NAME`, or `museum run --all`."
        )


@museum.command("list", epilog="Example: minisched museum list")
@with_options
def list_bugs(json: bool = JSON) -> int:
    """List the bugs by chapter, and the suspicions that were refuted; with --json it tries all."""
    if json:  # which says what stands
        return run_all(json)
    every: list[Exhibit | Refuted] = [*exhibits(), *refuted()]
    for chapter, items in groupby(every, lambda item: item.chapter):
        say(Text(f"\n{chapter[0].upper()}{chapter[1:]}", "bold"))
        for item in items:
            is_confirmed = isinstance(item, Exhibit) and item.suspected_at
            confirmed = " (a suspicion, confirmed)" if is_confirmed else ""
            say(Text.assemble("  ", (item.name, "cyan"), f": {item.title}"))
            say(Text(f"    {', '.join(item.references)}{confirmed}", "dim"))
    return 0


@museum.command("run", epilog="Example: minisched museum run pinned_buffer_rewritten")
@with_options
def run_bugs(
    name: str | None = typer.Argument(None, help="Which; `museum list` names them."),
    all: bool = setting(False, "Try every one."),
    out: Path | None = setting(None, "Draw it into a file, .svg, as well."),
    json: bool = JSON,
) -> int:
    """Put a bug back: its smallest case with the offence marked, and the fix.

    Exits with 1 if a bug is not caught or the healthy code does not pass.
    """
    if bool(name) == all:
        raise ValueError("museum run takes the name of one exhibit, or --all.")
    if out and not name:
        raise ValueError("--out draws one exhibit, so it needs its name.")
    if not name:
        return run_all(json)
    item = find(name)
    if out:
        if out.suffix != ".svg":
            raise ValueError(f"--out is {str(out)!r}, but its name must end in .svg.")
        if isinstance(item, Refuted):
            raise ValueError(f"{item.name} is refuted: nothing went wrong that could be drawn.")
        write_whole(out, to_svg(exhibit_scene(item)), with_folders=True)
    standing = standing_of(item) if isinstance(item, Exhibit) else None
    if json:
        print_all([standing] if standing else [], [item] if isinstance(item, Refuted) else [])
    else:
        say(Text.assemble("\n", (item.title, "bold"), "  ", (item.chapter, "dim")))
        for part in page(item):
            show(part, item)
        if out:
            print(f"\nDrawn in {out}.")
    is_good = standing.is_good if standing else isinstance(item, Refuted) and nothing_broken(item)
    return 0 if is_good else 1


COLOURS = {"bad": "red", "good": "green", "+": "green", "-": "red", "@": "cyan"}


def show(part: PagePart, item: Exhibit | Refuted) -> None:
    """One part of an exhibit."""
    say(Text(f"\n{part.heading}", "bold"))
    if part.kind == "picture" and isinstance(item, Exhibit):
        for line in to_text(exhibit_scene(item), columns()).splitlines():
            say(Text(line, "bold red" if MARK in line else ""))
    for line in part.body.splitlines():
        if part.kind == "code":
            say_command(line)
            continue
        colour = COLOURS.get(line[:1] if part.kind == "diff" else part.kind, "")
        sign = "- " if part.kind == "list" else ""
        link = f"  {address(line)}" if part.kind == "links" else ""
        say(Text.assemble("  ", (f"{sign}{line}{link}", colour)))


def run_all(as_json: bool) -> int:
    """Try every exhibit and every refuted suspicion, with a bar; then a table, or JSON."""
    standings, holds = list[Standing](), list[bool]()
    with work_progress(len(exhibits()) + len(refuted())) as work:
        for exhibit in exhibits():
            work.advance(exhibit.name)
            standings.append(standing_of(exhibit))
        for item in refuted():
            work.advance(item.name)
            holds.append(nothing_broken(item))
    good = sum(item.is_good for item in standings)
    if as_json:
        print_all(standings, list(refuted()))
    else:
        rows = []
        for it in standings:
            green = "passes" if it.healthy_passes else "✗ fails"
            green = f"✗ nothing to judge: {it.lacking}" if it.lacking else green
            caught = it.caught_by or "✗ not caught"
            rows.append((it.exhibit.name, it.exhibit.references[0], caught, green))
        say_table(("bug", "reference", "caught by", "healthy code"), rows)
        print(f"{good} of {len(standings)} bugs are caught, with the healthy code green.")
        print(f"{sum(holds)} of {len(holds)} refuted suspicions break nothing.")
    return 0 if good == len(standings) and all(holds) else 1


def print_all(standings: list[Standing], items: list[Refuted]) -> None:
    """One object: ``bugs`` and ``refuted``."""
    bugs = [bug_json(standing) for standing in standings]
    print_json({"bugs": bugs, "refuted": [refuted_json(item) for item in items]})
