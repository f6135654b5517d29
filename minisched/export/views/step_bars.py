"""A bar a step: its decode tokens and its prompt tokens, stacked, under the limit for both."""

from __future__ import annotations

from collections.abc import Sequence

from ...trace import Trace
from ..state import Stay
from ..svg import char_width
from .axes import ValueAxis
from .lanes import NAMES as LANE_NAMES
from .marks import NothingToShow, named, number, short, word
from .page import EDGE, LEFT, SIGNS, Page, labels, line, path, rect, svg_text
from .puml_stays import Row, stays_to_puml
from .steps import StepShare, StepWork, led_to, opening, requests_in, steps_of
from .text_page import GLYPHS, TextPage

MOST_STEPS, HEIGHT, WIDEST = 60, 230, 44
NAMES = {
    "decode": "one token for each request that decodes",
    "prompt": "prompt tokens",
    "again": "prompt tokens, computed again",
    "wasted": "wasted rows",
    "limit": "the most that a step with prompts may have",
    "flag-head": "retraction: somebody lost its memory for this step",
}


def draw_step_bars(page: Page, trace: Trace, steps: list[StepWork], limit: int) -> None:
    """The chart, its axes and the flags of retractions; ``limit`` -1 draws no line.

    Raises:
        NothingToShow: the trace does not say how many prompt tokens were computed.
    """
    if any(part.tokens == 0 for step in steps for part in step.parts):
        raise NothingToShow(
            "the trace has no admit marks, so how many prompt tokens a step computed is unknown."
        )
    highest = max([limit, *(sum(part.tokens for part in step.parts) for step in steps)])
    y = ValueAxis(highest, page.top + 34, page.top + 34 + HEIGHT)
    page.add(*y.draw("tokens"))
    pitch = (EDGE - LEFT) / len(steps)
    page.add(*_flags(trace, steps, pitch, y))
    every = -(-26 // int(max(1, pitch)))  # so that the numbers of steps do not touch
    for at, step in enumerate(steps):
        middle, width = LEFT + (at + 0.5) * pitch, min(WIDEST, 0.82 * pitch)
        page.add(*_bar(step, middle - width / 2, width, y))
        if at % every == 0:
            page.add(svg_text(middle, y.bottom + 17, str(step.step), "small", "middle"))
            page.add(
                svg_text(middle, y.bottom + 32, step.mode[:1].upper(), "small faint", "middle")
            )
    if limit > 0:
        page.add(line("limit", LEFT, y.y(limit), EDGE, y.y(limit), limit=limit))
    page.add(
        svg_text(20, y.bottom + 17, "step", "small"), svg_text(20, y.bottom + 32, "mode", "small")
    )
    page.top = y.bottom + 36
    page.notes("mode: E extend (prompts only), D decode, M mixed")


def token_limit(trace: Trace) -> int:
    """The most tokens of a step, as the first admission round says; -1: no limit is known."""
    for mark in named(trace, "budget"):
        if number(mark, "rem_chunk") >= 0:
            return number(mark, "rem_chunk") + number(mark, "mixed_decode_tokens")
    return -1


def _bar(step: StepWork, x: float, width: float, y: ValueAxis) -> list[str]:
    """Those who decode at the bottom, prompts above them, one box a request."""
    drawn, done = [], 0
    order = {"decode": 0, "wasted": 1}
    for part in sorted(step.parts, key=lambda part: order.get(part.kind, 2)):
        top, bottom = y.y(done + part.tokens), y.y(done)
        done += part.tokens
        about = f"step {step.step} ({step.mode}), {part.rid}: {part.kind}, {part.tokens} tokens"
        drawn.append(
            rect(part.kind, x, top, width, bottom - top, about,
                 step=step.step, rid=part.rid, tokens=part.tokens)
        )  # fmt: skip
        drawn += _label(part, x + width / 2, width, top, bottom)
    return drawn


def _label(part: StepShare, middle: float, width: float, top: float, bottom: float) -> list[str]:
    """Whose tokens, and how many, where there is room: on one line, or on two."""
    kind, y = f"small in-{part.kind}", (top + bottom) / 2 + 4
    most = int((width - 2) / char_width(11))
    if bottom - top >= 13 and len(words := f"{part.rid} {part.tokens}") <= most:
        return [svg_text(middle, y, words, kind, "middle")]
    if bottom - top < 13 or len(str(part.tokens)) > most:
        return []
    if bottom - top < 30 or len(part.rid) > most:
        return [svg_text(middle, y, str(part.tokens), kind, "middle")]
    return [
        svg_text(middle, y - 7, part.rid, kind, "middle"),
        svg_text(middle, y + 7, str(part.tokens), kind, "middle"),
    ]


def _flags(trace: Trace, steps: list[StepWork], pitch: float, y: ValueAxis) -> list[str]:
    """Who was retracted to make room for which step."""
    finder, numbers = led_to(trace), [step.step for step in steps]
    found: list[tuple[float, str]] = []
    drawn, top = [], y.top - 12.0
    for mark in named(trace, "retraction"):
        if (step := finder.step(mark)) not in numbers:
            continue
        rid, x = word(mark, "rid"), LEFT + (numbers.index(step) + 0.5) * pitch
        found.append((x, rid))
        about, d = f"{rid} is retracted before step {step}", f"M{x:.1f} {top:.1f}"
        drawn.append(line("flag", x, top, x, y.bottom))
        drawn.append(path("flag-head", d + SIGNS["flag-head"], about, rid=rid, mark="retraction",
                          step=step))  # fmt: skip
    for (x, _), words in zip(found, labels(found), strict=True):
        drawn.append(svg_text(x + 9, top + 4, words, "small warn") if words else "")
    return drawn


# -- What each step computed, as lines of bars for a terminal, and as PlantUML lanes ---------------

MOST_LINES, MOST_LANES = 60, 24
BAR, WHO = 44, 38  # characters: the longest bar, and the words behind it
KINDS = ("decode", "wasted", "prompt", "again")  # from the left
LINE_NAMES = {kind: words for kind, words in LANE_NAMES.items() if kind in KINDS}


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
        page.lines.append(_line_bar(step, highest, limit))
    there = [kind for kind in KINDS if any(step.tokens(kind) for step in steps)]
    page.legend({kind: NAMES[kind] for kind in there})


def _line_bar(step: StepWork, highest: int, limit: int) -> str:
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
    part, _ = opening(trace, MOST_LINES)
    steps = steps_of(part)
    rids = requests_in(steps)[:MOST_LANES]
    return stays_to_puml(title, step_rows(steps, rids), part.end, LINE_NAMES, flags(part, rids))


def flags(trace: Trace, rids: Sequence[str]) -> list[tuple[int, str]]:
    """When each of these requests was retracted, in words."""
    return [
        (mark.time, f"{word(mark, 'rid')} is retracted")
        for mark in named(trace, "retraction")
        if word(mark, "rid") in rids
    ]
