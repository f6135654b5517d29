"""Two schedules one above the other, for a terminal: a turn a column, a request a line."""

from __future__ import annotations

from .case import FidelityCase, Schedule, ScheduledStep, step_at
from .lockstep import ScheduleDifference

DECODES, WAITS, LOST = "•", "·", "x"
AFTER = 2  # turns that are shown behind the one in which they part
LEGEND = f"a:b computes these positions, {DECODES} decodes, {LOST} loses its memory, {WAITS} waits"


def draw(found: ScheduleDifference, names: tuple[str, str], width: int) -> list[str]:
    """Lines no wider than ``width``: the case, both schedules, and where they part."""
    case, turn = found.case, found.turn
    end = min(turn + AFTER, max(len(found.theirs), len(found.ours)) - 1)
    end = max(end, turn)
    turns = list(range(end + 1))
    sides = [cells(case, schedule, turns) for schedule in (found.theirs, found.ours)]
    rids = [arrival.rid for arrival in case.arrivals]
    wide = max(len(text) for side in sides for row in side.values() for text in row)
    wide = max(wide, len(str(end)))
    head = max(map(len, (*names, *rids))) + 2
    room = max(1, (width - head) // (wide + 1))
    shown = turns[max(0, len(turns) - room) :]
    lines = describe(case)
    for name, side in zip(names, sides, strict=True):
        lines += ["", name.ljust(head) + row([str(at) for at in shown], wide)]
        lines += [f"  {rid}".ljust(head) + row(side[rid][shown[0] : end + 1], wide) for rid in rids]
    lines.append(" " * head + row(["▲" if at == turn else "" for at in shown], wide))
    theirs, ours = (step_at(each, turn) for each in (found.theirs, found.ours))
    lines += [f"They part in turn {turn}: {names[0]} has {say(theirs)};"]
    lines += [f"{names[1]} has {say(ours)}.", f"({LEGEND})"]
    return [line.rstrip() for line in lines]


def row(texts: list[str], wide: int) -> str:
    """Cells side by side."""
    return " ".join(text.center(wide) for text in texts)


def describe(case: FidelityCase) -> list[str]:
    """The case in words: its sizes, then request by request."""
    config = case.config
    told = ", ".join(f"{name} {value}" for name, value in case.as_json()["config"].items())
    lines = [f"{case.loop}: {told or f'kv_tokens {config.kv_tokens}'}"]
    for arrival in case.arrivals:
        priority = f", priority {arrival.priority}" if arrival.priority else ""
        ignores = ", ignores EOS" if arrival.ignore_eos else ""
        lines.append(
            f"  {arrival.rid} comes in turn {arrival.turn}: prompt {len(arrival.prompt)}, "
            f"{len(arrival.outputs)} of at most {arrival.max_new_tokens} tokens{ignores}{priority}"
        )
    return lines


def cells(case: FidelityCase, schedule: Schedule, turns: list[int]) -> dict[str, list[str]]:
    """By request, what it does in each turn."""
    drawn: dict[str, list[str]] = {}
    for arrival in case.arrivals:
        drawn[arrival.rid] = [
            cell(step_at(schedule, turn), arrival.rid, len(arrival.prompt))
            or (WAITS if turn >= arrival.turn else "")
            for turn in turns
        ]
    return drawn


def cell(step: ScheduledStep, rid: str, prompt_len: int) -> str:
    """What one request does in one turn."""
    lost = LOST if rid in step.retracted else ""
    if rid in step.decodes:
        return DECODES + lost
    for part in step.prompts:
        if part.rid == rid:
            decodes = step.mode == "step" and part.start >= prompt_len
            return (DECODES if decodes else f"{part.start}:{part.end}") + lost
    return lost


def say(step: ScheduledStep) -> str:
    """A step in words."""
    parts = [f"{part.rid} {part.start}:{part.end}" for part in step.prompts]
    if step.decodes:
        parts.append(f"{' '.join(step.decodes)} decoding")
    if step.retracted:
        parts.append(f"{' '.join(step.retracted)} retracted")
    known = ("none", "extend", "decode", "mixed", "step")
    return ", ".join(parts) or ("nothing" if step.mode in known else f"stopped ({step.mode})")
