"""``minisched fetch``: bring weights here, and say how large they are and where they went."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from ..devices.registry import load


def fetch(name: Annotated[str, typer.Argument(help="The model; smollm2 is the one.")]) -> None:
    """Bring a small language model's weights here, once."""
    fetch = load("minisched.models.fetch", "fetch", "torch", "fetch")
    console = Console(stderr=True, highlight=False)
    with console.status(f"fetching {name}") as status:
        folder = fetch(name, report=status.update)
    size = load("minisched.models.fetch", "size_bytes", "torch", "fetch")(folder)
    Console(highlight=False, soft_wrap=True).print(
        f"{name} is in {folder} and takes {size / 1e6:.0f} MB; use it with --model {name}."
    )
