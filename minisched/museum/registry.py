"""What the museum has: the exhibits and the refuted suspicions of the chapters in ``bugs``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from typing import Any

from .bugs import beliefs, memory, streams, tokens
from .bugs import refuted as refuted_ones
from .exhibit import CHAPTERS, Exhibit, Refuted, address
from .page import as_json
from .picture import draw


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """The published bugs, in the order of the chapters, within a chapter by name."""
    found = [item for item in everything() if isinstance(item, Exhibit)]
    return tuple(sorted(found, key=lambda item: (CHAPTERS.index(item.chapter), item.name)))


@cache
def refuted() -> tuple[Refuted, ...]:
    """The suspicions that do not hold, and the misdiagnoses, by name."""
    found = [item for item in everything() if isinstance(item, Refuted)]
    return tuple(sorted(found, key=lambda item: item.name))


def find(name: str) -> Exhibit | Refuted:
    """What has this name.

    Raises:
        ValueError: nothing has.
    """
    known = {item.name: item for item in everything()}
    if name in known:
        return known[name]
    folded = name.casefold()
    alike = [other for other in known if name and (folded in other or other in folded)]
    alike = alike or get_close_matches(folded, known, n=3, cutoff=0.4)
    near = f"did you mean {', '.join(alike[:3])}?" if alike else "`museum list` names them all."
    raise ValueError(f"the museum has no {name!r}; {near}")


def everything() -> list[Exhibit | Refuted]:
    """What the chapters have."""
    chapters = (memory, tokens, streams, beliefs, refuted_ones)
    found = (item for chapter in chapters for item in vars(chapter).values())
    return [item for item in found if isinstance(item, (Exhibit, Refuted))]


# -- Whether a bug is caught and the healthy code green, as the command and CI tell it -------------


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


# -- The museum's pictures among the files that the repository keeps of its own output -------------


def museum_makers() -> dict[str, Callable[[], dict[str, str]]]:
    """What makes the picture of each bug, by its name; each gives a text by path."""
    return {f"museum/{item.name}": partial(picture_file, item) for item in exhibits()}


def picture_file(exhibit: Exhibit) -> dict[str, str]:
    """One picture."""
    return {path_of(exhibit): draw(exhibit)}


def path_of(exhibit: Exhibit) -> str:
    """Where a bug's picture is, in the repository."""
    return f"traces/museum/{exhibit.name}.svg"
