"""What the museum shows of one published bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..checks.case import Case
from ..checks.judge import Verdict, judge
from ..checks.offence import Offence
from .patch import Edit, put_in

CHAPTERS = (
    "who owns memory",
    "tokens on their way",
    "streams and buffers",
    "what the scheduler believes",
)


@dataclass(frozen=True)
class Exhibit:
    """One published bug, put back by a patch, with the smallest case that shows it.

    ``law`` is the one that catches it (``checks/laws.py``, ``checks/judge.py:STOPPED_BY``), and
    ``says`` words that its sentence must have. ``judge_by`` holds the laws against a case, where
    it takes other laws than the general ones. ``points_at`` says what a picture shows in red,
    where ``museum/offence.py`` cannot work it out from the law; it takes the verdict with the bug.

    ``suspected_at`` is the reference, one of ``references``, whose source was only suspected of the
    bug, and which its model here confirms; empty where somebody had met it.

    ``original_cure`` is the bug with the original's own cure, where the code here is built
    otherwise and never could have the bug: with these edits in the place of ``edits`` every law
    holds.

    The costs of ``case`` are what its picture shows: ``SIM_COST``, unless the bug takes others.
    """

    name: str
    title: str
    chapter: str  # one of ``CHAPTERS``
    references: tuple[str, ...]  # as "sglang #22416"
    symptom: str  # what somebody saw who had it
    here: str  # what goes wrong in this case, step by step
    cure: str  # what the original did about it
    law: str
    says: str
    case: Case
    edits: tuple[Edit, ...]
    judge_by: Callable[[Case], Verdict] = field(default=judge)
    points_at: Callable[[Verdict], Offence] | None = None
    suspected_at: str = ""
    original_cure: tuple[Edit, ...] = ()

    def with_bug(self) -> Verdict:
        """The verdict on the case with the bug in the code."""
        with put_in(self.edits):
            return self.judge_by(self.case)

    def cured_as_there(self) -> Verdict:
        """The verdict on the case with the bug and the original's cure, where that is given."""
        with put_in(self.original_cure):
            return self.judge_by(self.case)

    def healthy(self) -> Verdict:
        """The verdict on the same case with the code as it is."""
        return self.judge_by(self.case)

    @property
    def is_caught(self) -> bool:
        """Whether the law that should catch it does."""
        found = self.with_bug().broke(self.law)
        return found is not None and self.says in found.sentence


@dataclass(frozen=True)
class Refuted:
    """A suspicion that does not hold, or a misdiagnosis: what was thought, and what is true.

    ``case`` runs what was suspected, with ``edits`` in place if it takes a change to do so; no law
    is broken by it.
    """

    name: str
    title: str
    references: tuple[str, ...]
    suspicion: str
    truth: str
    case: Case
    edits: tuple[Edit, ...] = ()
    judge_by: Callable[[Case], Verdict] = field(default=judge)

    def verdict(self) -> Verdict:
        """The verdict on what was suspected."""
        with put_in(self.edits):
            return self.judge_by(self.case)
