"""``minisched models``: the architectures that were tried, with the class of each."""

from __future__ import annotations

from itertools import groupby

from ..models.tried import LIBRARIES, read_tried
from .layout import JSON, print_json, say, say_table

CAPTION = """\
exact: no logit moves with the batch. margin: logits move by roundings. refused: it does not run.
Measured on small random checkpoints in float32. A checkpoint is measured when it is opened."""


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
