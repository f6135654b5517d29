"""Rounds of admission, read from a trace: a budget, and what became of who was offered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ...trace import Mark, Trace
from ..units import ms
from .marks import NothingToShow, named, number, word
from .steps import led_to
from .wording import many, short

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
