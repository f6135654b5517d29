"""This project's own generation on MLX (``own.py``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from .own import generation
from .serve import Answer, serve

LOOP = "mlx_async"


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Load the model in ``folder``."""
    model = import_module("minisched.models.registry").open_model(settings["folder"], "mlx")
    return generation(partial(import_module("minisched.loops.run").run_to_end, LOOP, "mlx", model))


if __name__ == "__main__":
    serve(start)
