"""Admission's budget as a waterfall: it falls with each admitted request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from ...checks.history import many
from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, named, number, short, word
from .steps import led_to

BUDGETS = {  # by attribute, in the order of their columns
    "rem_chunk": "chunk",
    "rem_input": "input",
    "cur_rem": "memory now",
    "rem_total": "memory later",
}
LACKED = {  # start of a refusal's reason -> the budget that was too small
    "KV memory": "rem_total",
    "chunked_prefill_size": "rem_chunk",
    "a page of a chunk": "rem_chunk",
    "the next chunk": "rem_chunk",
    "the token budget": "rem_chunk",
    "max_prefill_tokens": "rem_input",
}
MOST_ROWS = 60
LEGEND = {
    "left": "tokens left",
    "spent": "taken by this request",
    "lacking": "needed by a refused request",
}
NOTES = (
    "A request also takes memory for a spare page, until the next round, and for its cached "
    "prefix, which is locked; of memory later also for the tokens that it may still generate.",
    "NO_TOKEN and OTHER are SGLang's AddReqResult: no KV memory or no row is left, or another "
    "limit is reached, such as the prompt tokens of one batch.",
)
Round = list[Mark]  # one pass over the queue: its budget, then admissions and refusals


def scene(trace: Trace) -> Scene:
    """Draw a line for each request offered; four columns of the remaining tokens."""
    rounds, step_of = rounds_of(trace), led_to(trace)
    lacking = {lacked(mark) for one in rounds for mark in one if mark.name == "refuse"}
    scales = {  # the greatest value of each budget; 0: it has no limit
        budget: max(0, *(number(one[0], budget) for one in rounds))
        for budget in BUDGETS
        if budget != "rem_input" or budget in lacking  # it is seldom the one that is too small
    }
    rows = accumulate(map(len, rounds))
    some = [one for one, row in zip(rounds, rows, strict=True) if row <= MOST_ROWS] or rounds[:1]
    lines, cells = list[str](), dict[tuple[int, int], GridCell]()
    for one in some:
        before = one[0]
        for mark in one:
            if mark.name == "refuse":
                budget = lacked(mark)
                column = [*scales].index(budget or "rem_total")
                cells[len(lines), column] = refusal(mark, has_numbers=bool(budget))
            else:
                for column, (budget, scale) in enumerate(scales.items()):
                    if scale or budget != "rem_chunk":
                        cells[len(lines), column] = budget_cell(before, mark, budget, scale)
                before = mark
            lines.append(line_of(mark, step_of(mark)))
    refused = [mark for one in some for mark in one if mark.name == "refuse"]
    columns = [f"{name}\n{f'of {scales[budget]}' if scales[budget] else 'no limit'}"
               for budget, name in BUDGETS.items() if budget in scales]  # fmt: skip
    return Scene(
        finding(refused),
        about_run(trace, first_of(len(some), len(rounds), "round") or many(len(rounds), "round")),
        [Part("Tokens left", "+ admitted: tokens to compute; × refused",
              [CellGrid(lines, columns, cells)])],
        LEGEND,
        NOTES[: 1 + bool(refused)],
    )  # fmt: skip


def lacked(mark: Mark) -> str:
    """Return the budget that was too small for a refused request; empty if it is another limit."""
    return LACKED.get(word(mark, "reason").partition(":")[0], "")


def finding(refused: Sequence[Mark]) -> str:
    """Write the budgets that stopped requests, and how often."""
    counts = Counter(BUDGETS.get(lacked(mark), "another limit") for mark in refused)
    stops = [f"{name} {count}" for name, count in counts.most_common()]
    if not stops:
        return "prefill: no request is refused"
    return f"prefill: a budget is too small {many(len(refused), 'time')}: {', '.join(stops)}"


def rounds_of(trace: Trace) -> list[Round]:
    """Return every round with an admission or a refusal.

    A round is left out if it admits no request and refuses the same ones as the previous round.
    """
    rounds = list[Round]()
    for mark in named(trace, "budget", "admit", "refuse"):
        if mark.name == "budget":
            rounds.append([])
        if rounds:
            rounds[-1].append(mark)
    found, before = list[Round](), list[tuple[str, str]]()
    for one in rounds:
        offered = [(mark.name, word(mark, "rid")) for mark in one[1:]]
        is_repeat = all(name == "refuse" for name, _ in offered) and offered == before
        if offered and not is_repeat:
            found.append(one)
        before = offered
    if not found:
        raise NothingToShow("the trace has no budget, admit or refuse mark: no prompt waited.")
    return found


def line_of(mark: Mark, step: int) -> str:
    """Return the title of a round, with its step; or of an admission or a refusal."""
    if mark.name == "budget":
        decodes = number(mark, "mixed_decode_tokens")
        words = f"step {step}" if step else "no step"
        return f"{words}, {ms(mark.time)} ms" + f", {decodes} decode" * bool(decodes)
    rid = short(word(mark, "rid"), 14)
    if mark.name == "refuse":
        return f"  × {rid}: {word(mark, 'result')}"
    more = ", a chunk" if mark.attrs.get("is_chunked") else ""
    hit = f", {hit_len} cached" if (hit_len := number(mark, "hit_len")) else ""
    return f"  + {rid}: {number(mark, 'extend_len')}{hit}{more}"


def budget_cell(before: Mark, after: Mark, budget: str, scale: int) -> GridCell:
    """Return the rest of a budget, which may be negative, with the tokens taken next to it."""
    rem = number(after, budget)
    now = max(0, rem)
    taken, rest = max(0, number(before, budget) - now), min(1.0, now / max(1, scale))
    text = str(now) if rem >= 0 else f"over by {-rem}"
    data: dict[str, str | int] = {"mark": after.name, "budget": budget, "left": rem, "taken": taken}
    if after.name == "admit":
        data["rid"] = word(after, "rid")
    fills = [("left", rest), ("spent", min(taken / max(1, scale), 1.0 - rest))][: 1 + bool(taken)]
    return GridCell("room", text, fills=fills, data=data)


def refusal(mark: Mark, has_numbers: bool) -> GridCell:
    """Return the tokens that a refused request needed; without such a number, the reason."""
    why = word(mark, "reason")
    numbers = f"needs {number(mark, 'need')}, has {max(0, number(mark, 'left'))}"
    return GridCell("lacking", numbers if has_numbers else short(why, 24), about=why,
                    data={"mark": "refuse", "rid": word(mark, "rid")})  # fmt: skip
