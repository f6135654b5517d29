"""Every picture of the repository, and its Markdown."""

from __future__ import annotations

from pathlib import Path

from .repository import ROOT, text


def files() -> dict[str, Path]:
    """Return all pictures by path; pages use the paths of the README."""
    found = [*ROOT.glob("diagrams/*.svg"), *ROOT.glob("traces/**/*.svg")]
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(found)}


def picture(path: str, words: str, to_root: str) -> str:
    """Return a picture's Markdown; a picture without a dark variant gets a class for its style."""
    mark = "" if "prefers-color-scheme" in text(path) else "{.on-white}"
    return f"![{words}]({to_root}{path}){mark}"
