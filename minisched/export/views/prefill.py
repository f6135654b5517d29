"""Admission's budget as a waterfall: it falls with everybody who is admitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...trace import Mark, Trace
from ..palette import VERMILLION
from ..puml_style import BUBBLE, creole
from ..units import ms
from .marks import NothingToShow, many, named, number, short, word
from .page import EDGE, WIDTH, Page, about_run, line, rect
from .page import svg_text as write
from .steps import led_to
from .text_page import GLYPHS, TextPage, columns_here

# -- Rounds of admission, read from a trace: a budget, and what became of who was offered ----------

BUDGETS = ("rem_chunk", "rem_input", "cur_rem", "rem_total")
TITLES = {
    "rem_chunk": ("chunk", "rem_chunk_tokens"),
    "rem_input": ("input", "rem_input_tokens"),
    "cur_rem": ("memory now", "cur_rem_tokens"),
    "rem_total": ("memory later", "rem_total_tokens"),
}
LACKED = {  # what a refusal's reason begins with -> the budget that was short
    "KV memory": "rem_total",
    "chunked_prefill_size": "rem_chunk",
    "a page of a chunk": "rem_chunk",
    "the next chunk": "rem_chunk",
    "the token budget": "rem_chunk",
    "max_prefill_tokens": "rem_input",
}


@dataclass(frozen=True)
class Round:
    """One look at the waiting queue. ``step`` and ``last_step`` are what it led to, or 0."""

    budget: Mark
    events: tuple[Mark, ...]  # admit and refuse, in order
    step: int
    last_step: int
    repeats: int = 1  # rounds in a row that refused the same requests for the same reason

    @property
    def admits(self) -> list[Mark]:
        """Who was admitted."""
        return [event for event in self.events if event.name == "admit"]

    @property
    def outcome(self) -> list[tuple[str, str]]:
        """Who was refused, and how."""
        return [(word(event, "rid"), word(event, "result")) for event in self.events]

    @property
    def title(self) -> str:
        """Which step, when, and how many requests decode in it, too."""
        steps = f"step {self.step}" if self.step else "no step"
        if self.repeats > 1:
            steps = f"steps {self.step} to {self.last_step} ({self.repeats} ×)"
        decodes = number(self.budget, "mixed_decode_tokens")
        return f"{steps}, {ms(self.budget.time)} ms" + f", {decodes} decode" * bool(decodes)


def rounds_of(trace: Trace) -> list[Round]:
    """Every round in which somebody was admitted or refused.

    Raises:
        NothingToShow: there is none.
    """
    finder, found = led_to(trace), list[Round]()
    marks = named(trace, "budget", "admit", "refuse")
    starts = [at for at, mark in enumerate(marks) if mark.name == "budget"]
    for start, end in pairwise([*starts, len(marks)]):
        if events := tuple(marks[start + 1 : end]):
            step = finder.step(marks[start])
            found.append(Round(marks[start], events, step, step))
    if not found:
        raise NothingToShow("the trace has no budget, admit or refuse mark: nobody was offered.")
    return found


def shown_rounds(trace: Trace, most_rows: int) -> tuple[list[Round], str]:
    """The first rounds, repeated ones merged, as many as make so many rows; and which they are.

    Raises:
        NothingToShow: there is none.
    """
    every = rounds_of(trace)
    rounds = merged(every)
    kept, used = rounds[:1], rows_of(rounds[0])
    for one in rounds[1:]:
        used += rows_of(one)
        if used > most_rows:
            break
        kept.append(one)
    count = sum(one.repeats for one in kept)
    is_all = count == len(every)
    return kept, many(count, "round") if is_all else f"the first {count} of {len(every)} rounds"


def rows_of(one: Round) -> int:
    """How many lines a round takes: a refusal has two, as it says why."""
    return 1 + len(one.events) + len(one.events) - len(one.admits)


def merged(rounds: list[Round]) -> list[Round]:
    """The same, with those in a row that only refuse the same requests shown once."""
    short: list[Round] = []
    for one in rounds:
        before = short[-1] if short else None
        if before and not before.admits and not one.admits and before.outcome == one.outcome:
            short[-1] = replace(one, step=before.step, repeats=before.repeats + 1)
        else:
            short.append(one)
    return short


def scales_of(rounds: list[Round]) -> dict[str, int]:
    """The most that each budget ever held; 0: it has no limit."""
    return {
        budget: max([0, *(left(one.budget, budget) or 0 for one in rounds)]) for budget in BUDGETS
    }


def left(mark: Mark, budget: str) -> int | None:
    """What a mark says is left of a budget; None: no limit."""
    value = number(mark, budget)
    return None if budget == "rem_chunk" and value < 0 else value


def admitted(mark: Mark) -> str:
    """Who was admitted, with how many tokens to compute, in words."""
    more = ", a chunk" if mark.attrs.get("is_chunked") else ""
    hit = f", {hit_len} cached" if (hit_len := number(mark, "hit_len")) else ""
    return f"{short(word(mark, 'rid'), 14)}: {number(mark, 'extend_len')}{hit}{more}"


def refused(mark: Mark) -> str:
    """Who was refused, and with which result, in words."""
    return f"{short(word(mark, 'rid'), 14)}: {word(mark, 'result')}"


def lacked(mark: Mark) -> str:
    """Which budget a refusal is about; empty: none of the four."""
    return LACKED.get(word(mark, "reason").partition(":")[0], "")


# -- What one must know to follow the numbers of admission: the reserve, and the results' names ----

RESULTS = {  # SGLang's AddReqResult, as far as a refusal has it
    "NO_TOKEN": "no KV memory for it, or no row",
    "OTHER": "another limit, such as the prompt tokens of one batch",
}
RESERVE = (
    "memory falls also by a page in reserve, there again in the next round, and by a cached "
    "prefix: it is locked",
    "memory later falls also by the tokens that a request may still produce",
)


def explained(rounds: Sequence[Round]) -> Iterator[str]:
    """What must be known to check the numbers, as far as it occurs: the reserve, the results."""
    if any(keeps_reserve(mark) for one in rounds for mark in one.admits):
        yield from RESERVE
    refuses = [event for one in rounds for event in one.events if event.name == "refuse"]
    results = {word(event, "result") for event in refuses}
    for result, meaning in RESULTS.items():
        if result in results:
            yield f"{result} (SGLang's AddReqResult): {meaning}"


def keeps_reserve(mark: Mark) -> bool:
    """Whether an admission follows SGLang's budget; a unified one has one number for two each."""
    total, now, inputs, chunk = (
        number(mark, name) for name in ("rem_total", "cur_rem", "rem_input", "rem_chunk")
    )
    return total != now or inputs != chunk


