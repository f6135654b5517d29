"""What ``compare --json`` prints."""

from __future__ import annotations

from typing import Any

from ..checks.drafts import count_drafts
from ..comparison import Comparison
from ..export.pd_or_mixed import find_runs, rows
from ..loops.run import Run
from .logprobs import logprobs_json

JSON_FIELDS = (
    "loop", "steps", "tokens", "makespan_ns", "device_busy_ns", "host_busy_ns", "host_hidden_ns",
    "bubble_ns", "wasted_rows",
)  # fmt: skip


def comparison_json(comparison: Comparison, files: list[str], with_outputs: bool) -> dict[str, Any]:
    """The object; times are integer nanoseconds."""
    trace, lost = comparison.runs[0].trace, comparison.lost_ns
    result: dict[str, Any] = {
        "identical": comparison.identical,
        "device": trace.device,
        "model": trace.model,
        "dtype": trace.dtype,
        "clock": trace.clock,
        "runs": [
            {name: getattr(report, name) for name in JSON_FIELDS}
            | {"lost_ns": lost[report.loop]}
            | drafts_as_json(run)
            for run, report in zip(comparison.runs, comparison.reports, strict=True)
        ],
        "speedup": comparison.speedup,
        "ideal": comparison.ideal,
        "files": files,
        "differences": [vars(item) for item in comparison.differences],
        "errors": comparison.errors,
    }
    if pair := find_runs(comparison.runs):
        result["pd_or_mixed"] = [list(row) for row in rows(*pair)]
    if comparison.logprob_difference is not None:
        result["logprob_difference"] = comparison.logprob_difference
    if with_outputs:
        result["outputs"] = comparison.runs[0].outputs
        if comparison.logprob_difference is not None:
            result["logprobs"] = logprobs_json(comparison.runs[0].requests)
    return result


def drafts_as_json(run: Run) -> dict[str, dict[str, int]]:
    """How many drafts were proposed and accepted, if there were any."""
    drafts = count_drafts(run.trace)
    if drafts is None:
        return {}
    return {"drafts": {"proposed": drafts.proposed, "accepted": drafts.accepted}}
