"""Admission's budget as a waterfall: it falls with everybody who is admitted."""

from __future__ import annotations

from ...trace import Mark, Trace
from .marks import number, word
from .page import EDGE, WIDTH, Page, about_run
from .prefill_forms import puml, text
from .round_words import explained
from .rounds import (
    BUDGETS,
    TITLES,
    Round,
    admitted,
    lacked,
    left,
    refused,
    scales_of,
    shown_rounds,
)
from .shapes import line, rect
from .shapes import text as write
from .wording import short

__all__ = ["puml", "text", "view"]
MOST_ROWS, ROW, BAR = 60, 20, 12  # rows in all; pixels
FIRST, PITCH, SPAN = 288, 140, 92  # pixels: the first column, from one to the next, its bars
NAMES = {
    "left": "tokens left",
    "spent": "what this request took",
    "lacking": "what a refused request would have needed",
}


def view(trace: Trace) -> str:
    """Round after round: four budgets, who was charged, and who was refused and why.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    rounds, shown = shown_rounds(trace, MOST_ROWS)
    page = Page("prefill: who is admitted, and what is left for the next", about_run(trace, shown))
    scales = scales_of(rounds)
    _draw_titles(page, scales)
    for one in rounds:
        _draw_round(page, one, scales)
    page.legend(NAMES)
    page.notes(*explained(rounds))
    return page.finish()


def _draw_titles(page: Page, scales: dict[str, int]) -> None:
    page.add(write(20, page.top, "What is left, in tokens", "bold"))
    page.add(write(20, page.top + 15, "+ admitted: tokens to compute", "small faint"))
    page.add(write(20, page.top + 29, "× refused", "small faint"))
    for at, (budget, (name, field)) in enumerate(TITLES.items()):
        limit = "no limit" if not scales[budget] else f"bar: 0 to {scales[budget]}"
        x = FIRST + at * PITCH
        page.add(write(x, page.top, name, "bold"), write(x, page.top + 15, field, "small faint"))
        page.add(write(x, page.top + 29, limit, "small faint"))
    page.top += 40


def _draw_round(page: Page, one: Round, scales: dict[str, int]) -> None:
    page.add(line("grid", 20, page.top, EDGE, page.top))
    _row_title(page, short(one.title, 42), "small bold")
    _bars(page, one.budget, one.budget, scales)
    before = one.budget
    for event in one.events:
        if event.name == "admit":
            _row_title(page, f"+ {admitted(event)}", "small")
            _bars(page, before, event, scales)
            before = event
        else:
            _refusal(page, event, scales)
    page.top += 6


def _row_title(page: Page, words: str, kind: str) -> None:
    page.top += ROW
    page.add(write(20, page.top - 5, words, kind))


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
            page.add(line("link", x + rest + spent, y - ROW + BAR, x + rest + spent, y))
            page.add(rect("spent", x + rest, y, spent, BAR, about, budget=budget, **whose))
        page.add(write(x + max(rest + max(0, spent), 0) + 4, y + 10, str(now), "small"))


def _refusal(page: Page, mark: Mark, scales: dict[str, int]) -> None:
    """Who was refused; of which budget it would have needed more; and below it the reason."""
    _row_title(page, f"× {refused(mark)}", "warn small")
    rid = word(mark, "rid")
    if budget := lacked(mark):
        need, rest = number(mark, "need"), max(0, number(mark, "left"))
        scale = SPAN / max(1, scales[budget])
        x, y = FIRST + BUDGETS.index(budget) * PITCH, page.top - ROW + 4
        about = f"{TITLES[budget][1]}: needs {need}, {rest} left"
        width = max(3.0, min(need * scale, SPAN + 12.0))  # a longer bar would say no more
        page.add(rect("left", x, y, min(rest * scale, width), BAR, about, budget=budget, left=rest,
                      mark="refuse", rid=rid))  # fmt: skip
        page.add(rect("lacking", x, y, width, BAR, about, budget=budget, need=need, rid=rid))
    reason = short(word(mark, "reason"), (WIDTH - 40) // 7)
    page.top += ROW - 4
    page.add(write(32, page.top - 4, reason, "warn small", mark="refuse", rid=rid))
