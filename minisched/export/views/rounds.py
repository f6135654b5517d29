"""Rounds of admission, read from a trace: a budget, and what became of who was offered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ...trace import Mark, Trace
from .marks import NothingToShow, named, number, word
from .steps import led_to

BUDGETS = ("rem_chunk", "rem_input", "cur_rem", "rem_total")


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


def left(mark: Mark, budget: str) -> int | None:
    """What a mark says is left of a budget; None: no limit."""
    value = number(mark, budget)
    return None if budget == "rem_chunk" and value < 0 else value
