"""Whether a bug is caught and the healthy code green, as the command and CI tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .example import as_json
from .exhibit import Exhibit, Refuted
from .references import address


@dataclass(frozen=True)
class Standing:
    """One exhibit, tried. ``caught_by`` is the law that caught it, if it is the one that should.

    ``lacking`` is what the healthy run lacks to be judged by it: then it does not pass.
    """

    exhibit: Exhibit
    caught_by: str | None
    sentence: str
    healthy_passes: bool
    lacking: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the bug is caught and the healthy code passes."""
        return self.caught_by is not None and self.healthy_passes


def standing_of(exhibit: Exhibit) -> Standing:
    """Run the case with the bug and without.

    Raises:
        StalePatch: the healthy code has moved on.
    """
    found = exhibit.with_bug().broke(exhibit.law)
    caught = found is not None and exhibit.says in found.sentence
    sentence = found.sentence if found else ""
    healthy = exhibit.healthy()
    lacks, law = healthy.lacking(exhibit.law), exhibit.law if caught else None
    return Standing(exhibit, law, sentence, healthy.holds and not lacks, lacks)


def nothing_broken(item: Refuted) -> bool:
    """Whether what was suspected ran, gave tokens, and broke no law."""
    verdict = item.verdict()
    return verdict.holds and not verdict.lacking("identity")


def bug_json(standing: Standing) -> dict[str, Any]:
    """A published bug as JSON has it; ``reference`` is where it was published, as one text."""
    exhibit = standing.exhibit
    return {
        "name": exhibit.name,
        "title": exhibit.title,
        "chapter": exhibit.chapter,
        "reference": ", ".join(exhibit.references),
        "links": [address(reference) for reference in exhibit.references],
        "suspected_at": exhibit.suspected_at or None,
        "caught_by": standing.caught_by,
        "sentence": standing.sentence,
        "healthy_passes": standing.healthy_passes,
        "example": as_json(exhibit.case),
    }


def refuted_json(item: Refuted) -> dict[str, Any]:
    """A suspicion as JSON has it; ``nothing_broken`` is what its own run says."""
    return {
        "name": item.name,
        "title": item.title,
        "reference": ", ".join(item.references),
        "links": [address(reference) for reference in item.references],
        "suspicion": item.suspicion,
        "truth": item.truth,
        "nothing_broken": nothing_broken(item),
        "example": as_json(item.case),
    }
