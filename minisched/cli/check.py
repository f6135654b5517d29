"""``minisched check``: recorded runs, or random workloads where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .check_workloads import Wanted, check_workloads


def run_check(
    traces: Sequence[Path], wanted: Wanted, draw: Path | None, as_json_only: bool, step: str = ""
) -> int:
    """The exit code: 0 if everything held, 1 if not.

    Raises:
        ValueError: an option is bad, or a file can't be read; nothing has run then.
    """
    if not traces:
        if draw is not None:
            raise ValueError(
                "--draw is about recorded runs, but none is named; --out draws what breaks a law."
            )
        if step:
            raise ValueError("--step is about recorded runs, but none is named.")
        return check_workloads(wanted, as_json_only)
    if asked := wanted.options_given():
        raise ValueError(
            f"{asked[0]} draws workloads, but {traces[0]} is a recorded run: one or the other."
        )
    from .check_traces import check_traces

    return check_traces(traces, draw, as_json_only, step)
