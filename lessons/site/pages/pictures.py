"""Every picture of the repository, and its Markdown."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from minisched.export import golden
from minisched.museum.picture import museum_makers

from .repository import ROOT, text


def files() -> dict[str, str | Path]:
    """Return all pictures by path; pages use the paths of the README.

    The repository keeps some of them as their hash alone; they are drawn here.
    """
    found = [*ROOT.glob("diagrams/*.svg"), *ROOT.glob("traces/**/*.svg")]
    kept = {path.relative_to(ROOT).as_posix(): path for path in sorted(found)}
    return {**kept, **drawn()}


@cache
def drawn() -> dict[str, str]:
    """Draw the pictures of which the repository keeps only the hash, by path."""
    paths = [path for path in golden.hashes(ROOT) if path.endswith(".svg")]
    makers, made = {**golden.makers(), **museum_makers()}, dict[str, str]()
    for name in {golden.maker_of(path) for path in paths}:
        made |= makers[name]()
    return {path: made[path] for path in paths}


def picture(path: str, words: str, to_root: str) -> str:
    """Return a picture's Markdown; a picture without a dark variant gets a class for its style."""
    drawing = drawn().get(path) or text(path)
    mark = "" if "prefers-color-scheme" in drawing else "{.on-white}"
    return f"![{words}]({to_root}{path}){mark}"
