"""What the modules of a package say together: each has a part of a table under the same name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def merged(package: str, table: str) -> dict[str, Any]:
    """The tables named ``table`` of all modules of a package as one; a module may lack it."""
    path = import_module(package).__path__
    modules = (import_module(f"{package}.{item.name}") for item in iter_modules(path))
    return {key: value for module in modules for key, value in getattr(module, table, {}).items()}
