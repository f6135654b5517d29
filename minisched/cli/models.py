"""``minisched models``: the architectures that were tried, with the class of each.

The table is measured on small random checkpoints, by a script of the tests. A checkpoint of your
own is measured when it is opened (``models/promise.py``).
"""

from __future__ import annotations

import tomllib
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .layout import JSON, print_json, say, say_table

FILE = Path(__file__).with_name("tried.toml")
LIBRARIES = {"transformers": "thread, cuda", "mlx-lm": "mlx"}  # library -> its devices
CAPTION = """\
exact: no logit moves with the batch. margin: logits move by roundings. refused: it does not run.
Measured on small random checkpoints in float32. A checkpoint is measured when it is opened."""


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


def models(json: bool = JSON) -> None:
    """Print which architectures run with transformers (thread, cuda) and with mlx-lm (mlx)."""
    found, measured_on = read_tried()
    if json:
        print_json({"measured_on": measured_on, "models": [each._asdict() for each in found]})
        return
    by_name = sorted(found, key=lambda each: each.architecture)
    rows = [
        (name, *(each.kind for each in both))
        for name, both in groupby(by_name, lambda each: each.architecture)
    ]
    heads = [f"{library} ({devices})" for library, devices in LIBRARIES.items()]
    say_table(("architecture", *heads), rows, CAPTION)
    say()
    for each in found:
        if each.reason:
            say(f"{each.library}: {each.reason}")