# -- The rounds of admission as text for a terminal, and as a PlantUML sequence --------------------

MOST_LINES, MOST_PUML_ROWS = 120, 40
WIDE, COLUMN, LINE_BAR = 29, 18, 9  # characters: who, one budget, its bar
BUDGET, WARN = "#E3F1FB", BUBBLE.text  # the colours of a budget's note, and of a refusal
LINE_NAMES = {"left": "tokens left", "spent": "what this request took"}
STYLE = """\
<style>
sequenceDiagram {
  FontSize 12
  LineColor #59636E
  participant { BackgroundColor #FFF8EC }
  arrow { FontSize 11 }
  separator { FontSize 11
    BackgroundColor #F3F5F7 }
}
</style>
hide footbox"""


def text(trace: Trace) -> str:
    """The waterfall, round by round: a bar for each budget, and every refusal with its reason.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    rounds, shown = shown_rounds(trace, MOST_LINES)
    page = TextPage("prefill: who is admitted, and what is left for the next",
                    about_run(trace, shown))  # fmt: skip
    scales = scales_of(rounds)
    page.heading("What is left, in tokens", "a full bar: the most that there ever was of it")
    heads = "".join(f"{name:<{COLUMN}}" for name, _ in TITLES.values())
    page.lines.append(f"{'':{WIDE}}{heads}".rstrip())
    for one in rounds:
        _write_round(page, one, scales)
    page.legend(LINE_NAMES)
    if words := [*explained(rounds)]:
        page.write("", *words)
    return page.finish()


def _write_round(page: TextPage, one: Round, scales: dict[str, int]) -> None:
    is_short = len(one.title) < WIDE
    page.lines += [""] if is_short else ["", one.title]
    page.lines.append(_line_bars(one.title * is_short, one.budget, one.budget, scales))
    before = one.budget
    for event in one.events:
        if event.name == "admit":
            page.lines.append(_line_bars(f"  + {admitted(event)}", before, event, scales))
            before = event
        else:
            page.write(f"  × {refused(event)}: {word(event, 'reason')}")


def _line_bars(words: str, before: Mark, after: Mark, scales: dict[str, int]) -> str:
    """A bar and a number for each budget; a dash: it has no limit."""
    cells = []
    for budget in BUDGETS:
        was, now = left(before, budget), left(after, budget)
        if was is None or now is None:
            cells.append("-")
            continue
        scale = LINE_BAR / max(1, scales[budget])
        rest, all_of_it = (-int(-max(0, value) * scale // 1) for value in (now, was))
        rest -= now < was and rest == all_of_it > 0  # whatever was taken is seen
        cells.append(f"{GLYPHS['left'] * rest}{GLYPHS['spent'] * (all_of_it - rest)} {now}")
    line = f"{short(words, WIDE - 1):<{WIDE}}" + "".join(f"{cell:<{COLUMN}}" for cell in cells)
    return line.rstrip()[: columns_here()]


def puml(trace: Trace) -> str:
    """A sequence: the adder takes or refuses one request after the other, and what is left then.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    rounds, _ = shown_rounds(trace, MOST_PUML_ROWS)
    rids = list(dict.fromkeys(word(event, "rid") for one in rounds for event in one.events))
    lines = ["@startuml", STYLE, "title prefill: who is admitted, and what is left for the next"]
    lines.append("participant PrefillAdder as adder")
    lines += [f'participant "{creole(rid)}" as r{at}' for at, rid in enumerate(rids)]
    for one in rounds:
        lines += [f"== {one.title} ==", _note(one.budget)]
        for event in one.events:
            whom = f"r{rids.index(word(event, 'rid'))}"
            if event.name == "admit":
                tokens = creole(admitted(event).partition(": ")[2])
                lines += [f"adder -> {whom} : **admitted**: {tokens}", _note(event)]
            else:
                why = (f"**{word(event, 'result')}**", creole(word(event, "reason")))
                red = "\\n".join(f"<color:{WARN}>{words}</color>" for words in why)
                lines.append(f"adder -[{VERMILLION}]->x {whom} : {red}")
    lines += ["legend", *explained(rounds), "end legend"]
    return "\n".join([*lines, "@enduml", ""])


def _note(mark: Mark) -> str:
    """What is left, as a note over the adder."""
    words = [f"{TITLES[budget][0]} {number(mark, budget)}" for budget in BUDGETS
             if left(mark, budget) is not None]  # fmt: skip
    return f"rnote over adder {BUDGET} : {', '.join(words)}"


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
