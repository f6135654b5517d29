"""What the museum says of one bug, part by part; the forms only lay the parts out."""

from __future__ import annotations

from typing import NamedTuple

from ..checks.judge import Verdict
from ..checks.many import LAWS
from .example import in_words
from .exhibit import Exhibit, Refuted
from .offence import plainly
from .patch import diff

HOLDS = "every law holds"


class Part(NamedTuple):
    """One part of a page. ``kind`` is ``text``, ``list``, ``good``, ``bad``, ``picture``, ``diff``,
    ``links`` or ``code``; a list has an item a line.
    """

    heading: str
    kind: str
    body: str


def page(exhibit: Exhibit, command: str = "") -> list[Part]:
    """A bug from what somebody saw to how it was cured.

    ``command`` draws the picture; where it is told, it is told at the end.

    Raises:
        StalePatch: the healthy code has moved on.
    """
    parts = [
        Part("Symptom", "text", exhibit.symptom),
        Part("The smallest case", "list", "\n".join(in_words(exhibit.case))),
        verdict_part("With the bug", exhibit.with_bug(), exhibit.law),
        *own_law(exhibit),
        verdict_part("Without it, on the same requests", exhibit.healthy(), exhibit.law),
        Part("What happens", "text", exhibit.here),
        Part("The counterexample", "picture", ""),
        Part("The fix here", "diff", diff(exhibit.edits)),
        Part("How the original fixed it", "text", exhibit.cure),
        *as_there(exhibit),
        Part("Published", "links", "\n".join(exhibit.references)),
    ]
    return [*parts, Part("Draw it", "code", command)] if command else parts


def as_there(exhibit: Exhibit) -> list[Part]:
    """The original's fix put into the bug, where the code here is built otherwise."""
    if not exhibit.original_cure:
        return []
    lines = diff(exhibit.edits, cure=exhibit.original_cure)
    verdict = verdict_part("With the original's fix", exhibit.cured_as_there(), exhibit.law)
    return [Part("The original's fix, in the bug's place", "diff", lines), verdict]


def refuted_page(item: Refuted) -> list[Part]:
    """A suspicion, and what is true.

    Raises:
        StalePatch: the healthy code has moved on.
    """
    parts = [
        Part("What was thought", "text", item.suspicion),
        Part("The case that tries it", "list", "\n".join(in_words(item.case))),
        verdict_part("The verdict", item.verdict(), "identity"),
        Part("What is true", "text", item.truth),
    ]
    if item.edits:  # what it took to try it
        parts.insert(2, Part("Tried with this taken out", "diff", diff(item.edits)))
    return [*parts, Part("Published", "links", "\n".join(item.references))]


def own_law(exhibit: Exhibit) -> list[Part]:
    """That the law which catches a bug is none of the general ones, where it is so."""
    if exhibit.law in LAWS:
        return []
    said = (
        f"'{exhibit.law}' is a law of this exhibit alone: no general law is broken here, and "
        "minisched check does not hold this one against its workloads."
    )
    return [Part("A law of its own", "text", said)]


def verdict_part(heading: str, verdict: Verdict, law: str) -> Part:
    """What was found, the law that matters first; or that nothing was, if it could have been."""
    found = sorted(verdict.findings, key=lambda item: item.law != law)
    said = "\n".join(f"{item.law}: {plainly(item)}" for item in found)
    if not found and (lack := verdict.lacking(law)):
        return Part(heading, "text", f"nothing to judge: {lack}")
    return Part(heading, "bad" if found else "good", said or HOLDS)
