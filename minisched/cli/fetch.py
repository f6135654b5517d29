"""``minisched fetch``: bring weights here, and say how large they are and where they went."""

from __future__ import annotations

import typer

from ..devices.registry import load
from .layout import work_progress


def fetch(name: str = typer.Argument(help="The model; smollm2 is the one.")) -> None:
    """Bring a small language model's weights here, once."""
    bring = load("minisched.models.fetch", "fetch", "torch", "fetch")
    with work_progress() as work:
        folder = bring(name, report=work.at)
    size = load("minisched.models.fetch", "size_bytes", "torch", "fetch")(folder)
    print(f"{name} is in {folder} and takes {size / 1e6:.0f} MB; use it with --model {name}.")
