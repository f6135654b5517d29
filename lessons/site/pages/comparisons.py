"""The written comparisons of ``diagrams/``, with figures from runs."""

from __future__ import annotations

from pathlib import Path

from .links import as_in_the_site
from .repository import ROOT


def pages() -> dict[str, str]:
    """Return every ``diagrams/*.md`` under its own path, and the list of them."""
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.glob("diagrams/*.md"))
    }
    names = "\n".join(Path(path).stem for path in texts)
    listed = "\n".join(f"- [{title_of(it)}]({Path(path).name})" for path, it in texts.items())
    head = f"# Comparisons\n\n{listed}\n\n:::{{toctree}}\n:hidden:\n\n{names}\n:::\n"
    return {
        **{path: as_in_the_site(text, "diagrams/") for path, text in texts.items()},
        "diagrams/index.md": head,
    }


def title_of(text: str) -> str:
    """Return the first heading of a text."""
    return text.split("\n", 1)[0].removeprefix("# ")
