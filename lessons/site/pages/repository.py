"""Paths of the repository, and the texts that several pages read."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / "lessons" / "site"


def docstring(path: str) -> str:
    """Return the docstring of a module, by its path; empty if it has none."""
    return ast.get_docstring(ast.parse(text(path))) or ""


def text(path: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def github() -> str:
    """Return ``OWNER/NAME`` on GitHub; its branch ``gh-pages`` has the built site. May be empty.

    It comes from pyproject's ``tool.minisched.repository``, or from ``MINISCHED_GITHUB`` in a fork.
    """
    address: str = tomllib.loads(text("pyproject.toml"))["tool"]["minisched"]["repository"]
    _, _, name = address.rstrip("/").partition("https://github.com/")
    return os.environ.get("MINISCHED_GITHUB", "") or name


def in_markdown(docstring_text: str) -> str:
    """Return a docstring's plain text with ``literals`` as Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", docstring_text)


def fenced(code: str, language: str) -> str:
    """Return a block of code, with a fence longer than any in it."""
    fence = max(["```", *(run + "`" for run in re.findall(r"`{3,}", code))], key=len)
    return f"{fence}{language}\n{code.rstrip()}\n{fence}"


def folded(title: str, code: str, language: str) -> str:
    """Return a block of code that opens when its title is clicked."""
    return f"<details><summary>{title}</summary>\n\n{fenced(code, language)}\n\n</details>"
