"""The museum: a page for each published bug, one for what was refuted, and an index by chapter."""

from __future__ import annotations

from itertools import groupby

from minisched.museum import Exhibit, exhibits, refuted
from minisched.museum.page import PagePart, markdown, page
from minisched.museum.picture import path_of

from .gallery import wall
from .pictures import picture

REFUTED = "museum/refuted.md"


def pages() -> dict[str, str]:
    """Every page of the museum, by its path."""
    return {
        "museum.md": index(),
        **{f"museum/{item.name}.md": exhibit_page(item) for item in exhibits()},
        REFUTED: REFUTED_HEAD + "\n".join(map(refuted_entry, refuted())),
    }


def index() -> str:
    """Every bug, small, by chapter; then what was refuted."""
    parts = [HEAD.format(count=len(exhibits()))]
    for chapter, items in groupby(exhibits(), lambda item: item.chapter):
        parts += [f"## {chapter[0].upper()}{chapter[1:]}\n", wall([card(item) for item in items])]
    parts += [f"## Refuted\n\n{REFUTED_HINT}\n"]
    parts += [f"- [{item.title}](museum/refuted.md#refuted-{item.name})" for item in refuted()]
    names = "\n".join([*(f"museum/{item.name}" for item in exhibits()), "museum/refuted"])
    return "\n".join([*parts, "", f":::{{toctree}}\n:hidden:\n\n{names}\n:::", ""])


def card(item: Exhibit) -> str:
    """A bug, small: its picture leads to its page."""
    target, shown = f"museum/{item.name}.md", picture(path_of(item), item.title, "")
    published = ", ".join(item.references[:2])
    return (
        f"::::{{container}} card crop bug\n[{shown}]({target})\n\n[{item.title}]({target})\\\n"
        f"*{published}*, caught by {item.law}\n::::\n"
    )


def exhibit_page(item: Exhibit) -> str:
    """One bug, from what somebody saw to how it was cured."""
    shown = picture(path_of(item), f"{item.title}: with the bug, and below it without", "../")
    return f"# {item.title}\n\n{laid_out(page(item), '##', shown)}"


def refuted_entry(item: Exhibit) -> str:
    """A suspicion, and what is true."""
    return f"(refuted-{item.name})=\n## {item.title}\n\n{laid_out(page(item), '###')}"


def laid_out(parts: list[PagePart], level: str, shown: str = "") -> str:
    """Parts under their headings."""
    return "\n".join(f"{level} {part.heading}\n\n{markdown(part, shown)}\n" for part in parts)


HEAD = """\
# Museum

{count} bugs that were published, each put back into this repository's code by a change of a few
lines. A law of `minisched check` catches each of them, on the smallest case that shows it, and the
healthy code passes every law on the same case. In a picture, the upper run has the bug, and what
did it is red; the lower one does not.

`minisched museum run NAME` shows one in a terminal, and `minisched museum run --all` tries all.
"""
REFUTED_HINT = "Suspicions that do not hold, and misdiagnoses, each tried on a case of its own:"
REFUTED_HEAD = """\
# Refuted

Bugs that were suspected or blamed and are not there: each is tried on a case, and no law is broken.

"""
