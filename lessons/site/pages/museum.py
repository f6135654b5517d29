"""The museum: published bugs, each with its symptom, a picture, and the test that sees it."""

from __future__ import annotations

import ast

from .exhibits import EXHIBITS, Exhibit
from .pictures import picture
from .repository import folded, text


def pages() -> dict[str, str]:
    """One page with every exhibit."""
    return {"museum.md": HEAD + "\n".join(map(entry, EXHIBITS))}


def entry(exhibit: Exhibit) -> str:
    """One bug, and the source of the test that turns red without its cure."""
    path, function = exhibit.test.split("::")
    return f"""\
({exhibit.name})=
## {exhibit.title}

{exhibit.symptom} *{exhibit.published}*

{exhibit.here}

{picture(exhibit.picture, exhibit.shows, "")}
*{exhibit.shows}*

The law that catches it: **{exhibit.law}**.

{folded(f"{function} in <code>{path}</code>", source_of(path, function), "python")}
"""


def source_of(path: str, function: str) -> str:
    """A function's source, decorators and all.

    Raises:
        LookupError: the file has no such function.
    """
    source = text(path)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise LookupError(f"{path} has no function {function!r}, which the museum names.")


HEAD = """\
# Museum

Bugs that were published, put back by a small patch or an option: each changes what a run does, and
a law of the test suite sees it. The test, or the patch that it puts in, is shown below each. A
picture is a run with the bug where it says so, and else the healthy mechanism that the bug breaks.

"""
