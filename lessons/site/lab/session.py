"""The functions of Python for the page: text in, text out. The last experiment is kept for saving."""

from __future__ import annotations

import json
from typing import Any

from experiment import Settings, loop_names, run
from report import chosen, report

from minisched.comparison import Comparison
from minisched.export.html import to_html
from minisched.trace.native import to_json

latest: dict[str, Any] = {}


def loops(_: str = "") -> str:
    """Return the names of the loops, as a JSON list."""
    return json.dumps(loop_names())


def experiment(asked: str) -> str:
    """Run the settings in a JSON object; its ``whole`` draws whole runs.

    Raises:
        ValueError: a loop refuses the workload; the message has the reason.
    """
    wanted = json.loads(asked)
    whole = wanted.pop("whole")
    settings = Settings(**{**wanted, "loops": tuple(wanted["loops"])})
    latest["settings"], latest["found"] = settings, run(settings)
    return json.dumps(report(settings, latest["found"], whole))


def trace(which: str) -> str:
    """Return the trace of the first or second loop (``0``, ``1``) in minisched's format."""
    runs = chosen(latest["settings"], latest["found"])
    return to_json(runs[min(int(which), len(runs) - 1)].trace)


def stepper(_: str = "") -> str:
    """Return the page that steps through both runs."""
    found: Comparison = latest["found"]
    return to_html([run.trace for run in chosen(latest["settings"], found)])
