"""The runs behind golden traces and diagrams, a module for each family of designs.

A module has ``RECIPES`` (topic -> ``Recipe``) and may have ``TITLES`` (topic -> the title under
which the run is drawn as ``diagrams/TOPIC.puml`` and ``diagrams/TOPIC_sequence.puml``).
"""

from __future__ import annotations

from functools import cache

from ...trace import Trace
from ..families import merged
from .recipe import Recipe

__all__ = ["Recipe", "recipes", "titles", "trace_of"]


def recipes() -> dict[str, Recipe]:
    """Every golden run, by topic."""
    return merged(__name__, "RECIPES")


def titles() -> dict[str, str]:
    """The titles of the runs that are drawn as they are, by topic."""
    return merged(__name__, "TITLES")


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic, made once: several pictures may show it."""
    return recipes()[topic].run()
