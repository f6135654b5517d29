"""Admission's budget as a waterfall: it falls with everybody who is admitted."""

from __future__ import annotations

from itertools import pairwise

from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, many, named, number, short, word
from .steps import led_to

BUDGETS = {
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
MOST_ROWS, MOST_REASONS = 60, 12
LEGEND = {
    "left": "tokens left",
    "spent": "what this request took",
    "lacking": "what a refused request would have needed",
}
NOTES = (
    "memory falls also by a page in reserve, there again in the next round, and by a cached "
    "prefix: it is locked; memory later also by the tokens that a request may still produce",
    "NO_TOKEN and OTHER are SGLang's AddReqResult: no KV memory for it, or no row; or another "
    "limit, such as the prompt tokens of one batch",
)
Round = list[Mark]  # one look at the waiting queue: its budget, then who was admitted and refused


def scene(trace: Trace) -> Scene:
    """A line a request that was offered; four columns of what is left, in tokens.

    Rounds in a row that only refuse the same requests are one.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    every, step_of = rounds_of(trace), led_to(trace)
    scales = {  # the most that each budget ever held; 0: it has no limit
        budget: max([0, *(left(one[0], budget) or 0 for one in every)]) for budget in BUDGETS
    }
    lines, cells = list[str](), dict[tuple[int, int], GridCell]()
    shown, admits, refuses, reasons = 0, 0, 0, dict[str, None]()
    groups = grouped(every)
    for repeats in groups:
        one = repeats[-1]
        if lines and len(lines) + len(one) > MOST_ROWS:
            break
        first, last = (step_of(some[0]) for some in (repeats[0], one))
        steps = f"step {first}" if first else "no step"
        if len(repeats) > 1:
            steps = f"steps {first} to {last} ({len(repeats)} ×)"
        decodes = number(one[0], "mixed_decode_tokens")
        lines.append(f"{steps}, {ms(one[0].time)} ms" + f", {decodes} decode" * bool(decodes))
        before = one[0]
        for mark in one:
            row = len(lines) - (mark is one[0])
            if mark.name == "refuse":
                rid = short(word(mark, "rid"), 14)
                lines.append(f"  × {rid}: {word(mark, 'result')}")
                column, refused = refusal(mark)
                cells[row, column] = refused
                reasons[f"{rid}: {word(mark, 'reason')}"] = None
                continue
            if mark is not one[0]:
                lines.append(f"  + {admitted(mark)}")
            for column, budget in enumerate(BUDGETS):
                if cell := budget_cell(before, mark, budget, scales[budget]):
                    cells[row, column] = cell
            before = mark
        shown += len(repeats)
        admits += sum(mark.name == "admit" for mark in one)
        refuses += len(repeats) * sum(mark.name == "refuse" for mark in one)
    columns = [
        f"{name}\n{f'of {scales[budget]}' if scales[budget] else 'no limit'}"
        for budget, (name, _) in BUDGETS.items()
    ]
    return Scene(
        f"prefill: {many(admits, 'admission')}, {many(refuses, 'refusal')}",
        about_run(trace, first_of(shown, len(every), "round") or many(shown, "round")),
        [Part("What is left, in tokens", "+ admitted: tokens to compute; × refused",
              [CellGrid(lines, columns, cells)])],
        LEGEND,
        [*[*reasons][:MOST_REASONS], *NOTES[: 1 + bool(reasons)]],
    )  # fmt: skip


def rounds_of(trace: Trace) -> list[Round]:
    """Every round in which somebody was admitted or refused.

    Raises:
        NothingToShow: there is none.
    """
    marks = named(trace, "budget", "admit", "refuse")
    starts = [at for at, mark in enumerate(marks) if mark.name == "budget"]
    rounds = [marks[start:end] for start, end in pairwise([*starts, len(marks)])]
    if not (found := [one for one in rounds if len(one) > 1]):
        raise NothingToShow("the trace has no budget, admit or refuse mark: nobody was offered.")
    return found


def grouped(rounds: list[Round]) -> list[list[Round]]:
    """Those in a row that only refuse the same requests, together."""

    def refused(one: Round) -> list[tuple[str, str]]:
        events = [(word(mark, "rid"), str(mark.attrs.get("result"))) for mark in one[1:]]
        return [] if any(mark.name == "admit" for mark in one) else events

    groups: list[list[Round]] = []
    for one in rounds:
        if groups and refused(one) and refused(one) == refused(groups[-1][-1]):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def left(mark: Mark, budget: str) -> int | None:
    """What a mark says is left of a budget, which may be overdrawn; None: it has no limit."""
    value = number(mark, budget)
    return None if budget == "rem_chunk" and value < 0 else max(0, value)


def admitted(mark: Mark) -> str:
    """Who was admitted, with how many tokens to compute, in words."""
    more = ", a chunk" if mark.attrs.get("is_chunked") else ""
    hit = f", {hit_len} cached" if (hit_len := number(mark, "hit_len")) else ""
    return f"{short(word(mark, 'rid'), 14)}: {number(mark, 'extend_len')}{hit}{more}"


def budget_cell(before: Mark, after: Mark, budget: str, scale: int) -> GridCell | None:
    """What is left of a budget, and beside it what has just been taken; None: it has no limit."""
    was, now = left(before, budget), left(after, budget)
    if was is None or now is None:
        return None
    taken, rest = max(0, was - now), min(1.0, now / max(1, scale))
    said = str(now) if (rem := number(after, budget)) >= 0 else f"over by {-rem}"
    data: dict[str, str | int] = {"mark": after.name, "budget": budget, "left": rem}
    if after.name == "admit":
        data["rid"] = word(after, "rid")
    about = f"{BUDGETS[budget][1]}: {now} left" + f", {taken} taken" * bool(taken)
    fills = [("left", rest), ("spent", min(taken / max(1, scale), 1.0 - rest))][: 1 + bool(taken)]
    return GridCell("room", said, about=about, fills=fills, data=data)


def refusal(mark: Mark) -> tuple[int, GridCell]:
    """In which column it stands, and what would have been needed."""
    budget = LACKED.get(word(mark, "reason").partition(":")[0], "")
    data = {"mark": "refuse", "rid": word(mark, "rid")}
    if not budget:
        return len(BUDGETS) - 1, GridCell("lacking", word(mark, "result"), data=data)
    need, rest = number(mark, "need"), max(0, number(mark, "left"))
    about = f"{BUDGETS[budget][1]}: needs {need}, {rest} left"
    return [*BUDGETS].index(budget), GridCell("lacking", f"needs {need}, has {rest}", about=about,
                                              data=data)  # fmt: skip
