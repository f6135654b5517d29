"""The common parts of all PlantUML: sequences, links to code, escaping, colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..core.text import printable
from .looks import ARROWS, DARK_TEXT, LIGHT, flat, look

Code = Mapping[str, Callable[..., Any]]  # a name in a diagram -> its code
# The first line of a diagram, in PlantUML's comments.
OLD = "' Renders with PlantUML 1.2020.2 (Debian 12) or newer."
NEW = "' Needs PlantUML 1.2025.0 or newer; the one of Debian 12 (1.2020.2) is too old."
HEAD = "#E4E7EB"  # the background of a part's heading

# -- A sequence diagram: messages in order ---------------------------------------------------------

SIDES = {"host": "#FFF8EC", "device": "#EEF6FC", "relay": "#F3F0FA"}


class Actor(NamedTuple):
    """A participant's title, as PlantUML text; ``side`` is the box in which it stands."""

    title: str
    side: str


class Told(NamedTuple):
    """A note over an actor in the look of ``kind``, or a message.

    With ``to`` it is a message; without an actor it is a heading.
    """

    actor: str
    words: str
    start: int = 0
    end: int = 0
    kind: str = ""
    to: str = ""
    arrow: str = "->"


def sequence(actors: Mapping[str, Actor], told: Iterable[Told], code: Code) -> Iterator[str]:
    """Yield the diagram after its title; notes at the same time stand in one row.

    Only messages have links: on the colour of a note a link would be invisible.
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
    row: dict[str, Told] = {}  # the notes of the row in progress, by actor
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
# ``[[../minisched/engine/engine.py#Engine.chain chain()]]``: the file as seen from
# ``diagrams/``, for a code host and a browser, then the function. Callers pass the function
# itself and never its path, so no link outlives its target.


LINK_COLOUR = "#0B57A4"
LINK_STYLE = (f"skinparam hyperlinkColor {LINK_COLOUR}", "skinparam hyperlinkUnderline false")


def address(function: Callable[..., Any]) -> str:
    """Return the place of a function or a class of the package, seen from ``diagrams/``."""
    path = function.__module__.replace(".", "/")
    return f"../{path}.py#{function.__qualname__}"


def linked(text: str, code: Code) -> str:
    """Return PlantUML text in which every name of ``code`` is a link, with its ``()`` if any."""
    if not code:
        return text
    names = "|".join(map(re.escape, sorted(code, key=len, reverse=True)))
    return re.sub(rf"\b({names})\b(\(\))?", lambda found: _link(found, code), text)


def _link(found: re.Match[str], code: Code) -> str:
    return f"[[{address(code[found[1]])} {found[0]}]]"


def creole(text: str) -> str:
    """Return text with PlantUML's markup and ends of strings escaped."""
    written = printable(text)
    return MARKUP.sub(lambda found: "".join(f"<U+{ord(c):04X}>" for c in found[0]), written)


MARKUP = re.compile(r'["\\~<>\n]|([*/_-])\1+')


def ink(kind: str, words: str) -> str:
    """Return text in a look's colour, unless that is ink; ``words`` are already escaped."""
    is_light = look(kind).text != DARK_TEXT
    return f"<color:{look(kind).text}>{words}</color>" if is_light else words


def arrow_colour(kind: str) -> str:
    """Return the colour of an edge."""
    return LIGHT[kind if kind in ARROWS else "ink"]
