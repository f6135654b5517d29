"""Names of functions in a diagram as links to their code.

``[[../minisched/engine/engine.py#Engine.chain chain()]]``: the file as it lies from ``diagrams/``,
so that a code host and a browser find it, then the function. The function itself is given, and
never its path, so that a link cannot outlive what it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Code = Mapping[str, Callable[..., Any]]  # a name in a diagram -> what of the package it means

LINK_COLOUR = "#0B57A4"
LINK_STYLE = (f"skinparam hyperlinkColor {LINK_COLOUR}", "skinparam hyperlinkUnderline false")


def address(function: Callable[..., Any]) -> str:
    """Where a function or a class of the package stands, seen from ``diagrams/``."""
    path = function.__module__.replace(".", "/")
    return f"../{path}.py#{function.__qualname__}"


def linked(text: str, code: Code) -> str:
    """PlantUML text in which every name of ``code`` is a link, with the ``()`` behind it if any."""
    if not code:
        return text
    names = "|".join(map(re.escape, sorted(code, key=len, reverse=True)))
    return re.sub(rf"\b({names})\b(\(\))?", lambda found: _link(found, code), text)


def _link(found: re.Match[str], code: Code) -> str:
    return f"[[{address(code[found[1]])} {found[0]}]]"
