"""The copy path of a few steps as a PlantUML sequence diagram: who hands what to whom, and when."""

from __future__ import annotations

from collections.abc import Iterator

from ..palette import ARROW_COLOURS, paint
from ..puml_style import creole
from ..units import ms
from .copy_paths import CopyPath

READY = "#F3F5F7"
HEAD = """@startuml
hide footbox
skinparam defaultFontSize 12
skinparam sequenceMessageAlign center
participant "Host" as host #FFF8EC
participant "Forward stream" as forward #EEF6FC
participant "Copy stream" as copy #EEF6FC
participant "Pinned host buffer" as buffer #E6F5F0"""
Event = tuple[int, int, str]  # when, which step, and what PlantUML is told


def to_copy_sequence(title: str, paths: list[CopyPath]) -> str:
    """The diagram's text; time runs down, not to scale."""
    events = sorted(event for at, one in enumerate(paths) for event in events_of(one, at))
    lines = [text for _, _, text in events]
    return "\n".join([HEAD, f"title {creole(title)}", *lines, "@enduml", ""])


def events_of(one: CopyPath, at: int) -> Iterator[Event]:
    """What happens to one step."""
    name, launch, result = f"step {creole(one.name)}", colour("launch"), colour("result")
    if one.prepare:
        time = one.prepare.end
        yield time, at, f"host -[{launch}]>> forward : inputs of {name} ({ms(time)} ms)"
    if one.upload:
        time = one.upload.end
        words = f"upload: prompts of {name} ({ms(time)} ms)"
        yield time, at, f"host -[{colour('upload')}]>> forward : {words}"
    if one.sampled and one.copy:
        time = one.sampled.end
        words = f"tokens of {name} ({ms(time)} ms)"
        yield time, at, f"forward -[{colour('copy')}]> copy : {words}"
        time, number = one.copy.end, max(0, one.buffer)
        words = f"to buffer {number}: copy_done ({ms(time)} ms)"
        yield time, at, f"copy -[{colour('copy')}]> buffer : {words}"
    if one.process:
        yield one.process.start, at, "\n".join(taken(one, name, result))


def taken(one: CopyPath, name: str, result: str) -> Iterator[str]:
    """How the host came by the tokens: it waited for them, or they for it, or neither."""
    assert one.process is not None
    if one.waited:
        yield f"rnote over host {paint('wait').fill} : waits {ms(one.waited)} ms for {name}"
    if one.ready:
        yield f"rnote over buffer {READY} : lies ready for {ms(one.ready)} ms"
    yield f"buffer -[{result}]-> host : result() of {name} ({ms(one.process.start)} ms)"


def colour(kind: str) -> str:
    """The colour of an edge on light paper."""
    return ARROW_COLOURS[kind][0]
