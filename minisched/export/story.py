"""A design's own figure: its participants, and their messages at each phase of a run.

The sentences are written by hand. Their times, numbers and order come from a trace. A story is
text, each line an event with its messages and notes::

    schedule | core -> scheduler: schedule()
             | scheduler: schedule
    launch   | core

``actor -> actor: words`` is a message (``->>`` if it does not wait, ``-->`` for an answer),
``actor: words`` a note over one participant, and an ``actor`` alone a note with the event's name
and step. A note on a slice that takes time has its length. Fields are those of ``StoryEvent``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..trace import Trace
from ..trace.events import is_forward, is_host
from ..trace.marks import in_file
from .layout import View
from .looks import LOOKS
from .puml_style import OLD, Actor, Code, Told, creole, sequence
from .units import ms

Field = str | int
LINE = re.compile(r"(\w+)(?: (-+>+) (\w+))?(?:: (.*))?")


class Story(NamedTuple):
    """The participants in order, and the messages of each event; other events are left out.

    ``code`` maps the names in its arrows to functions. An original's name maps to its counterpart
    here.
    """

    actors: Mapping[str, Actor]
    text: str
    code: Code


@dataclass(frozen=True)
class StoryEvent:
    """An event of a run.

    ``name`` is a slice's, or ``NAME end``, or one of these: ``put`` (the end of a step's last
    launch), ``take`` (the host turns to a step's result: its wait, or without one its processing),
    ``relay`` (a forward pass reads tokens that the host has not seen), ``mark NAME``.

    ``fields`` are ``step``, ``before`` (the previous step), ``ms``, ``rids``, ``queue`` (the steps
    launched and not yet taken, oldest first), ``src`` (of ``relay``: the step it reads from), a
    mark's attributes, and those of earlier marks of the step.
    """

    name: str
    start: int
    end: int
    lane: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Return the keys of an event in a story, the most exact first.

        They are ``LANE NAME``, ``NAME VALUE`` (of one of its fields) and ``NAME``.
        """
        exact = [f"{self.lane} {self.name}", *(f"{self.name} {of}" for of in self.fields.values())]
        return [*exact, self.name]


def events(trace: Trace, start: int, end: int) -> list[StoryEvent]:
    """Return the events that began between two times, in order; at one time ends come first."""
    found, puts, takes = list[StoryEvent](), dict[int, StoryEvent](), dict[int, StoryEvent]()
    brought: dict[Field, dict[str, Field]] = {}
    by_id = {item.id: item for item in trace.slices}
    steps = {item.step for item in trace.slices}
    of_slice: dict[int, Mapping[str, Field]] = {
        item.id: {"step": item.step, "ms": ms(item.duration), "rids": ", ".join(item.rids),
                  "before": max((s for s in steps if s < item.step), default=0)}
        for item in trace.slices
    }  # fmt: skip

    def event(name: str, since: int, until: int, item: int, **more: Field) -> StoryEvent:
        """Return an event, with the fields of its slice."""
        return StoryEvent(name, since, until, by_id[item].lane, {**of_slice[item], **more})

    for item in trace.slices:
        if item.duration:
            found.append(event(item.name, item.start, item.end, item.id))
        found.append(event(f"{item.name} end", item.end, item.end, item.id))
        if is_host(item.lane) and item.name == "launch":
            puts[item.step] = event("put", item.end, item.end, item.id)
        if is_host(item.lane) and item.name in ("wait", "process") and item.step:
            takes.setdefault(item.step, event("take", item.start, item.start, item.id))
    for edge in trace.edges:
        if edge.kind == "token" and is_forward(by_id[edge.dst].lane):
            time, src = by_id[edge.dst].start, by_id[edge.src].step
            found.append(event("relay", time, time, edge.dst, src=src))
    found += [*puts.values(), *takes.values()]
    for mark in trace.marks:
        fields: dict[str, Field] = {
            name: value if isinstance(value, int) else str(value)
            for name, value in in_file(mark).items()
        }
        found.append(StoryEvent(f"mark {mark.name}", mark.time, mark.time, "", fields))
        brought.setdefault(fields.get("step", 0), {}).update(fields)
    told = []
    for one in sorted(found, key=lambda one: (one.start, one.end > one.start)):
        if start <= one.start < end:
            now = one.start
            until = now if one.name == "put" else now + 1  # at one moment puts come before takes
            queue = [
                str(step)
                for step, put in sorted(puts.items(), key=lambda of: of[1].start)
                if put.start <= now and not (step in takes and takes[step].start < until)
            ]
            more: dict[str, Field] = {"queue": " ".join(queue) or "empty"}
            fields = {**more, **brought.get(one.fields.get("step", 0), {}), **one.fields}
            told.append(replace(one, fields=fields))
    return told


# -- A story as a PlantUML sequence diagram: the design's own participants, in the run's order -----


class Chapter(NamedTuple):
    """A stretch of a run, under its heading; ``text`` is the story of it alone.

    ``base`` is the step that is written N, with N+1 and N-1 around it; 0: steps keep their numbers.
    """

    view: View
    heading: str = ""
    text: str = ""
    base: int = 0


def to_story(story: Story, title: str, *chapters: Chapter) -> str:
    """Return the diagram of one stretch of a run, or of several, each under its heading."""
    about, body = "time runs down", list[Told]()
    for view, heading, text, base in chapters:
        if heading:
            body.append(Told("", f"{heading} ({ms(view.duration)} ms)"))
        else:
            run = f"{view.trace.loop} on {view.trace.device}"
            steps = f"steps {view.first_step} to {view.last_step}" if not base else f"N is {base}"
            about = f"{creole(run)}: {steps}, {ms(view.duration)} ms; {about}"
        says = lines_of(story.text + text)
        for event in events(view.trace, view.start, view.end):
            key = next((key for key in event.keys if key in says), "")
            body += [told(with_names(event, base), line) for line in says.get(key, ())]
    drawn = sequence(story.actors, body, story.code)
    return "\n".join([OLD, "@startuml", f"title {creole(title)}\\n{about}", *drawn, "@enduml", ""])


def with_names(event: StoryEvent, base: int) -> StoryEvent:
    """Return an event with its steps as N, N+1 and N-1, if N is given."""

    def name(step: int) -> str:
        """Return the name of a step."""
        return f"N{step - base:+d}" if step != base else "N"

    fields = dict(event.fields)
    for key in ("step", "before", "src", "queue") if base else ():
        found = str(fields.get(key, "")).split()
        if found and all(word.isdecimal() for word in found):
            fields[key] = " ".join(name(int(word)) for word in found)
    return replace(event, fields=fields)


def lines_of(text: str) -> dict[str, list[str]]:
    """Return the lines of each event; an empty line means no message."""
    found: dict[str, list[str]] = {}
    key = ""
    for line in text.strip().splitlines():
        name, _, said = line.partition("|")
        if name.strip():
            key = name.strip()
            found[key] = []
        found[key] += filter(None, [said.strip()])
    return found


def told(event: StoryEvent, line: str) -> Told:
    """Return a line's note or message, with the event's numbers in it."""
    found = LINE.fullmatch(line)
    assert found, f"{line!r} is no line of a story"
    actor, arrow, other, words = found.groups("")
    words = (words or f"{event.name} {{step}}").replace("\\n", "\n")
    if not other and event.end > event.start:
        words += "\n{ms} ms"
    kind = "waited" if event.name == "mark wait" else event.name
    kind = kind if kind in LOOKS else "other"
    words = words.format_map(event.fields)
    return Told(actor, words, event.start, event.end, kind, other, arrow)
