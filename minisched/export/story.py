"""A design's own figure: its participants, and what they tell each other at each phase of a run.

The sentences are written by hand; when each is said, how often, with which numbers and in which
order is read off a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .layout import View
from .looks import LOOKS, flat
from .puml_style import LINK_STYLE, Code, creole, ink, linked
from .units import ms

Field = str | int


@dataclass(frozen=True)
class Actor:
    """A participant; ``side`` is the box in which it stands."""

    title: str
    side: str


@dataclass(frozen=True)
class Story:
    """Who takes part, in order, and the lines that each event is told in.

    A line is ``actor: words``, a note over one participant, or ``actor -> actor: words`` (``->>``
    for what does not wait, ``-->`` for an answer). Its fields are those of ``StoryEvent``. ``says``
    is looked up by ``LANE NAME`` or ``mark NAME VALUE`` (of one of its attributes), then by
    ``NAME``; an event that it does not name is left out. ``code`` are the functions that its arrows
    name; where that is the original's name, it means what stands for it here.
    """

    actors: Mapping[str, Actor]
    says: Mapping[str, Sequence[str]]
    code: Code = field(default_factory=dict)

    def lines(self, event: StoryEvent) -> Sequence[str]:
        """The lines in which an event is told."""
        keys = [f"{event.lane} {event.name}"]
        keys += [f"{event.name} {value}" for value in event.fields.values()]
        return next((self.says[key] for key in [*keys, event.name] if key in self.says), ())


@dataclass(frozen=True)
class StoryEvent:
    """Something that happened in a run.

    ``name`` is a slice's, or ``NAME end``, or one of these: ``put`` (the end of a step's last
    launch), ``take`` (the host turns to a step's result: its wait, or its processing where it need
    not wait), ``relay`` (a forward pass reads tokens that the host has not seen), ``mark NAME``.

    ``fields`` are ``step``, ``before`` (the step before it), ``ms``, ``rids``, ``mode``, ``at``
    (milliseconds into the view), ``queue`` (the steps launched and not yet taken, oldest first),
    ``src`` (of ``relay``: the step it reads from), what a mark brings, and what the marks of the
    same step have brought.
    """

    name: str
    start: int
    end: int
    lane: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)


def events(trace: Trace, start: int, end: int) -> list[StoryEvent]:
    """What began between two moments, in order of time; at one moment what ends comes first."""
    puts, takes = _queue(trace)
    found = [*_slices(trace), *_relayed(trace)]
    for name, items in (("put", puts), ("take", takes)):
        for time, item in items.values():
            found.append(StoryEvent(name, time, time, item.lane, _fields(item)))
    brought: dict[Field, dict[str, Field]] = {}
    for mark in trace.marks:
        fields = {name: value if isinstance(value, int) else str(value)
                  for name, value in mark.attrs.items()}  # fmt: skip
        found.append(StoryEvent(f"mark {mark.name}", mark.time, mark.time, "", fields))
        brought.setdefault(fields.get("step", 0), {}).update(fields)
    steps, told = {item.step for item in trace.slices}, []
    for event in sorted(found, key=lambda event: (event.start, event.end > event.start)):
        if start <= event.start < end:
            now, step = event.start, event.fields.get("step", 0)
            until = now if event.name == "put" else now + 1  # at one moment puts come before takes
            queue = [str(one) for one, (put, _) in sorted(puts.items(), key=lambda of: of[1][0])
                     if put <= now and not (one in takes and takes[one][0] < until)]  # fmt: skip
            more: dict[str, Field] = {
                "queue": " ".join(queue) or "empty",
                "at": ms(now - start),
                "before": max((other for other in steps if other < int(step)), default=0),
            }
            fields = {**more, **brought.get(step, {}), **event.fields}
            told.append(replace(event, fields=fields))
    return told


def _slices(trace: Trace) -> Iterator[StoryEvent]:
    for item in trace.slices:
        if item.duration:
            yield StoryEvent(item.name, item.start, item.end, item.lane, _fields(item))
        yield StoryEvent(f"{item.name} end", item.end, item.end, item.lane, _fields(item))


def _fields(item: Slice) -> dict[str, Field]:
    rids = ", ".join(item.rids)
    return {"step": item.step, "ms": ms(item.duration), "rids": rids, "mode": item.mode}


def _queue(trace: Trace) -> tuple[dict[int, tuple[int, Slice]], dict[int, tuple[int, Slice]]]:
    """When each step entered the queue, launched, and when the host turned to it, by step."""
    puts, takes = dict[int, tuple[int, Slice]](), dict[int, tuple[int, Slice]]()
    for item in trace.slices:
        if is_host(item.lane) and item.name == "launch":
            puts[item.step] = item.end, item
        if is_host(item.lane) and item.name in ("wait", "process") and item.step:
            takes.setdefault(item.step, (item.start, item))
    return puts, takes


def _relayed(trace: Trace) -> Iterator[StoryEvent]:
    """A forward pass that takes tokens from an earlier step on the device."""
    slices = {item.id: item for item in trace.slices}
    for edge in trace.edges:
        src, dst = slices[edge.src], slices[edge.dst]
        if edge.kind == "token" and is_forward(dst.lane):
            fields = {**_fields(dst), "src": src.step}
            yield StoryEvent("relay", dst.start, dst.start, dst.lane, fields)


# -- A story as a PlantUML sequence diagram: the design's own participants, in the run's order -----

SIDES = {"host": "#FFF8EC", "device": "#EEF6FC", "relay": "#F3F0FA"}
LINE = re.compile(r"(\w+)(?: (-+>+) (\w+))?: (.*)", re.S)


class Chapter(NamedTuple):
    """A stretch of a run, under its heading; ``says`` are lines that only it is told in."""

    view: View
    heading: str = ""
    says: Mapping[str, Sequence[str]] = {}


def to_story(story: Story, title: str, *chapters: Chapter) -> str:
    """The diagram of one stretch of a run, or of several, each under its heading."""
    about, body = "time runs down", list[str]()
    for view, heading, says in chapters:
        if heading:
            body.append(f"== {creole(f'{heading} ({ms(view.duration)} ms)')} ==")
        else:
            run = f"{view.trace.loop} on {view.trace.device}"
            steps = f"steps {view.first_step} to {view.last_step}, {ms(view.duration)} ms"
            about = f"{creole(run)}: {steps}; {about}"
        told = replace(story, says={**story.says, **says})
        body += _body(told, events(view.trace, view.start, view.end))
    lines = [
        "@startuml",
        "!pragma teoz true",
        f"title {creole(title)}\\n{about}",
        "hide footbox",
        "skinparam sequenceMessageAlign center",
        "skinparam defaultFontSize 12",
        *(LINK_STYLE if story.code else ()),
    ]
    for side in dict.fromkeys(actor.side for actor in story.actors.values()):
        lines.append(f"box {side.capitalize()} {SIDES[side]}")
        lines += [f'participant "{actor.title}" as {key}'
                  for key, actor in story.actors.items() if actor.side == side]  # fmt: skip
        lines.append("end box")
    return "\n".join([*lines, *body, "@enduml", ""])


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
    kind = "waited" if event.name == "mark wait" else event.name
    kind = kind if kind in LOOKS else "other"
    about = "\\n".join(ink(kind, creole(line)) for line in words.split("\n"))
    return f"{joined}rnote over {actor} {flat(kind)} : {about}"


def _parsed(line: str, event: StoryEvent) -> tuple[str, str, str, str]:
    """Who says what to whom, with the event's numbers in it."""
    found = LINE.fullmatch(line)
    assert found, f"{line!r} is no line of a story"
    actor, arrow, other, words = found.groups("")
    return actor, arrow, other, words.format_map(event.fields)


# -- What most designs' figures say about the device -----------------------------------------------

ON_DEVICE = {  # for actors called ``worker`` and ``copy``
    "forward": ["worker: forward {step}\n{ms} ms"],
    "sample": ["worker: sample {step}\n{ms} ms"],
    "sample end": ["worker ->> copy: tokens of {step}"],
    "copy": ["copy: copy {step}\n{ms} ms"],
}
