"""How long a busy thread may keep the interpreter: the least that any open device wants."""

from __future__ import annotations

import sys

_wanted: list[float] = []  # seconds: what Python had before, then each open device's


def want(seconds: float) -> None:
    """Let threads switch at least that often until it is given back."""
    if not _wanted:
        _wanted.append(sys.getswitchinterval())
    _wanted.append(seconds)
    sys.setswitchinterval(min(_wanted))


def give_back(seconds: float) -> None:
    """A device that wanted this is closed; after the last one it is as before."""
    _wanted.remove(seconds)
    sys.setswitchinterval(min(_wanted))
    if len(_wanted) == 1:
        _wanted.clear()
