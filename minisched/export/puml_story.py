"""A story as a PlantUML sequence diagram: the design's own participants, in the run's order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..trace import Trace
from .layout import View
from .palette import paint
from .puml_links import LINK_STYLE, linked
from .puml_style import WAIT, creole, written
from .story import Story, StoryEvent, events
from .units import ms
from .window import view_of_steps

SIDES = {"host": "#FFF8EC", "device": "#EEF6FC", "relay": "#F3F0FA"}
LINE = re.compile(r"(\w+)(?: (-+>+) (\w+))?: (.*)", re.S)


def to_story(trace: Trace, story: Story, first_step: int, last_step: int, title: str) -> str:
    """The diagram of the steps from ``first_step`` to ``last_step``.

    Raises:
        ValueError: the run has no such steps.
    """
    view = view_of_steps(trace, first_step, last_step)
    about = f"{trace.loop} on {trace.device}: steps {first_step} to {last_step}, "
    title = f"{creole(title)}\\n{creole(about)}{ms(view.duration)} ms; time runs down"
    return _document(title, story, _body(story, events(trace, view.start, view.end)))


class Chapter(NamedTuple):
    """What one of several runs shows; ``says`` are lines that only it is told in."""

    heading: str
    view: View
    says: Mapping[str, Sequence[str]]


def to_chapters(story: Story, chapters: Sequence[Chapter], title: str) -> str:
    """One diagram of several runs, each under its heading."""
    body: list[str] = []
    for heading, view, says in chapters:
        body.append(f"== {creole(f'{heading} ({ms(view.duration)} ms)')} ==")
        told = replace(story, says={**story.says, **says})
        body += _body(told, events(view.trace, view.start, view.end))
    return _document(f"{creole(title)}\\ntime runs down", story, body)


def _document(title: str, story: Story, body: Iterable[str]) -> str:
    """The text around the body; ``title`` is PlantUML text."""
    return "\n".join(
        [
            "@startuml",
            "!pragma teoz true",
            f"title {title}",
            "hide footbox",
            "skinparam sequenceMessageAlign center",
            "skinparam defaultFontSize 12",
            *(LINK_STYLE if story.code else ()),
            *_participants(story),
            *body,
            "@enduml",
            "",
        ]
    )


def _participants(story: Story) -> Iterator[str]:
    for side in dict.fromkeys(actor.side for actor in story.actors.values()):
        yield f"box {side.capitalize()} {SIDES[side]}"
        for key, actor in story.actors.items():
            if actor.side == side:
                yield f'participant "{actor.title}" as {key}'
        yield "end box"


def _body(story: Story, told: list[StoryEvent]) -> Iterator[str]:
    """Every event's lines. Notes of what runs at the same time stand in one row.

    Links are on arrows only: a note has the colour of its phase, on which no link could be told.
    """
    row: dict[str, StoryEvent] = {}  # who has a note in the row that is being written
    for event in told:
        for line in story.lines(event):
            actor, arrow, other, words = _parsed(line, event)
            if arrow:
                row = {}
                yield f"{actor} {arrow} {other} : {linked(creole(words), story.code)}"
                continue
            beside = row and actor not in row and all(e.end > event.start for e in row.values())
            row = {**row, actor: event} if beside else {actor: event}
            yield _note("& " if beside else "", actor, event, words)


def _note(joined: str, actor: str, event: StoryEvent, words: str) -> str:
    """A note in the colour of its phase; lines of words are kept apart."""
    colours = WAIT if event.name == "mark wait" else paint(event.name)
    about = "\\n".join(written(line, colours) for line in words.split("\n"))
    return f"{joined}rnote over {actor} {colours.fill} : {about}"


def _parsed(line: str, event: StoryEvent) -> tuple[str, str, str, str]:
    """Who says what to whom, with the event's numbers in it."""
    found = LINE.fullmatch(line)
    assert found, f"{line!r} is no line of a story"
    actor, arrow, other, words = found.groups("")
    return actor, arrow, other, words.format_map(event.fields)
