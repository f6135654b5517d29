"""The common parts of all PlantUML: sequences, links to code, escaping, colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..core.text import printable
from .looks import ARROWS, DARK_TEXT, LIGHT, flat, look

Code = Mapping[str, Callable[..., Any]]  # a name in a diagram -> what of the package it means
HEAD = "#E4E7EB"  # behind the heading of a part

# -- A sequence diagram: who tells whom, in order --------------------------------------------------

SIDES = {"host": "#FFF8EC", "device": "#EEF6FC", "relay": "#F3F0FA"}


class Actor(NamedTuple):
    """A participant's title, as PlantUML text; ``side`` is the box in which it stands."""

    title: str
    side: str


class Told(NamedTuple):
    """A note over an actor in the look of ``kind``, for as long as that takes; or a message.

    With ``to`` it is a message, with no actor a heading.
    """

    actor: str
    words: str
    start: int = 0
    end: int = 0
    kind: str = ""
    to: str = ""
    arrow: str = "->"


def sequence(actors: Mapping[str, Actor], told: Iterable[Told], code: Code) -> Iterator[str]:
    """The diagram behind its title; notes of what runs at the same time stand in one row.

    Links are on messages only: on a note, which has a colour, none could be told.
    """
    yield "!pragma teoz true"
    yield "hide footbox"
    yield "skinparam sequenceMessageAlign center"
    yield "skinparam defaultFontSize 12"
    yield from LINK_STYLE if code else ()
    for side in dict.fromkeys(actor.side for actor in actors.values()):
        yield f"box {side.capitalize()} {SIDES.get(side, HEAD)}"
        for name, actor in actors.items():
            if actor.side == side:
                yield f'participant "{actor.title}" as {name}'
        yield "end box"
    row: dict[str, Told] = {}  # who has a note in the row that is being written
    for one in told:
        if one.to or not one.actor:
            row, words = {}, creole(one.words)
            message = f"{one.actor} {one.arrow} {one.to} : {linked(words, code)}"
            yield message if one.actor else f"== {words} =="
            continue
        beside = row and one.actor not in row and all(it.end > one.start for it in row.values())
        row = {**row, one.actor: one} if beside else {one.actor: one}
        about = "\\n".join(ink(one.kind, creole(line)) for line in one.words.split("\n"))
        yield f"{'& ' if beside else ''}rnote over {one.actor} {flat(one.kind)} : {about}"


# -- Names of functions in a diagram as links to their code ----------------------------------------
#
# ``[[../minisched/engine/engine.py#Engine.chain chain()]]``: the file as it lies from
# ``diagrams/``, so that a code host and a browser find it, then the function. The function itself
# is given, and never its path, so that a link cannot outlive what it leads to.


LINK_COLOUR = "#0B57A4"
LINK_STYLE = (f"skinparam hyperlinkColor {LINK_COLOUR}", "skinparam hyperlinkUnderline false")


def address(function: Callable[..., Any]) -> str:
    """Where a function or a class of the package stands, seen from ``diagrams/``."""
    path = function.__module__.replace(".", "/")
    return f"../{path}.py#{function.__qualname__}"


def linked(text: str, code: Code) -> str:
    """PlantUML text in which every name of ``code`` is a link, with the ``()`` behind it if any."""
    if not code:
        return text
    names = "|".join(map(re.escape, sorted(code, key=len, reverse=True)))
    return re.sub(rf"\b({names})\b(\(\))?", lambda found: _link(found, code), text)


def _link(found: re.Match[str], code: Code) -> str:
    return f"[[{address(code[found[1]])} {found[0]}]]"


def creole(text: str) -> str:
    """Text without what PlantUML would read as markup, or as the end of a string."""
    written = printable(text)
    return MARKUP.sub(lambda found: "".join(f"<U+{ord(c):04X}>" for c in found[0]), written)


MARKUP = re.compile(r'["\\~<>\n]|([*/_-])\1+')


def ink(kind: str, words: str) -> str:
    """Text in a look's colour, if that is not ink; ``words`` are escaped already."""
    is_light = look(kind).text != DARK_TEXT
    return f"<color:{look(kind).text}>{words}</color>" if is_light else words


def arrow_colour(kind: str) -> str:
    """The colour of an edge."""
    return LIGHT[kind if kind in ARROWS else "ink"]
