"""Admission's budget as a waterfall: it falls with everybody who is admitted."""

from __future__ import annotations

from ...trace import Mark, Trace
from ..units import ms
from .marks import number, word
from .page import EDGE, WIDTH, Page, about_run
from .rounds import BUDGETS, Round, left, merged, rounds_of
from .shapes import line, rect, text
from .wording import short

MOST_ROWS, ROW, BAR = 60, 20, 12  # rows in all; pixels
TITLES = {
    "rem_chunk": ("chunk", "rem_chunk_tokens"),
    "rem_input": ("input", "rem_input_tokens"),
    "cur_rem": ("memory now", "cur_rem_tokens"),
    "rem_total": ("memory later", "rem_total_tokens"),
}
FIRST, PITCH, SPAN = 288, 140, 92  # pixels: the first column, from one to the next, its bars
NAMES = {"left": "tokens left", "spent": "what this request took"}


def view(trace: Trace) -> str:
    """Round after round: four budgets, who was charged, and who was refused and why.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    every = rounds_of(trace)
    rounds = _first(merged(every), MOST_ROWS)
    count = sum(one.repeats for one in rounds)
    shown = (
        f"{count} rounds" if count == len(every) else f"the first {count} of {len(every)} rounds"
    )
    page = Page("prefill: who is admitted, and what is left for the next", about_run(trace, shown))
    scales = _scales(rounds)
    _draw_titles(page, scales)
    for one in rounds:
        _draw_round(page, one, scales)
    page.legend(NAMES)
    return page.finish()


def _first(rounds: list[Round], rows: int) -> list[Round]:
    """As many rounds as fit, and at least one."""
    kept, used = rounds[:1], 1 + len(rounds[0].events)
    for one in rounds[1:]:
        used += 1 + len(one.events)
        if used > rows:
            break
        kept.append(one)
    return kept


def _scales(rounds: list[Round]) -> dict[str, int]:
    """The most that each budget ever held; 0: it has no limit."""
    return {
        budget: max([0, *(left(one.budget, budget) or 0 for one in rounds)]) for budget in BUDGETS
    }


def _draw_titles(page: Page, scales: dict[str, int]) -> None:
    page.add(text(20, page.top, "What is left, in tokens", "bold"))
    for at, (budget, (name, field)) in enumerate(TITLES.items()):
        limit = "no limit" if not scales[budget] else f"bar: 0 to {scales[budget]}"
        x = FIRST + at * PITCH
        page.add(text(x, page.top, name, "bold"), text(x, page.top + 15, field, "small faint"))
        page.add(text(x, page.top + 29, limit, "small faint"))
    page.top += 40


def _draw_round(page: Page, one: Round, scales: dict[str, int]) -> None:
    page.add(line("grid", 20, page.top, EDGE, page.top))
    steps = f"step {one.step}" if one.step else "no step"
    if one.repeats > 1:
        steps = f"steps {one.step} to {one.last_step} ({one.repeats} ×)"
    when = f"{steps}, {ms(one.budget.time)} ms"
    if decodes := number(one.budget, "mixed_decode_tokens"):
        when += f", {decodes} decode"
    _row_title(page, short(when, 42), "small bold")
    _bars(page, one.budget, one.budget, scales)
    before = one.budget
    for event in one.events:
        if event.name == "admit":
            more = ", a chunk" if event.attrs.get("is_chunked") else ""
            hit = f", {hit_len} cached" if (hit_len := number(event, "hit_len")) else ""
            rid, length = short(word(event, "rid"), 14), number(event, "extend_len")
            words = f"+ {rid}: {length}{hit}{more}"
            _row_title(page, words, "small")
            _bars(page, before, event, scales)
            before = event
        else:
            _refusal(page, event)
    page.top += 6


def _row_title(page: Page, words: str, kind: str) -> None:
    page.top += ROW
    page.add(text(20, page.top - 5, words, kind))


def _bars(page: Page, before: Mark, after: Mark, scales: dict[str, int]) -> None:
    """What is left of each budget, and beside it what has just been taken."""
    whose: dict[str, str | int] = {"mark": after.name}
    if after.name == "admit":
        whose["rid"] = word(after, "rid")
    for at, budget in enumerate(BUDGETS):
        was, now = left(before, budget), left(after, budget)
        if was is None or now is None:
            continue
        scale = SPAN / max(1, scales[budget])
        x, y = FIRST + at * PITCH, page.top - ROW + 4
        rest, spent = max(0, now) * scale, (max(0, was) - max(0, now)) * scale
        about = f"{TITLES[budget][1]}: {now} left"
        page.add(rect("left", x, y, rest, BAR, about, budget=budget, left=now, **whose))
        if spent > 0:
            about = f"{TITLES[budget][1]}: {was - now} taken"
            page.add(rect("spent", x + rest, y, spent, BAR, about, budget=budget, **whose))
        page.add(text(x + max(rest + max(0, spent), 0) + 4, y + 10, str(now), "small"))


def _refusal(page: Page, mark: Mark) -> None:
    words = f"× {short(str(mark.attrs['rid']), 14)}: {word(mark, 'result')}"
    _row_title(page, words, "warn small")
    reason = short(word(mark, "reason"), (WIDTH - FIRST) // 6)
    rid = word(mark, "rid")
    page.add(text(FIRST, page.top - 5, reason, "warn small", mark="refuse", rid=rid))
