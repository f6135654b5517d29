"""A field that users set: its default and its help stand in one place."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, help: str, *, shown: str | None = None, alias: str = "") -> Any:
    """A dataclass's field that is also an option of the command line (``cli/options.py``).

    ``shown`` is what the help names as the default, where that is not ``default`` itself; empty: it
    differs from command to command. A ``default`` that can be called makes one.
    """
    option = {"help": help, "shown": shown, "alias": alias}
    if callable(default):
        return field(default_factory=default, hash=False, metadata=option)
    return field(default=default, metadata=option)
