"""The runs behind golden traces and diagrams, a module for each family of designs.

A module has ``RECIPES`` (topic -> ``Recipe``) and may have ``TITLES`` (topic -> the title under
which the run is drawn as ``diagrams/TOPIC.puml`` and ``diagrams/TOPIC_sequence.puml``).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ...trace import Trace
from .recipe import Recipe

__all__ = ["Recipe", "recipes", "titles", "trace_of"]


def recipes() -> dict[str, Recipe]:
    """Every golden run, by topic."""
    return _merged("RECIPES")


def titles() -> dict[str, str]:
    """The titles of the runs that are drawn as they are, by topic."""
    return _merged("TITLES")


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic, made once: several pictures may show it."""
    return recipes()[topic].run()


def _merged(name: str) -> dict[str, Any]:
    """What the modules of this package have under a name, in one table."""
    modules = (import_module(f".{item.name}", __name__) for item in iter_modules(__path__))
    return {key: value for module in modules for key, value in getattr(module, name, {}).items()}
