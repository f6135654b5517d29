"""Every picture of the repository, and how a page shows one."""

from __future__ import annotations

from pathlib import Path

from .repository import ROOT, text


def files() -> dict[str, Path]:
    """All of them, by path: pages name them as the README does."""
    found = [*ROOT.glob("diagrams/*.svg"), *ROOT.glob("traces/**/*.svg")]
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(found)}


def picture(path: str, words: str, to_root: str) -> str:
    """Markdown for a picture; one that knows no dark paper is marked, so that a style can help."""
    mark = "" if "prefers-color-scheme" in text(path) else "{.on-white}"
    return f"![{words}]({to_root}{path}){mark}"
