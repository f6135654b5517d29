"""The rounds of admission as text for a terminal, and as a PlantUML sequence."""

from __future__ import annotations

from ...trace import Mark, Trace
from ..palette import VERMILLION
from ..puml_style import BUBBLE, creole
from .marks import number, word
from .page import about_run
from .round_words import explained
from .rounds import BUDGETS, TITLES, Round, admitted, left, refused, scales_of, shown_rounds
from .text_page import GLYPHS, TextPage, columns_here
from .wording import short

MOST_ROWS, MOST_PUML_ROWS = 120, 40
WIDE, COLUMN, BAR = 29, 18, 9  # characters: who, one budget, its bar
BUDGET, WARN = "#E3F1FB", BUBBLE.text  # the colours of a budget's note, and of a refusal
NAMES = {"left": "tokens left", "spent": "what this request took"}
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
    rounds, shown = shown_rounds(trace, MOST_ROWS)
    page = TextPage("prefill: who is admitted, and what is left for the next",
                    about_run(trace, shown))  # fmt: skip
    scales = scales_of(rounds)
    page.heading("What is left, in tokens", "a full bar: the most that there ever was of it")
    heads = "".join(f"{name:<{COLUMN}}" for name, _ in TITLES.values())
    page.lines.append(f"{'':{WIDE}}{heads}".rstrip())
    for one in rounds:
        _write_round(page, one, scales)
    page.legend(NAMES)
    if words := [*explained(rounds)]:
        page.write("", *words)
    return page.finish()


def _write_round(page: TextPage, one: Round, scales: dict[str, int]) -> None:
    is_short = len(one.title) < WIDE
    page.lines += [""] if is_short else ["", one.title]
    page.lines.append(_bars(one.title * is_short, one.budget, one.budget, scales))
    before = one.budget
    for event in one.events:
        if event.name == "admit":
            page.lines.append(_bars(f"  + {admitted(event)}", before, event, scales))
            before = event
        else:
            page.write(f"  × {refused(event)}: {word(event, 'reason')}")


def _bars(words: str, before: Mark, after: Mark, scales: dict[str, int]) -> str:
    """A bar and a number for each budget; a dash: it has no limit."""
    cells = []
    for budget in BUDGETS:
        was, now = left(before, budget), left(after, budget)
        if was is None or now is None:
            cells.append("-")
            continue
        scale = BAR / max(1, scales[budget])
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
