"""This project's own generation on torch (``own.py``)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .own import generation
from .serve import Answer, serve

LOOP = "serial"  # nothing here is for the host to do, so every core is torch's


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Load the model in ``folder`` in ``dtype``, for so many ``threads`` of torch."""
    run_loop = import_module("minisched.loops.run").run_loop
    device_of = import_module("minisched.devices.thread").ThreadDevice
    llama_of = import_module("minisched.models.llama_torch").LlamaTorch
    model = llama_of(settings["folder"], settings["dtype"])

    def run(*load: Any, **options: Any) -> Any:
        """On a device of its own each time: a run closes it."""
        device = device_of(torch_threads=settings["threads"])
        return run_loop(LOOP, device, model, *load, **options)

    return generation(run)


if __name__ == "__main__":
    serve(start)
