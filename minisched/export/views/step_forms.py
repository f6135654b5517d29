"""What each step computed, as lines of bars for a terminal, and as PlantUML lanes."""

from __future__ import annotations

from collections.abc import Sequence

from ...trace import Trace
from ..state import Stay
from .lanes import NAMES as LANE_NAMES
from .marks import NothingToShow, named, word
from .puml_stays import Row, stays_to_puml
from .step_bars import NAMES as BAR_NAMES
from .steps import StepShare, StepWork, led_to, opening, requests_in, steps_of
from .text_page import GLYPHS, TextPage
from .wording import short

MOST_STEPS, MOST_LANES = 60, 24
BAR, WHO = 44, 38  # characters: the longest bar, and the words behind it
KINDS = ("decode", "wasted", "prompt", "again")  # from the left
NAMES = {kind: words for kind, words in LANE_NAMES.items() if kind in KINDS}


def write_bars(page: TextPage, trace: Trace, steps: Sequence[StepWork], limit: int) -> None:
    """A line a step: its number and mode, a bar of its tokens up to ``limit``, and whose they are.

    Raises:
        NothingToShow: the trace does not say how many prompt tokens were computed.
    """
    if any(part.tokens == 0 for step in steps for part in step.parts):
        raise NothingToShow(
            "the trace has no admit marks, so how many prompt tokens a step computed is unknown."
        )
    highest = max([limit, 1, *(sum(part.tokens for part in step.parts) for step in steps)])
    finder, numbers = led_to(trace), {step.step for step in steps}
    retracted: dict[int, list[str]] = {}
    for mark in named(trace, "retraction"):
        retracted.setdefault(finder.step(mark), []).append(word(mark, "rid"))
    bound = f"; │ the most in a step with prompts: {limit}" if limit > 0 else ""
    page.lines.append(f"step mode tokens (E extend, D decode, M mixed{bound})")
    for step in steps:
        for rid in retracted.get(step.step, []) if step.step in numbers else []:
            page.lines.append(f"{'':>9}  ▼ {rid} is retracted to make room for step {step.step}")
        page.lines.append(_bar(step, highest, limit))
    there = [kind for kind in KINDS if any(step.tokens(kind) for step in steps)]
    page.legend({kind: BAR_NAMES[kind] for kind in there})


def _bar(step: StepWork, highest: int, limit: int) -> str:
    """Every request's tokens in its glyph; whatever was computed is seen."""
    cells, done, drawn = min(BAR, highest), 0, ""
    parts = sorted(step.parts, key=lambda part: KINDS.index(part.kind))
    for part in parts:
        done += part.tokens
        until = max(len(drawn) + 1, round(done * cells / highest))
        drawn += GLYPHS[part.kind] * (until - len(drawn))
    edge = "│" if limit > 0 else ""
    at = round(limit * cells / highest)
    bar = f"{drawn:<{at}}{edge}" if len(drawn) <= at else drawn[:at] + edge + drawn[at:]
    who = short("  ".join(f"{part.rid} {part.tokens}" for part in parts), WHO)
    total = sum(part.tokens for part in parts)
    return f"{step.step:>4} {step.mode[:1].upper():>3} {total:>5}  {bar:<{BAR + 1}} {who}".rstrip()


def step_rows(steps: Sequence[StepWork], rids: Sequence[str]) -> list[Row]:
    """A row a request: a box for each step that computed something for it."""
    rows: dict[str, list[Stay]] = {rid: [] for rid in rids}
    for step in steps:
        for part in step.parts:
            if part.rid in rows:
                rows[part.rid].append(_stay(step, part))
    return list(rows.items())


def _stay(step: StepWork, part: StepShare) -> Stay:
    """A decode is always one token, so only prompts say how many."""
    label = str(part.tokens) if part.kind in ("prompt", "again") and part.tokens else ""
    about = f"step {step.step}, {part.tokens} tokens"
    return Stay(part.rid, part.kind, step.start, step.end, label, part.rid, about)


def steps_to_puml(title: str, trace: Trace) -> str:
    """What each step computed for whom, and who was retracted, as PlantUML.

    Raises:
        NothingToShow: no step ran.
    """
    part, _ = opening(trace, MOST_STEPS)
    steps = steps_of(part)
    rids = requests_in(steps)[:MOST_LANES]
    return stays_to_puml(title, step_rows(steps, rids), part.end, NAMES, flags(part, rids))


def flags(trace: Trace, rids: Sequence[str]) -> list[tuple[int, str]]:
    """When each of these requests was retracted, in words."""
    return [
        (mark.time, f"{word(mark, 'rid')} is retracted")
        for mark in named(trace, "retraction")
        if word(mark, "rid") in rids
    ]
