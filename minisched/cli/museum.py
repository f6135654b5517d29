"""``minisched museum``: the published bugs, listed, shown one by one, or all of them tried."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ..export.looks import MARK
from ..museum import Exhibit, Refuted, exhibits, find, refuted
from ..museum.exhibit import address
from ..museum.page import PagePart, page, refuted_page
from ..museum.picture import draw, exhibit_lines
from ..museum.registry import Standing, bug_json, nothing_broken, refuted_json, standing_of
from ..trace.files import write_whole
from .layout import Json, cut, named_progress, print_json, say, say_command, table

museum = typer.Typer(help="Published bugs, each put back, caught by a law, drawn, and cured.")


@museum.callback(invoke_without_command=True)
def choose(context: typer.Context) -> None:
    """Published bugs, each put back, caught by a law, drawn, and cured."""
    if context.invoked_subcommand is None:
        raise ValueError(
            "museum lists or runs bugs: `museum list`, `museum run NAME`, or `museum run --all`."
        )


@museum.command("list", epilog="Example: minisched museum list")
def list_bugs(json: Json = False) -> int:
    """List the bugs by chapter, and the suspicions that were refuted; with --json it tries all."""
    return run_list(json)


@museum.command("run", epilog="Example: minisched museum run pinned_buffer_rewritten")
def run_bugs(
    name: Annotated[str | None, typer.Argument(help="Which; `museum list` names them.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Try every one.")] = False,
    out: Annotated[Path | None, typer.Option(help="Draw it into a file, .svg, as well.")] = None,
    json: Json = False,
) -> int:
    """Put a bug back: its smallest case with the offence marked, and the fix.

    Exits with 1 if a bug is not caught or the healthy code does not pass.
    """

    if bool(name) == all_of_them:
        raise ValueError("museum run takes the name of one exhibit, or --all.")
    if out and not name:
        raise ValueError("--out draws one exhibit, so it needs its name.")
    return run_one(name, out, json) if name else run_all(json)


# -- How an exhibit looks in a terminal, and the table of all of them ------------------------------

WIDEST = 120  # columns of a drawing
AS_IT_STANDS = ("diff", "links")  # a line of these is only broken where the terminal ends
STYLES = {"+": "green", "-": "red", "@": "cyan"}  # of a diff's lines


def show(item: Exhibit | Refuted, console: Console) -> None:
    """One exhibit, part by part."""
    chapter = item.chapter if isinstance(item, Exhibit) else "refuted"
    console.print(f"\n[bold]{item.title}[/bold]  [dim]{chapter}[/dim]")
    for part in parts_of(item):
        console.print(f"\n[bold]{part.heading}[/bold]")
        for line in body(part, item, min(WIDEST, console.width)):
            if part.kind == "picture":
                console.print(Text(cut(line.plain, console), line.style), soft_wrap=True)
            elif part.kind == "code":
                say_command(console, line.plain)
            elif part.kind in AS_IT_STANDS:
                say(console, Text.assemble("  ", line).markup, 4)
            else:
                console.print(Padding(line, (0, 0, 0, 2)))


def parts_of(item: Exhibit | Refuted) -> list[PagePart]:
    """The page, with the command that draws it."""
    if isinstance(item, Refuted):
        return refuted_page(item)
    return page(item, f"minisched museum run {item.name} --out {item.name}.svg")


def body(part: PagePart, item: Exhibit | Refuted, columns: int) -> Iterator[Text]:
    """A part's lines as they are coloured."""
    if part.kind == "picture" and isinstance(item, Exhibit):
        for line in exhibit_lines(item, columns):
            yield Text(line, style="bold red" if MARK in line else "")
    for line in part.body.splitlines():
        if part.kind == "diff":
            yield Text(line, style=STYLES.get(line[:1], ""))
        elif part.kind == "links":
            yield Text(f"{line}  {address(line)}")
        elif part.kind == "list":
            yield Text(f"- {line}")
        else:
            yield Text(line, style={"bad": "red", "good": "green"}.get(part.kind, ""))


def summary(standings: list[Standing], holds: dict[str, bool]) -> Iterator[RenderableType]:
    """A row for each, and a line that sums up."""
    rows: list[tuple[str | Text, ...]] = []
    for item in standings:
        caught = Text(item.caught_by) if item.caught_by else Text("not caught", style="bold red")
        green = Text("passes", "green") if item.healthy_passes else Text("fails", "bold red")
        if item.lacking:
            green = Text(f"nothing to judge: {item.lacking}", "bold red")
        rows.append((item.exhibit.name, item.exhibit.references[0], caught, green))
    yield table(("bug", "reference", "caught by", "healthy code"), rows)
    good, right = sum(item.is_good for item in standings), sum(holds.values())
    yield f"{good} of {len(standings)} bugs are caught, with the healthy code green."
    yield f"{right} of {len(holds)} refuted suspicions break nothing."


def write(item: Exhibit | Refuted, out: Path) -> None:
    """The picture of an exhibit, as SVG.

    Raises:
        ValueError: it can't be written so, or nothing is to be drawn of a suspicion.
    """
    if out.suffix != ".svg":
        raise ValueError(f"--out is {str(out)!r}, but its name must end in .svg.")
    if isinstance(item, Refuted):
        raise ValueError(f"{item.name} is refuted: nothing went wrong that could be drawn.")
    write_whole(out, draw(item), with_folders=True)


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
            print_all([], [item])
    else:
        standing = standing_of(item)
        is_good = standing.is_good
        if as_json:
            print_all([standing], [])
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
        print_all(standings, list(refuted()))
    else:
        Console(highlight=False, emoji=False).print(*summary(standings, holds), sep="\n")
    return 0 if all(item.is_good for item in standings) and all(holds.values()) else 1


def print_all(standings: list[Standing], items: list[Refuted]) -> None:
    """One object: ``bugs`` and ``refuted``."""
    bugs = [bug_json(standing) for standing in standings]
    print_json({"bugs": bugs, "refuted": [refuted_json(item) for item in items]})
