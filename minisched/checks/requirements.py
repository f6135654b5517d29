"""Requirements on a recorded run, for a gate in CI: ``busy>=95%``, ``no blocking aten::item``.

A requirement that cannot be judged is not met: a file without steps passes no gate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .answers import Answer
from .findings import OverlapFindings, shortened
from .history import many, milliseconds
from .speed import frames

SHARES = {  # percentages that a requirement may compare
    "overlapped": "of the steps are overlapped",
    "hidden": "of the host's work was done while the device was busy",
    "busy": "of the time the device worked",
    "idle": "of the time the device idled",
}
LAWS = {"no races": "races", "no leaks": "leaks", "identical": "identical"}  # their questions
COMPARISON = re.compile(r"(\w+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*%?")
FORMS = (
    "'overlapped>=90%', 'hidden>=80%', 'busy>=95%', 'idle<=5%', 'no blocking NAME', 'no races', "
    "'no leaks' and 'identical'"
)


@dataclass(frozen=True)
class Requirement:
    """A parsed requirement: a law, a comparison of a share, or a call that must not block.

    ``text`` is as it was written. Of a comparison, ``relation`` is its sign and ``limit`` a
    percentage. ``name`` is the share, the question, or the call (``*`` is any text).
    """

    text: str
    kind: str  # law, share or call
    name: str
    relation: str = ""
    limit: float = 0.0


@dataclass(frozen=True)
class RequirementResult:
    """The result of a requirement on a run, with a sentence for the reason."""

    text: str
    is_met: bool
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {"requirement": self.text, "met": self.is_met, "sentence": self.sentence}


def requirement(text: str) -> Requirement:
    """Parse a requirement.

    Raises:
        ValueError: it is none; the message is one sentence that names all forms.
    """
    words = " ".join(text.split())
    if words in LAWS:
        return Requirement(text, "law", LAWS[words])
    if words.startswith("no blocking "):
        return Requirement(text, "call", words.removeprefix("no blocking "))
    parts = COMPARISON.fullmatch(words)
    if parts is None:
        raise ValueError(f"the requirement {text!r} is not understood; the forms are {FORMS}.")
    name, relation, limit = parts.groups()
    if name not in SHARES:
        raise ValueError(
            f"the requirement {text!r} compares {name!r}, but a share is one of "
            f"{', '.join(SHARES)}."
        )
    if float(limit) > 100:
        raise ValueError(f"the requirement {text!r} has {limit} %, but it must be at most 100 %.")
    return Requirement(text, "share", name, relation, float(limit))


def judge_requirements(
    needed: Sequence[Requirement], answers: Sequence[Answer]
) -> list[RequirementResult]:
    """Return whether a run meets each requirement; ``answers`` are all answers about the run."""
    by_question = {item.question: item for item in answers}
    found = list[RequirementResult]()
    for item in needed:
        if item.kind == "law":
            found.append(_judge_law(item, by_question))
        elif (findings := by_question["overlaps"].findings) is None:
            sentence = by_question["overlaps"].sentence
            found.append(RequirementResult(item.text, False, f"It cannot be judged. {sentence}"))
        elif item.kind == "call":
            found.append(_judge_call(item, findings))
        else:
            found.append(_judge_share(item, findings, by_question))
    return found


def _judge_law(item: Requirement, by_question: Mapping[str, Answer]) -> RequirementResult:
    """Return whether a law held."""
    answer = by_question[item.name]
    is_met = answer.holds and answer.word != "unknown"
    return RequirementResult(item.text, is_met, answer.sentence)


def _judge_share(
    item: Requirement, findings: OverlapFindings, by_question: Mapping[str, Answer]
) -> RequirementResult:
    """Compare a share with its limit."""
    answer = by_question["overlaps" if item.name == "overlapped" else "busy"]
    if answer.word == "unknown":
        sentence = f"It cannot be judged. {answer.sentence}"
        return RequirementResult(item.text, False, sentence)
    share = {
        "overlapped": findings.verdict.percent,
        "hidden": findings.hidden_percent,
        "busy": findings.busy_percent,
        "idle": findings.idle_percent,
    }[item.name]
    is_met = {
        ">=": share >= item.limit,
        "<=": share <= item.limit,
        ">": share > item.limit,
        "<": share < item.limit,
    }[item.relation]
    sentence = f"{share:.1f} % {SHARES[item.name]}."
    return RequirementResult(item.text, is_met, sentence)


def _judge_call(item: Requirement, findings: OverlapFindings) -> RequirementResult:
    """Look for blocking calls of a name, which may be of the call, an operator or a function."""
    found = [
        call
        for call in findings.blocked
        if any(fnmatchcase(name, item.name) for name in call.names)
    ]  # fmt: skip
    lacks = " ".join(line for line in findings.lacks if line.startswith("It has no launches"))
    if lacks:
        return RequirementResult(item.text, False, f"It cannot be judged. {lacks}")
    if not found:
        return RequirementResult(item.text, True, f"No call {item.name} blocked the host.")
    count, ns = sum(call.count for call in found), sum(call.ns for call in found)
    where = f"; the call was made in {frames(found[0].where)}" if found[0].where else ""
    sentence = (
        f"{shortened(found[0].call)} blocked the host {many(count, 'time')}, for "
        f"{milliseconds(ns)} in all{where}."
    )
    return RequirementResult(item.text, False, sentence)
