"""Whether an event of a Chrome trace can be read; if not, a file is refused in a sentence."""

from __future__ import annotations

import json
import math
from typing import Any


class BadEvent(ValueError):
    """What is wrong, in a few words that begin with the place: ``traceEvents[3] has ...``."""


def check_span(event: dict[str, Any], index: int) -> None:
    """Look at an ``X`` event: a beginning, a duration that is not negative, and arguments.

    Raises:
        BadEvent: one of them is missing or is something else.
    """
    for name, least in (("ts", -math.inf), ("dur", 0)):
        value: Any = event.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (math.isfinite(value) and value >= least):
            what = "a number" if name == "ts" else "a number of microseconds from 0"
            raise BadEvent(_said(event, index, name, what))
    if not isinstance(event.get("args") or {}, dict):
        raise BadEvent(_said(event, index, "args", "an object"))


def _said(event: dict[str, Any], index: int, name: str, what: str) -> str:
    if name not in event:
        return f"traceEvents[{index}] lacks {name!r}"
    shown = json.dumps(event[name])[:60]
    return f"traceEvents[{index}] has {name} = {shown}, but it must be {what}"
