"""The architectures that were tried on a page table, with the class of each (``promise.py``).

The table is measured on small random checkpoints, by a script of the tests. A checkpoint of your
own is measured when it is opened.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("tried.toml")
LIBRARIES = {"transformers": "thread, cuda", "mlx-lm": "mlx"}  # library -> its devices


class TriedArchitecture(NamedTuple):
    """An architecture with one library."""

    architecture: str  # ``model_type`` of config.json
    library: str
    kind: str  # exact, margin or refused
    reason: str  # of a refusal


def read_tried() -> tuple[list[TriedArchitecture], dict[str, str]]:
    """Return all entries by library, and the versions with which they were measured."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found = []
    for library in LIBRARIES:
        for architecture, text in content[library].items():
            kind, _, reason = text.partition(": ")
            found.append(TriedArchitecture(architecture, library, kind, reason))
    return found, content["measured_on"]
