"""The verdict on a recorded run: one structure, from which each output takes its sentences.

The terminal, ``--html``, ``--json``, the page of the site and ``minisched.check`` show the same
rows. The short form fits on one screen; the rest is one option away (``--detail``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .answers import Answer, Recorded, identical, leaks, races, stopped_with, told
from .history import many
from .overlap import is_profiled
from .requirements import Requirement, RequirementResult, judge_requirements
from .speed import blocked_words, call_words, gain_words, on_speed

SCREEN_LINES, SCREEN_COLUMNS = 24, 100
MOST_SHOWN = 8  # details of one row on a screen
NO_LAWS = ("overlaps", "busy")  # questions about speed; a slow run breaks no law
SPEED = tuple(f"{question}?" for question in NO_LAWS)
FOLLOWS = ("blocked?", "gain?", "next?")  # rows that follow from the answers on speed
SIGNS = {"yes": "✓", "no": "✓", "partly": "~", "unknown": "?"}
HAS_ALL = "--detail has them all, and `detail` in Python"
HANG = 16  # columns before the sentence of a row


@dataclass(frozen=True)
class VerdictRow:
    """One sentence of a verdict: its sign, its name (``overlaps?``), and the details below it.

    ``more`` are sentences that a screen leaves out.
    """

    sign: str
    name: str
    sentence: str
    details: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Return the row's first line."""
        return f"  {self.sign} " + (f"{self.name:<11} " if self.name else "") + self.sentence

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {
            "sign": self.sign, "name": self.name, "sentence": self.sentence,
            "details": [line.strip() for line in self.details], "more": list(self.more),
        }  # fmt: skip


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on one recorded run: an answer to each question, and what was required."""

    run: Recorded
    answers: tuple[Answer, ...]
    required: tuple[RequirementResult, ...] = ()

    @property
    def title(self) -> str:
        """Return the file with what ran: ``a.json: overlap on sim hash, virtual clock``."""
        trace = self.run.trace
        what = " ".join(filter(None, [trace.loop, "on", trace.device, trace.model, trace.dtype]))
        return f"{self.run.file}: {what}, {trace.clock} clock"

    @property
    def is_lawful(self) -> bool:
        """Return whether the run did not stop with an error, and no law is broken."""
        return not stopped_with(self.run.trace) and all(item.holds for item in self.answers)

    @property
    def is_judged(self) -> bool:
        """Return whether there was evidence on any law."""
        laws = [item for item in self.answers if item.question not in NO_LAWS]
        return bool(stopped_with(self.run.trace)) or any(item.word != "unknown" for item in laws)

    @property
    def rows(self) -> list[VerdictRow]:
        """Return the rows, with the laws first."""
        return [*self._on_laws(), *self._on_speed(), *map(as_row, self.required)]

    def _on_laws(self) -> Iterator[VerdictRow]:
        """Yield the error of a run that stopped, and the answers on laws."""
        if error := stopped_with(self.run.trace):
            yield VerdictRow("✗", "", f"it stopped with {error}")
        is_profile = is_profiled(self.run.trace)
        if is_profile:
            nothing = "Nothing to judge: a profile has times alone."
            yield VerdictRow("?", "", f"identical? leaks? races?  {nothing}")
        for item in self.answers:
            if item.question in NO_LAWS or (is_profile and item.word == "unknown"):
                continue
            sign = SIGNS[item.word] if item.holds else "✗"
            yield VerdictRow(sign, f"{item.question}?", item.sentence, item.details, item.more)

    def _on_speed(self) -> Iterator[VerdictRow]:
        """Yield the answers on overlap and on the device, then what follows from both."""
        for item in self.answers:
            if item.question in NO_LAWS:
                sign = "-" if item.word == "no" else SIGNS[item.word]  # no law is broken
                yield VerdictRow(sign, f"{item.question}?", item.sentence, item.details, item.more)
        found = next((item.findings for item in self.answers if item.findings), None)
        if found is None:
            return
        if words := blocked_words(self.run.trace, found):
            calls = tuple(map(call_words, found.blocked))
            yield VerdictRow("-", "blocked?", words, more=calls[1:])
        if words := gain_words(found):
            yield VerdictRow("-", "gain?", words)
        if found.advice:
            yield VerdictRow("-", "next?", found.advice[:1].upper() + found.advice[1:])

    def lines(self, is_whole: bool = False) -> list[str]:
        """Return the verdict as lines; without ``is_whole`` they fit on a screen.

        If a law is broken, a screen has of speed only both answers.
        """
        rows = self.rows if is_whole or self.is_lawful else self._correctness_first()
        room = SCREEN_LINES - 1 - height(self.title, 0) - sum(height(it.head, HANG) for it in rows)
        lines, left_out = [self.title], 0
        for row in rows:
            lines.append(row.head)
            shown, rest = list(row.details), list(row.more)
            while not is_whole and (len(shown) > MOST_SHOWN or taken(shown) > room):
                rest.append(shown.pop())
            if is_whole:
                shown, rest = [*shown, *rest], []
            room -= taken(shown)
            lines += [f"{'':<{HANG}}{line}" for line in shown]
            left_out += len(rest)
        if left_out:
            lines.append(f"  and {many(left_out, 'more sentence')}; {HAS_ALL}")
        return lines

    def _correctness_first(self) -> list[VerdictRow]:
        """Return the rows of a run that breaks a law: the answers on speed without their details.

        What follows from these is left out.
        """
        rows = list[VerdictRow]()
        for row in self.rows:
            if row.name in SPEED:
                row = replace(row, details=(), more=(*row.details, *row.more))
            if row.name in FOLLOWS:
                speed = rows[-1]
                rows[-1] = replace(speed, more=(*speed.more, row.sentence, *row.more))
            else:
                rows.append(row)
        return rows

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows as JSON."""
        return [row.as_json() for row in self.rows]


def as_row(result: RequirementResult) -> VerdictRow:
    """Return the row of a requirement."""
    sign = "✓" if result.is_met else "✗"
    return VerdictRow(sign, "required", f"{result.text}: {result.sentence}")


def taken(details: Iterable[str]) -> int:
    """Return the lines that details take on a screen."""
    return sum(height(line, 0, HANG) for line in details)


def height(line: str, hang: int, margin: int = 0) -> int:
    """Return the lines that a sentence takes on a screen: below its first one they hang."""
    width, after = SCREEN_COLUMNS - margin, " " * hang
    return len(textwrap.wrap(line, width, subsequent_indent=after)) or 1


def verdicts_on(
    runs: Sequence[Recorded], require: Sequence[Requirement] = ()
) -> tuple[RunVerdict, ...]:
    """Return the verdict on each run; the first of several is the baseline.

    Raises:
        ValueError: two runs are of different workloads.
    """
    found = list[RunVerdict]()
    for run in runs:
        same = identical(runs[0], run, len(runs))
        answers = (same, *told(run), leaks(run), races(run), *on_speed(run))
        found.append(RunVerdict(run, answers, tuple(judge_requirements(require, answers))))
    return tuple(found)


def every_law_held(verdicts: Sequence[RunVerdict]) -> bool | None:
    """Return whether every law held that could be checked; None if none could be."""
    if not all(item.is_lawful for item in verdicts):
        return False
    return True if any(item.is_judged for item in verdicts) else None
