"""A report on a learner's ``mine.py``, for a lead: each kept answer is checked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from .exercise import Exercise, exercises
from .grade import grade
from .guard import TooLong, apart, blame
from .keep import parts


@dataclass(frozen=True)
class Line:
    """One exercise: right, wrong (``why`` names the first problem), or without an answer."""

    exercise: Exercise
    is_kept: bool
    is_right: bool
    why: str = ""

    @property
    def sign(self) -> str:
        """Return the sign of the line."""
        return "✓" if self.is_right else "✗" if self.is_kept else "–"


def check_again(file: Path, hear: Callable[[str], None] = lambda name: None) -> Iterator[Line]:
    """Check every answer of a file again; ``hear`` receives the name of each one first."""
    kept = parts(file)
    for name, one in exercises().items():
        if name not in kept:
            yield Line(one, False, False)
            continue
        hear(name)
        try:
            lines = one.lines(kept[name])
            verdict = apart(partial(grade, one, lines))
        except (Exception, TooLong) as error:  # the file may have been edited
            yield Line(one, True, False, blame(error))
            continue
        why = "" if verdict.passed else verdict.sentences[0]
        yield Line(one, True, verdict.passed, why)


def to_page(lines: list[Line], titles: dict[str, str], score: str) -> str:
    """Return the page: a row for each lesson, the wrong answers, and a sentence on the score."""
    rows = []
    for lesson, title in titles.items():
        ours = [line for line in lines if line.exercise.lesson == lesson]
        marks = " ".join(
            f'<span title="{escape(line.exercise.name)}">{line.sign}</span>' for line in ours
        )
        right = sum(line.is_right for line in ours)
        rows.append(
            f"<tr><td>{lesson[:2]}</td><td>{escape(title)}</td><td>{marks}</td>"
            f"<td>{right} of {len(ours)}</td></tr>"
        )
    wrong = "".join(
        f"<li><code>{line.exercise.name}</code>: {escape(line.why)}</li>"
        for line in lines
        if line.why
    )
    done = sum(line.is_right for line in lines)
    return (
        f"{HEAD}<h1>minisched: {done} of {len(lines)} exercises right</h1>"
        f"<p>Every answer was checked again for this page. {escape(score)}</p>"
        f"<table>{''.join(rows)}</table>"
        + (f"<h2>Kept, and not right now</h2><ul>{wrong}</ul>" if wrong else "")
    )


HEAD = """<!doctype html>
<meta charset="utf-8"><title>minisched: report</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; max-width: 46em; margin: 2em auto; }
td { padding: .1em .9em .1em 0; }
</style>
"""
