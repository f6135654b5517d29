"""The museum: a page for each published bug, one for refuted bugs, and an index by chapter."""

from __future__ import annotations

from itertools import groupby

from minisched.museum import Exhibit, exhibits, refuted
from minisched.museum.page import PagePart, markdown, page
from minisched.museum.picture import path_of

from .gallery import wall
from .pictures import picture

REFUTED = "museum/refuted.md"


def pages() -> dict[str, str]:
    """Return every page of the museum by its path."""
    return {
        "museum.md": index(),
        **{f"museum/{item.name}.md": exhibit_page(item) for item in exhibits()},
        REFUTED: REFUTED_HEAD + "\n".join(map(refuted_entry, refuted())),
    }


def index() -> str:
    """Return the index: every bug by chapter, then the refuted ones."""
    parts = [HEAD.format(count=len(exhibits()))]
    for chapter, items in groupby(exhibits(), lambda item: item.chapter):
        parts += [f"## {chapter[0].upper()}{chapter[1:]}\n", wall([card(item) for item in items])]
    parts += [f"## Refuted\n\n{REFUTED_HINT}\n"]
    parts += [f"- [{item.title}](museum/refuted.md#refuted-{item.name})" for item in refuted()]
    names = "\n".join([*(f"museum/{item.name}" for item in exhibits()), "museum/refuted"])
    return "\n".join([*parts, "", f":::{{toctree}}\n:hidden:\n\n{names}\n:::", ""])


def card(item: Exhibit) -> str:
    """Return a bug's card: its picture links to its page."""
    target, shown = f"museum/{item.name}.md", picture(path_of(item), item.title, "")
    published = ", ".join(item.references[:2])
    return (
        f"::::{{container}} card crop bug\n[{shown}]({target})\n\n[{item.title}]({target})\\\n"
        f"*{published}*, caught by {item.law}\n::::\n"
    )


def exhibit_page(item: Exhibit) -> str:
    """Return the page of a bug, from the symptom to the fix."""
    shown = picture(path_of(item), f"{item.title}: with the bug, and below it without", "../")
    return f"# {item.title}\n\n{laid_out(page(item), '##', shown)}"


def refuted_entry(item: Exhibit) -> str:
    """Return a suspicion, with the facts."""
    return f"(refuted-{item.name})=\n## {item.title}\n\n{laid_out(page(item), '###')}"


def laid_out(parts: list[PagePart], level: str, shown: str = "") -> str:
    """Join parts under their headings."""
    return "\n".join(f"{level} {part.heading}\n\n{markdown(part, shown)}\n" for part in parts)


HEAD = """\
# Museum

{count} bugs that were published, each put back into this repository's code by a change of a few
lines. A law of `minisched check` catches each of them, on the smallest case that shows it, and the
healthy code passes every law on the same case. In a picture, the upper run has the bug, with the
cause in red. The lower run is healthy.

`minisched museum run NAME` shows one in a terminal, and `minisched museum run --all` runs all.
"""
REFUTED_HINT = "Suspicions that do not hold, and misdiagnoses, each tested on a case of its own:"
REFUTED_HEAD = """\
# Refuted

Bugs that were suspected but do not exist: each has a case on which no law is broken.

"""
