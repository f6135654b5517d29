"""What the museum has: every module of ``bugs`` brings one exhibit, or one refuted suspicion."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache

from . import bugs
from .exhibit import CHAPTERS, Exhibit, Refuted


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """The published bugs, in the order of the chapters, within a chapter by name."""
    found = [item for item in everything() if isinstance(item, Exhibit)]
    return tuple(sorted(found, key=lambda item: (CHAPTERS.index(item.chapter), item.name)))


@cache
def refuted() -> tuple[Refuted, ...]:
    """The suspicions that do not hold, and the misdiagnoses, by name."""
    found = [item for item in everything() if isinstance(item, Refuted)]
    return tuple(sorted(found, key=lambda item: item.name))


def find(name: str) -> Exhibit | Refuted:
    """What has this name.

    Raises:
        ValueError: nothing has.
    """
    known = {item.name: item for item in everything()}
    if name in known:
        return known[name]
    folded = name.casefold()
    alike = [other for other in known if name and (folded in other or other in folded)]
    alike = alike or get_close_matches(folded, known, n=3, cutoff=0.4)
    near = f"did you mean {', '.join(alike[:3])}?" if alike else "`museum list` names them all."
    raise ValueError(f"the museum has no {name!r}; {near}")


def everything() -> list[Exhibit | Refuted]:
    """What each module of ``bugs`` has under ``EXHIBIT`` or ``REFUTED``."""
    found: list[Exhibit | Refuted] = []
    for module in pkgutil.iter_modules(bugs.__path__):
        loaded = vars(importlib.import_module(f"{bugs.__name__}.{module.name}"))
        found += [loaded[name] for name in ("EXHIBIT", "REFUTED") if name in loaded]
    return found
