"""``minisched doctor``: what works on this machine, and what would make the rest work."""

from __future__ import annotations

import json
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from ..devices.registry import DEVICES, open_device
from ..models.registry import HASH, LLAMA, open_model


def run_doctor(as_json_only: bool) -> None:
    """Try every device, model and renderer, and report."""
    findings = {
        "devices": {name: trouble(lambda name=name: open_device(name).close()) for name in DEVICES},
        "models": models(),
        "renderers": {"plantuml": trouble(find_renderer), "png": trouble(import_matplotlib)},
    }
    if as_json_only:
        print(json.dumps(findings))
        return
    table = Table()
    for column in ("kind", "name", "works", "what it needs"):
        table.add_column(column)
    for kind, names in findings.items():
        for name, problem in names.items():
            table.add_row(kind, name, "no" if problem else "yes", problem)
    Console().print(table)
