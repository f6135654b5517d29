"""A loop's source, for pictures that show where in it a run is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .design import find_loop, first_line
from .pd import pd_decode, pd_prefill


@dataclass(frozen=True)
class LoopSource:
    """A loop's source: where it is, and its lines; a trace's ``line`` counts from the first."""

    name: str  # the function's
    path: str  # from the repository's root
    first_line: int  # the line of its ``def``, counted from 1
    lines: tuple[str, ...]


def source_of(loop: str) -> dict[str, LoopSource]:
    """The source of a loop by the host lane that runs it: ``host``, or one of each side of ``pd``.

    Raises:
        ValueError: there is no loop of that name.
    """
    spec = find_loop(loop)
    if spec.whole_run is not None:
        return {"prefill host": _read(pd_prefill), "decode host": _read(pd_decode)}
    return {"host": _read(spec.run)}


def _read(run: Callable[..., Any]) -> LoopSource:
    lines, begin = inspect.getsourcelines(run)
    first = first_line(run.__code__)
    module, texts = run.__module__.replace(".", "/"), tuple(x.rstrip() for x in lines)
    return LoopSource(run.__name__, f"{module}.py", first, texts[first - begin :])
