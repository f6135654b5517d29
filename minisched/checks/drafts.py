"""What became of a run's drafts: how many were proposed, and how many of them accepted."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace import Trace


@dataclass(frozen=True)
class Drafts:
    """Drafts over a run; ``verifies`` counts rows: the steps of each request that had drafts.

    As in vLLM's ``v1/spec_decode/metrics.py`` only steps that carried drafts count. Unlike there, a
    draft counts as accepted only if the request got it as a token: not behind its last one.
    """

    verifies: int
    proposed: int
    accepted: int

    @property
    def tokens_per_step(self) -> float:
        """Tokens that such a step gave a request: one of its own, and the accepted drafts."""
        return 1 + self.accepted / self.verifies

    def __str__(self) -> str:
        return (
            f"{self.accepted} of {self.proposed} drafts accepted, {self.tokens_per_step:.1f} "
            "tokens a step for each request"
        )


def count_drafts(trace: Trace) -> Drafts | None:
    """The sum of the ``verified`` marks (``scheduler/scheduler.py``); None: no drafts."""
    marks = [mark.attrs for mark in trace.marks if mark.name == "verified"]
    if not marks:
        return None
    proposed, accepted = (
        sum(int(attrs[name]) for attrs in marks) for name in ("drafts", "accepted")
    )
    return Drafts(len(marks), proposed, accepted)
