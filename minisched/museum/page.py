"""What the museum says of one bug, part by part; the forms only lay the parts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..checks.case import Case, case_text, changed
from ..checks.judge import Verdict
from ..checks.many import LAWS
from ..core import Request, SamplingParams
from ..scheduler import SchedulerConfig
from .blame import plainly
from .exhibit import Exhibit, Refuted, address
from .patch import diff

# -- A bug's case told: in lines of words, and as an object for JSON -------------------------------

ALWAYS = ("kv_tokens", "page_size", "max_running_requests")  # the sizes that every case has


def in_words(case: Case) -> list[str]:
    """A line for the loop, and one each for what comes when, and for how much room there is."""
    relay = f", relay {case.relay}" if case.relay else ""
    lines = [line for line in case_text(case) if not line.startswith("costs")]
    return [f"loop {case.loop}{relay}, on {case.device}", *lines]


def as_json(case: Case) -> dict[str, Any]:
    """The case as an object; what is as by default is left out, but for lengths and sizes."""
    workload, config = case.workload, case.workload.config
    return {
        "loop": case.loop,
        "relay": case.relay,
        "options": {name: plain(value) for name, value in case.options.items()},
        "requests": [request_json(request) for request in workload.requests],
        "arrivals": list(workload.arrivals),
        "aborts": {str(turn): rid for turn, rid in sorted(workload.aborts.items())},
        "eos_ids": sorted(workload.eos_ids),
        "sizes": {name: getattr(config, name) for name in ALWAYS}
        | {name: plain(value) for name, value in changed(config, SchedulerConfig()).items()},
    }


def request_json(request: Request) -> dict[str, Any]:
    """A request; ``limit`` is the most tokens that it produces."""
    wishes = changed(request.params, SamplingParams())
    return {
        "rid": request.rid,
        "prompt_len": len(request.prompt),
        "prompt": list(request.prompt),
        "limit": request.params.max_new_tokens,
        "priority": request.priority,
        "params": {k: plain(value) for k, value in wishes.items() if k != "max_new_tokens"},
    }


def plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


HOLDS = "every law holds"


class PagePart(NamedTuple):
    """One part of a page. ``kind`` is ``text``, ``list``, ``good``, ``bad``, ``picture``, ``diff``,
    ``links`` or ``code``; a list has an item a line.
    """

    heading: str
    kind: str
    body: str


def page(exhibit: Exhibit, command: str = "") -> list[PagePart]:
    """A bug from what somebody saw to how it was cured.

    ``command`` draws the picture; where it is told, it is told at the end.

    Raises:
        StalePatch: the healthy code has moved on.
    """
    parts = [
        PagePart("Symptom", "text", exhibit.symptom),
        PagePart("The smallest case", "list", "\n".join(in_words(exhibit.case))),
        verdict_part("With the bug", exhibit.with_bug(), exhibit.law),
        *own_law(exhibit),
        verdict_part("Without it, on the same requests", exhibit.healthy(), exhibit.law),
        PagePart("What happens", "text", exhibit.here),
        PagePart("The counterexample", "picture", ""),
        PagePart("The fix here", "diff", diff(exhibit.edits)),
        PagePart("How the original fixed it", "text", exhibit.cure),
        *as_there(exhibit),
        PagePart("Published", "links", "\n".join(exhibit.references)),
    ]
    return [*parts, PagePart("Draw it", "code", command)] if command else parts


def as_there(exhibit: Exhibit) -> list[PagePart]:
    """The original's fix put into the bug, where the code here is built otherwise."""
    if not exhibit.original_cure:
        return []
    lines = diff(exhibit.edits, cure=exhibit.original_cure)
    verdict = verdict_part("With the original's fix", exhibit.cured_as_there(), exhibit.law)
    return [PagePart("The original's fix, in the bug's place", "diff", lines), verdict]


def refuted_page(item: Refuted) -> list[PagePart]:
    """A suspicion, and what is true.

    Raises:
        StalePatch: the healthy code has moved on.
    """
    parts = [
        PagePart("What was thought", "text", item.suspicion),
        PagePart("The case that tries it", "list", "\n".join(in_words(item.case))),
        verdict_part("The verdict", item.verdict(), "identity"),
        PagePart("What is true", "text", item.truth),
    ]
    if item.edits:  # what it took to try it
        parts.insert(2, PagePart("Tried with this taken out", "diff", diff(item.edits)))
    return [*parts, PagePart("Published", "links", "\n".join(item.references))]


def own_law(exhibit: Exhibit) -> list[PagePart]:
    """That the law which catches a bug is none of the general ones, where it is so."""
    if exhibit.law in LAWS:
        return []
    said = (
        f"'{exhibit.law}' is a law of this exhibit alone: no general law is broken here, and "
        "minisched check does not hold this one against its workloads."
    )
    return [PagePart("A law of its own", "text", said)]


def verdict_part(heading: str, verdict: Verdict, law: str) -> PagePart:
    """What was found, the law that matters first; or that nothing was, if it could have been."""
    found = sorted(verdict.findings, key=lambda item: item.law != law)
    said = "\n".join(f"{item.law}: {plainly(item)}" for item in found)
    if not found and (lack := verdict.lacking(law)):
        return PagePart(heading, "text", f"nothing to judge: {lack}")
    return PagePart(heading, "bad" if found else "good", said or HOLDS)


# -- A part as Markdown, for the site --------------------------------------------------------------


def markdown(part: PagePart, shown: str) -> str:
    """One part of the site's page; ``shown`` is how it shows the picture."""
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
