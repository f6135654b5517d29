"""The runs behind golden traces and diagrams: each module has ``RECIPES``, topic -> ``Recipe``."""

from __future__ import annotations

from functools import cache

from ...trace import Trace
from ..families import merged
from .recipe import Recipe

__all__ = ["Recipe", "recipes", "trace_of"]


def recipes() -> dict[str, Recipe]:
    """Every golden run, by topic."""
    return merged(__name__, "RECIPES")


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic, made once: several pictures may show it."""
    return recipes()[topic].run()
