"""The museum's page on one bug, part by part, and as JSON; the forms only lay the parts out."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..checks.case import Case, case_text
from ..checks.judge import Verdict
from .blame import plainly
from .exhibit import OWN_LAWS, Exhibit, Standing, address
from .patch import diff


class PagePart(NamedTuple):
    """One part of a page. ``kind`` is ``text``, ``list``, ``good``, ``bad``, ``picture``, ``diff``,
    ``links`` or ``code``; a list has one item per line.
    """

    heading: str
    kind: str
    body: str


def page(item: Exhibit) -> list[PagePart]:
    """Return the parts of a bug, from its symptom to its cure; of a suspicion, the truth.

    Raises:
        StalePatch: the healthy code has changed.
    """
    case, links = PagePart("", "list", "\n".join(in_words(item.case))), "\n".join(item.references)
    published = PagePart("Published", "links", links)
    if item.is_refuted:
        return [
            PagePart("What was thought", "text", item.symptom),
            case._replace(heading="The case that tries it"),
            verdict_part("The verdict", item.healthy(), item.law),
            PagePart("What is true", "text", item.cure),
            published,
        ]
    return [
        PagePart("Symptom", "text", item.symptom),
        case._replace(heading="The smallest case"),
        verdict_part("With the bug", item.with_bug(), item.law),
        verdict_part("Without it, on the same requests", item.healthy(), item.law),
        PagePart("What happens", "text", item.here),
        PagePart("The counterexample", "picture", ""),
        PagePart("The fix here", "diff", diff(item.edits)),
        PagePart("How the original fixed it", "text", item.cure),
        published,
        PagePart("Draw it", "code", f"minisched museum run {item.name} --out {item.name}.svg"),
    ]


def in_words(case: Case) -> list[str]:
    """Return a line for the loop, one per event, and one for the size of memory."""
    relay = f", relay {case.relay}" if case.relay else ""
    lines = [line for line in case_text(case) if not line.startswith("costs")]
    return [f"loop {case.loop}{relay}, on {case.device}", *lines]


def verdict_part(heading: str, verdict: Verdict, law: str) -> PagePart:
    """Return the findings, the law that matters first; or none, if it could be judged."""
    found = sorted(verdict.findings, key=lambda item: item.law != law)
    if not found and (lack := verdict.lacking(law)):
        return PagePart(heading, "text", f"nothing to judge: {lack}")
    said = [f"{item.law}: {plainly(item)}" for item in found] or ["every law holds"]
    if found and law in OWN_LAWS:
        said.append(f"('{law}' is a law of this exhibit alone: `minisched check` can't hold it.)")
    return PagePart(heading, "bad" if found else "good", "\n".join(said))


def markdown(part: PagePart, shown: str) -> str:
    """Return one part of the site's page; ``shown`` is how it shows the picture."""
    lines = part.body.splitlines()
    if part.kind == "picture":
        return shown
    if part.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if part.kind == "links":
        return ", ".join(f"[{line}]({address(line)})" for line in lines)
    if part.kind in ("diff", "code"):
        return f"```{'diff' if part.kind == 'diff' else 'console'}\n{part.body}\n```"
    return "\n\n".join(lines)


# -- As JSON ---------------------------------------------------------------------------------------


def bug_json(standing: Standing) -> dict[str, Any]:
    """Return a bug as JSON; ``reference`` is its source, as one text.

    ``example`` is the case that shows it, line by line. ``nothing_broken`` is the result of a
    refuted one's run.
    """
    item = standing.exhibit
    told = {
        "name": item.name,
        "title": item.title,
        "chapter": item.chapter,
        "reference": ", ".join(item.references),
        "links": [address(reference) for reference in item.references],
        "example": in_words(item.case),
    }
    if item.is_refuted:
        own = {"suspicion": item.symptom, "truth": item.cure, "nothing_broken": standing.is_good}
        return {**told, **own}
    return {
        **told,
        "suspected_at": item.suspected_at or None,
        "caught_by": standing.caught_by,
        "sentence": standing.sentence,
        "healthy_passes": standing.healthy_passes,
    }
