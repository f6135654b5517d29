"""``minisched fetch``: fetches weights, and prints their folder and size."""

from __future__ import annotations

import typer

from ..models.fetch import fetch as fetch_model
from .layout import work_progress


def fetch(name: str = typer.Argument(help="The model; smollm2 is the one.")) -> None:
    """Fetch a small language model's weights, once. Needs the extra torch."""
    with work_progress() as work:
        folder = fetch_model(name, report=work.at)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name} is in {folder} and takes {size / 1e6:.0f} MB; use it with --model {name}.")
