"""The pages of the site: generators of Markdown and files, one module for each kind of page.

A page's path is where Sphinx finds it, and mirrors the repository, so that the README's relative
links work in the site too.
"""

from __future__ import annotations

from pathlib import Path

from . import comparisons, gallery, home, lab, lessons, museum, pictures, reference, steppers

MODULES = (home, lessons, lab, steppers, gallery, museum, comparisons, reference)


def sources() -> dict[str, str | Path]:
    """Return all input of Sphinx by path: generated texts, and files of the repository."""
    found: dict[str, str | Path] = {**pictures.files(), **lessons.files()}
    for module in MODULES:
        found |= module.pages()
    return found


def lay_out(folder: Path) -> None:
    """Write all sources; an unchanged file keeps its time, so that Sphinx skips it."""
    wanted = sources()
    for name, source in wanted.items():
        target = folder / name
        content = source.read_bytes() if isinstance(source, Path) else source.encode()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()


def add_pages_of_their_own(out: Path) -> bool:
    """Write the pages without Sphinx; return whether Python for the browser is among them."""
    steppers.write(out)
    lessons.write(out)
    if has_lab := lab.has_python():
        lab.write(out)
    return has_lab
