"""``minisched museum``: the published bugs: a list, one exhibit, or a check of all."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from ..export.looks import MARK
from ..export.scene_svg import to_svg
from ..export.scene_text import to_text
from ..museum import Exhibit, exhibits, find, refuted
from ..museum.exhibit import Standing, address, standing_of
from ..museum.page import PagePart, bug_json, page
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
    if json:  # which reports the bugs that reproduce
        return run_all(json)
    for chapter, items in groupby((*exhibits(), *refuted()), lambda item: item.chapter):
        say(Text(f"\n{chapter[0].upper()}{chapter[1:]}", "bold"))
        for item in items:
            confirmed = " (a suspicion, confirmed)" if item.suspected_at else ""
            say(Text.assemble("  ", (item.name, "cyan"), f": {item.title}"))
            say(f"    {first_sentence(item.symptom)}")
            say(Text(f"    {', '.join(item.references)}{confirmed}", "dim"))
    return 0


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


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
        if item.is_refuted:
            raise ValueError(f"{item.name} is refuted: nothing went wrong that could be drawn.")
        write_whole(out, to_svg(exhibit_scene(item)), with_folders=True)
    standing = standing_of(item)
    if json:
        print_all([standing])
    else:
        say(Text.assemble("\n", (item.title, "bold"), "  ", (item.chapter, "dim")))
        for part in page(item):
            show(part, item)
        if out:
            print(f"\nDrawn in {out}.")
    return 0 if standing.is_good else 1


COLOURS = {"bad": "red", "good": "green", "+": "green", "-": "red", "@": "cyan"}


def show(part: PagePart, item: Exhibit) -> None:
    """Print one part of an exhibit."""
    say(Text(f"\n{part.heading}", "bold"))
    if part.kind == "picture":
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
    """Try every exhibit and every refuted suspicion with a progress bar; print a table or JSON."""
    standings, every = list[Standing](), (*exhibits(), *refuted())
    with work_progress(len(every)) as work:
        for item in every:
            work.advance(item.name)
            standings.append(standing_of(item))
    if as_json:
        print_all(standings)
    else:
        bugs = [it for it in standings if not it.exhibit.is_refuted]
        rows = []
        for it in bugs:
            green = "passes" if it.healthy_passes else "✗ fails"
            green = f"✗ nothing to judge: {it.lacking}" if it.lacking else green
            caught = it.caught_by or "✗ not caught"
            rows.append((it.exhibit.name, it.exhibit.references[0], caught, green))
        say_table(("bug", "reference", "caught by", "healthy code"), rows)
        good = sum(it.is_good for it in bugs)
        holds = [it.is_good for it in standings if it.exhibit.is_refuted]
        print(f"{good} of {len(bugs)} bugs are caught, with the healthy code green.")
        print(f"{sum(holds)} of {len(holds)} refuted suspicions break nothing.")
    return 0 if all(it.is_good for it in standings) else 1


def print_all(standings: list[Standing]) -> None:
    """Print one object: ``bugs`` and ``refuted``."""
    told: dict[str, list[Any]] = {"bugs": [], "refuted": []}
    for it in standings:
        told["refuted" if it.exhibit.is_refuted else "bugs"].append(bug_json(it))
    print_json(told)
