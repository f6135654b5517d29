"""Leaks: whatever is held by nobody, by somebody who has ended, or freed by who did not hold it.

Read from a trace alone, at every step and at the end. What a live scheduler holds is looked at in
``books.py``. What was launched and never ended is in ``pending.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Mark, Trace
from .audit import close, settle
from .leak import Leak
from .ledger import Ledger, numbers
from .moment import Clock, Moment
from .pending import find_pending, is_complete

NEEDED = {
    "row alloc": "rows of the request table, and who held what",
    "page alloc": "pages",
    "radix lock": "locks on the prefix cache (there may be none)",
    "finish": "what is held by a request that has ended, and ops that nobody waited for",
    "commit": "what is held between two steps, and which steps came back: only the end",
    "tokens": "what is held between two steps, and which steps came back: only the end",
}
"""By mark, what nobody can say without it."""


def find_leaks(trace: Trace) -> list[Leak]:
    """Everything that leaks, in order of time; ``not_checked`` says what could not be seen."""
    found = [leak for side in sides(trace) for leak in leaks_of(trace, side)]
    return sorted([*found, *find_pending(trace)], key=lambda leak: leak.time)


def not_checked(trace: Trace) -> list[str]:
    """What a trace does not tell: one sentence for all marks; empty if it tells everything."""
    names = {mark.name for mark in trace.marks}
    absent = {name: what for name, what in NEEDED.items() if name not in names}
    said = []
    if absent:
        marks, about = " or ".join(map(repr, absent)), "; ".join(dict.fromkeys(absent.values()))
        said.append(f"The trace has no mark {marks}, so nothing is known about {about}.")
    if not trace.program:
        said.append(
            "The trace has no program, so nothing is known about ops that nobody waited for and "
            "threads that are still in a call."
        )
    elif "finish" in names and not is_complete(trace):
        said.append(
            "Not every request ends in the trace, so nothing is known about ops that nobody waited "
            "for: they may be in flight."
        )
    return said


def sides(trace: Trace) -> list[str]:
    """The schedulers of a run, by name; the name is empty where there is one."""
    found = {str(mark.attrs["side"]) for mark in trace.marks if "side" in mark.attrs}
    return sorted(found) or [""]


def leaks_of(trace: Trace, side: str) -> list[Leak]:
    """What leaks of one scheduler's memory."""
    ledger, now, knows = Ledger(), Moment(0), sees_steps(trace)
    for mark, now in moments(trace, side):
        ledger.hear(mark, now)
        if knows and mark.name in ("commit", "tokens"):
            settle(ledger, now)
    return close(ledger, Moment(trace.end, 0, now.after), knows)


def sees_steps(trace: Trace) -> bool:
    """Whether the trace says when steps are committed and when they come back."""
    return {"commit", "tokens"} <= {mark.name for mark in trace.marks}


def moments(trace: Trace, side: str = "") -> Iterator[tuple[Mark, Moment]]:
    """The marks of one scheduler, each with its moment.

    Rows and pages that the next step names were taken for it. Whoever ends by a token does so in
    the step that is about to come back.
    """
    marks = [mark for mark in trace.marks if mark.attrs.get("side", "") == side]
    clock, after = Clock(trace, side), 0
    for mark, (commit, rows, back) in zip(marks, steps_ahead(marks), strict=True):
        said = mark.attrs.get("step", 0)
        step = said if isinstance(said, int) else 0  # marks of unknown names may say anything
        if mark.name in ("row alloc", "page alloc") and mark.attrs.get("row") in rows:
            step = commit
        elif mark.name == "finish" and mark.attrs.get("reason") in ("stop", "length"):
            step = back
        after = step if mark.name == "commit" else after
        yield mark, clock.now(mark, step, after)


def steps_ahead(marks: list[Mark]) -> list[tuple[int, list[int], int]]:
    """For each mark the next step to be committed, with its rows, and the next to come back."""
    found: list[tuple[int, list[int], int]] = []
    commit, rows, back = 0, list[int](), 0
    for mark in reversed(marks):
        if mark.name == "commit":
            commit, rows = int(mark.attrs["step"]), numbers(mark.attrs["rows"])
        elif mark.name == "tokens":
            back = int(mark.attrs["step"])
        found.append((commit, rows, back))
    return found[::-1]
