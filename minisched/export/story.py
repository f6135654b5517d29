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
from .looks import LOOKS
from .puml_style import Actor, Code, Told, creole, sequence
from .units import ms

Field = str | int


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

LINE = re.compile(r"(\w+)(?: (-+>+) (\w+))?: (.*)", re.S)


class Chapter(NamedTuple):
    """A stretch of a run, under its heading; ``says`` are lines that only it is told in."""

    view: View
    heading: str = ""
    says: Mapping[str, Sequence[str]] = {}


def to_story(story: Story, title: str, *chapters: Chapter) -> str:
    """The diagram of one stretch of a run, or of several, each under its heading."""
    about, body = "time runs down", list[Told]()
    for view, heading, says in chapters:
        if heading:
            body.append(Told("", f"{heading} ({ms(view.duration)} ms)"))
        else:
            run = f"{view.trace.loop} on {view.trace.device}"
            steps = f"steps {view.first_step} to {view.last_step}, {ms(view.duration)} ms"
            about = f"{creole(run)}: {steps}; {about}"
        mine = replace(story, says={**story.says, **says})
        for event in events(view.trace, view.start, view.end):
            body += _told(mine, event)
    drawn = sequence(story.actors, body, story.code)
    return "\n".join(["@startuml", f"title {creole(title)}\\n{about}", *drawn, "@enduml", ""])


def _told(story: Story, event: StoryEvent) -> Iterator[Told]:
    """An event's lines, with its numbers in them."""
    kind = "waited" if event.name == "mark wait" else event.name
    for line in story.lines(event):
        found = LINE.fullmatch(line)
        assert found, f"{line!r} is no line of a story"
        actor, arrow, other, words = found.groups("")
        words = words.format_map(event.fields)
        kind = kind if kind in LOOKS else "other"
        yield Told(actor, words, event.start, event.end, kind, other, arrow)


# -- What most designs' figures say about the device -----------------------------------------------

ON_DEVICE = {  # for actors called ``worker`` and ``copy``
    "forward": ["worker: forward {step}\n{ms} ms"],
    "sample": ["worker: sample {step}\n{ms} ms"],
    "sample end": ["worker ->> copy: tokens of {step}"],
    "copy": ["copy: copy {step}\n{ms} ms"],
}
