"""Admission's budget as a waterfall: it falls with everybody who is admitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, many, named, number, short, word
from .steps import led_to

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

    Those in a row that only refuse the same requests are one.

    Raises:
        NothingToShow: there is none.
    """
    finder, found = led_to(trace), list[Round]()
    marks = named(trace, "budget", "admit", "refuse")
    starts = [at for at, mark in enumerate(marks) if mark.name == "budget"]
    for start, end in pairwise([*starts, len(marks)]):
        if not (events := tuple(marks[start + 1 : end])):
            continue
        step = finder.step(marks[start])
        now, before = Round(marks[start], events, step, step), found[-1] if found else None
        if before and not before.admits and not now.admits and before.outcome == now.outcome:
            found[-1] = replace(now, step=before.step, repeats=before.repeats + 1)
        else:
            found.append(now)
    if not found:
        raise NothingToShow("the trace has no budget, admit or refuse mark: nobody was offered.")
    return found


def opening_rounds(rounds: list[Round]) -> list[Round]:
    """As many of the first as the picture has lines for; a refusal has two, as it says why."""
    kept, used = list[Round](), 0
    for one in rounds:
        used += 1 + 2 * len(one.events) - len(one.admits)
        if kept and used > MOST_ROWS:
            break
        kept.append(one)
    return kept


def left(mark: Mark, budget: str) -> int | None:
    """What a mark says is left of a budget; None: no limit."""
    value = number(mark, budget)
    return None if budget == "rem_chunk" and value < 0 else value


def admitted(mark: Mark) -> str:
    """Who was admitted, with how many tokens to compute, in words."""
    more = ", a chunk" if mark.attrs.get("is_chunked") else ""
    hit = f", {hit_len} cached" if (hit_len := number(mark, "hit_len")) else ""
    return f"{short(word(mark, 'rid'), 14)}: {number(mark, 'extend_len')}{hit}{more}"


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
    pairs = (("rem_total", "cur_rem"), ("rem_input", "rem_chunk"))  # else one number for two each
    admits = [mark for one in rounds for mark in one.admits]
    if any(number(mark, a) != number(mark, b) for mark in admits for a, b in pairs):
        yield from RESERVE
    refuses = [event for one in rounds for event in one.events if event.name == "refuse"]
    results = {word(event, "result") for event in refuses}
    for result, meaning in RESULTS.items():
        if result in results:
            yield f"{result} (SGLang's AddReqResult): {meaning}"


# -- Four budgets, round after round, who was charged, and who was refused and why -----------------

MOST_ROWS, MOST_REASONS = 60, 12
LEGEND = {
    "left": "tokens left",
    "spent": "what this request took",
    "lacking": "what a refused request would have needed",
}


def scene(trace: Trace) -> Scene:
    """A line a request that was offered; four columns of what is left, in tokens.

    Raises:
        NothingToShow: nobody was ever offered to admission.
    """
    every = rounds_of(trace)
    rounds, lines, cells = opening_rounds(every), list[str](), dict[tuple[int, int], GridCell]()
    count, of = (sum(one.repeats for one in some) for some in (rounds, every))
    shown = many(count, "round") if count == of else f"the first {count} of {of} rounds"
    scales = {  # the most that each budget ever held; 0: it has no limit
        budget: max([0, *(left(one.budget, budget) or 0 for one in rounds)]) for budget in BUDGETS
    }
    reasons: dict[str, None] = {}
    for one in rounds:
        lines.append(one.title)
        before = one.budget
        for event in (one.budget, *one.events):
            row = len(lines) - (event is one.budget)
            if event.name == "refuse":
                rid = short(word(event, "rid"), 14)
                lines.append(f"  × {rid}: {word(event, 'result')}")
                column, cell = refusal(event)
                cells[row, column] = cell
                reasons[f"{rid}: {word(event, 'reason')}"] = None
                continue
            if event.name == "admit":
                lines.append(f"  + {admitted(event)}")
            for column, budget in enumerate(BUDGETS):
                if cell_ := budget_cell(before, event, budget, scales[budget]):
                    cells[row, column] = cell_
            before = event
    columns = [
        f"{name}\n{'no limit' if not scales[budget] else f'of {scales[budget]}'}"
        for budget, (name, _) in TITLES.items()
    ]
    admits = sum(len(one.admits) for one in rounds)
    refuses = sum(len(one.events) * one.repeats for one in rounds) - admits
    told = [*reasons][:MOST_REASONS]
    return Scene(
        f"prefill: {many(admits, 'admission')}, {many(refuses, 'refusal')}",
        about_run(trace, shown),
        [Part("What is left, in tokens", "+ admitted: tokens to compute; × refused",
              [CellGrid(lines, columns, cells)])],
        LEGEND,
        [*told, *explained(rounds)],
    )  # fmt: skip


def budget_cell(before: Mark, after: Mark, budget: str, scale: int) -> GridCell | None:
    """What is left of a budget, and beside it what has just been taken; None: it has no limit."""
    was, now = left(before, budget), left(after, budget)
    if was is None or now is None:
        return None
    rest, taken = max(0, now) / max(1, scale), max(0, was - max(0, now)) / max(1, scale)
    data: dict[str, str | int] = {"mark": after.name, "budget": budget, "left": now}
    if after.name == "admit":
        data["rid"] = word(after, "rid")
    about = f"{TITLES[budget][1]}: {now} left" + f", {was - now} taken" * (was > now)
    fills = [("left", min(1.0, rest))] + [("spent", min(taken, 1.0 - min(1.0, rest)))] * (taken > 0)
    return GridCell("room", str(now), about=about, fills=fills, data=data)


def refusal(mark: Mark) -> tuple[int, GridCell]:
    """In which column it stands, and what would have been needed."""
    budget = LACKED.get(word(mark, "reason").partition(":")[0], "")
    data = {"mark": "refuse", "rid": word(mark, "rid")}
    if not budget:
        return len(BUDGETS) - 1, GridCell("lacking", word(mark, "result"), data=data)
    need, rest = number(mark, "need"), max(0, number(mark, "left"))
    about = f"{TITLES[budget][1]}: needs {need}, {rest} left"
    words = f"needs {need}, has {rest}"
    return BUDGETS.index(budget), GridCell("lacking", words, about=about, data=data)
