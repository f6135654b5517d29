"""Models for a bench. One nobody has to fetch: ``small``, whose step takes some milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..models.base import Model
from ..models.registry import AUTO, open_model
from ..models.weights import write_tiny_llama

NAME = "small"  # what a bench calls it
SIZES: dict[str, Any] = {"vocab": 4096, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
         "intermediate": 1024, "context": 256}  # fmt: skip


@contextmanager
def opened(name: str, device: str, dtype: str = AUTO) -> Iterator[Model]:
    """The model of that name, which may be ``small``.

    Raises:
        ValueError: there is none, or not for this device.
    """
    if name != NAME:
        yield open_model(name, device, dtype)
        return
    with TemporaryDirectory() as folder:
        yield open_model(str(write_tiny_llama(Path(folder), **SIZES)), device, dtype)
