"""Two schedules one above the other, for a terminal: a turn a column, a request a line."""

from __future__ import annotations

from textwrap import wrap

from .case import Arrival, Schedule, ScheduledStep, step_at
from .lockstep import ScheduleDifference

DECODES, WAITS, LOST = "•", "·", "x"
AFTER = 2  # turns that are shown behind the one in which they part
LEGEND = f"a:b computes these positions, {DECODES} decodes, {LOST} loses its memory, {WAITS} waits"


def draw(found: ScheduleDifference, names: tuple[str, str], width: int) -> list[str]:
    """Lines no wider than ``width``: the case, both schedules, and where they part."""
    case, turn = found.case, found.turn
    end = max(turn, min(turn + AFTER, max(len(found.theirs), len(found.ours)) - 1))
    sides = [
        [[cell(arrival, schedule, at) for at in range(end + 1)] for arrival in case.arrivals]
        for schedule in (found.theirs, found.ours)
    ]
    wide = max(len(text) for side in sides for row in side for text in row)
    wide = max(wide, len(str(end)))
    head = max(map(len, (*names, *(arrival.rid for arrival in case.arrivals)))) + 2
    first = max(0, end + 1 - max(1, (width - head) // (wide + 1)))  # turn that there is room for

    def line(name: str, texts: list[str]) -> str:
        shown = " ".join(text.center(wide) for text in texts[first:])
        return (name.ljust(head) + shown).rstrip()

    told = ", ".join(f"{name} {value}" for name, value in case.as_json()["config"].items())
    lines = wrap(f"{case.loop}: {told or f'kv_tokens {case.config.kv_tokens}'}", width)
    for arrival in case.arrivals:
        priority = f", priority {arrival.priority}" * bool(arrival.priority)
        lines.append(
            f"  {arrival.rid} comes in turn {arrival.turn}: prompt {len(arrival.prompt)}, "
            f"{len(arrival.outputs)} of at most {arrival.max_new_tokens} tokens"
            f"{', ignores EOS' * arrival.ignore_eos}{priority}"
        )
    turns = range(end + 1)
    for name, side in zip(names, sides, strict=True):
        lines += ["", line(name, [str(at) for at in turns])]
        lines += [
            line(f"  {arrival.rid}", row) for arrival, row in zip(case.arrivals, side, strict=True)
        ]
    theirs, ours = (say(step_at(each, turn)) for each in (found.theirs, found.ours))
    return [
        *lines,
        line("", ["▲" * (at == turn) for at in turns]),
        f"They part in turn {turn}: {names[0]} has {theirs};",
        f"{names[1]} has {ours}.",
        f"({LEGEND})",
    ]


def cell(arrival: Arrival, schedule: Schedule, turn: int) -> str:
    """What one request does in one turn; nothing before it comes."""
    step, rid = step_at(schedule, turn), arrival.rid
    lost = LOST if rid in step.retracted else ""
    if rid in step.decodes:
        return DECODES + lost
    for part in step.prompts:
        if part.rid == rid:
            decodes = step.mode == "step" and part.start >= len(arrival.prompt)
            return (DECODES if decodes else f"{part.start}:{part.end}") + lost
    return lost or WAITS * (turn >= arrival.turn)


def say(step: ScheduledStep) -> str:
    """A step in words."""
    parts = [f"{part.rid} {part.start}:{part.end}" for part in step.prompts]
    if step.decodes:
        parts.append(f"{' '.join(step.decodes)} decoding")
    if step.retracted:
        parts.append(f"{' '.join(step.retracted)} retracted")
    known = ("none", "extend", "decode", "mixed", "step")
    return ", ".join(parts) or ("nothing" if step.mode in known else f"stopped ({step.mode})")
