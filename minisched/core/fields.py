"""Fields that users set: the default and the help of a setting stand in the field itself."""

from __future__ import annotations

from dataclasses import field
from math import inf
from typing import Any

# -- A field that users set: its default and its help stand in one place ---------------------------


def setting(
    default: Any, help: str, *, shown: str | None = None, alias: str = "",
    least: float | None = None, most: float = inf,
) -> Any:  # fmt: skip
    """A dataclass's field that is also an option of the command line (``cli/options.py``).

    ``shown`` is the default in the help, if it is not ``default`` itself; empty: it differs from
    command to command. A ``default`` that can be called makes one. With a ``least``, an option on
    the command line must be at least that, and at most ``most``.
    """
    limits = None if least is None else (least, most)
    option = {"help": help, "shown": shown, "alias": alias, "limits": limits}
    if callable(default):
        return field(default_factory=default, hash=False, metadata=option)
    return field(default=default, metadata=option)
