"""Pictures in Chinese: a scene's words by a table of patterns (``chinese.toml``).

A text is translated whole, or part by part between its semicolons and commas. A text without a
pattern stays as it is: names of loops, relays and requests, and numbers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files

from .scene import (
    CellGrid,
    Curve,
    LaneItem,
    LaneRow,
    Lanes,
    NodeTree,
    Part,
    Scene,
    Series,
    Show,
)

KINDS = {"{n}": r"(-?[\d.]+)", "{name}": r"([\w-]+)"}
BREAKS = (("; ", "；"), (", ", "，"))


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return the table: each English pattern, and its words."""
    table = tomllib.loads(files(__package__).joinpath("chinese.toml").read_text(encoding="utf-8"))
    found = list[tuple[re.Pattern[str], str]]()
    for pattern, words in table.items():
        for kind, written in KINDS.items():
            pattern = pattern.replace(kind, written)
        found.append((re.compile(pattern), words))
    return found


def in_chinese(words: str) -> str:
    """Return a text in Chinese, as far as the table knows it."""
    for pattern, said in patterns():
        if found := pattern.fullmatch(words):
            return found.expand(said)
    for mark, sign in BREAKS:
        if mark in words:
            return sign.join(map(in_chinese, words.split(mark)))
    if "\n" in words:
        return "\n".join(map(in_chinese, words.split("\n")))
    return words


def translated(scene: Scene) -> Scene:
    """Return a scene with all its words in Chinese."""
    parts = [
        Part(in_chinese(part.heading), in_chinese(part.note), [*map(shown_in_chinese, part.shows)])
        for part in scene.parts
    ]
    legend: Mapping[str, str] = {kind: in_chinese(words) for kind, words in scene.legend.items()}
    return Scene(
        in_chinese(scene.title), in_chinese(scene.about), parts, legend,
        [*map(in_chinese, scene.notes)], "zh",
    )  # fmt: skip


def shown_in_chinese(show: Show) -> Show:
    """Return one drawing with its words in Chinese."""
    match show:
        case Lanes():
            links = [
                replace(link, words=in_chinese(link.words), about=in_chinese(link.about))
                for link in show.links
            ]
            return replace(
                show, rows=[*map(row_in_chinese, show.rows)], links=links,
                flags=[*map(item_in_chinese, show.flags)], across=in_chinese(show.across),
            )  # fmt: skip
        case Curve():
            series = [Series(in_chinese(one.name), one.kind, one.values) for one in show.series]
            return replace(
                show, series=series, unit=in_chinese(show.unit), across=in_chinese(show.across),
                flags=[*map(item_in_chinese, show.flags)],
            )  # fmt: skip
        case CellGrid():
            cells = {
                at: replace(cell, text=in_chinese(cell.text), below=in_chinese(cell.below),
                            about=in_chinese(cell.about))
                for at, cell in show.cells.items()
            }  # fmt: skip
            return replace(
                show, cells=cells, rows=[*map(in_chinese, show.rows)],
                columns=[*map(in_chinese, show.columns)],
            )  # fmt: skip
        case NodeTree():
            nodes = [
                replace(node, about=in_chinese(node.about),
                        lines=(in_chinese(node.lines[0]), in_chinese(node.lines[1])))
                for node in show.nodes
            ]  # fmt: skip
            return NodeTree(nodes)


def row_in_chinese(row: LaneRow) -> LaneRow:
    """Return a lane with its words in Chinese."""
    name, note, group, group_note, tail = map(
        in_chinese, (row.name, row.note, row.group, row.group_note, row.tail)
    )
    return LaneRow(
        name, [*map(item_in_chinese, row.spans)], note, group, group_note,
        tail,
    )  # fmt: skip


def item_in_chinese(item: LaneItem) -> LaneItem:
    """Return an item with its words in Chinese."""
    label, brief, about = map(in_chinese, (item.label, item.brief, item.about))
    return replace(item, label=label, brief=brief, about=about)
