"""The page's report of an experiment: figures, sentences and the picture, as plain data."""

from __future__ import annotations

from typing import Any

from experiment import Settings, settled_step

from minisched.checks.causes import ARRIVAL, HOST
from minisched.checks.overlap import OverlapReport
from minisched.comparison import Comparison
from minisched.devices.cost import MILLISECOND
from minisched.export.runs import compare
from minisched.export.scene_svg import to_svg
from minisched.loops.run import Run


def report(settings: Settings, comparison: Comparison, whole: bool) -> dict[str, Any]:
    """Return all data of the page; ``whole`` draws whole runs, otherwise a few steps."""
    traces = [run.trace for run in chosen(settings, comparison)]
    return {
        "rows": [row(comparison, item) for item in comparison.reports],
        "identical": comparison.identical,
        "verdict": verdict(comparison),
        "lost": [lost(comparison, run.loop) for run in comparison.runs],
        "ideal": comparison.ideal,
        "settled": settled(settings),
        "svg": to_svg(compare(traces, 0 if whole else 3)),
        "errors": list(comparison.errors.values())[:1],
    }


def chosen(settings: Settings, comparison: Comparison) -> list[Run]:
    """Return the runs of the two loops in their order; one run if the loops are equal."""
    runs = {run.loop: run for run in comparison.runs}
    return [runs[loop] for loop in dict.fromkeys(settings.loops)]


def row(comparison: Comparison, item: OverlapReport) -> dict[str, Any]:
    """Return one line of the table; the makespan in nanoseconds, unrounded."""
    return {
        "loop": item.loop,
        "steps": item.steps,
        "tokens": item.tokens,
        "makespan": item.makespan_ns,
        "busy": item.device_busy_percent,
        "hidden": item.host_hidden_percent,
        "wasted": item.wasted_rows,
        "speedup": comparison.speedup[item.loop],
    }


def verdict(comparison: Comparison) -> str:
    """Return one sentence: the tokens are identical, or the first differences."""
    if not comparison.identical:
        return "Not identical. " + ". ".join(map(str, comparison.differences)) + "."
    others = [run.loop for run in comparison.runs[1:]]
    if not others:
        return "Only serial ran, so there is nothing to compare."
    return f"Identical tokens: {' and '.join(others)} gave every request what serial gave it."


def lost(comparison: Comparison, loop: str) -> str:
    """Return the device's idle time in the middle of a run, with its causes."""
    words = {HOST: "for the host's ordinary work", ARRIVAL: "without a request to serve"}
    reasons = comparison.lost_ns[loop]
    parts = [
        f"{time / MILLISECOND:.1f} ms {words.get(why, f'in waits for {why}')}"
        for why, time in reasons.items()
        if time
    ]
    free = [why for why in comparison.num_waits[loop] if not reasons[why]]
    sentence = f"{loop}: the device stood still {' and '.join(parts)}."
    if not parts:
        sentence = f"{loop}: the device never stood still."
    if free:
        sentence += f" Waits for {' and '.join(free)} cost nothing: it had other work meanwhile."
    return sentence


def settled(settings: Settings) -> str:
    """Return the length of a step once the run has settled, from the costs alone."""
    one, two = settled_step(settings)
    rows = f"{settings.requests} row{'s' * (settings.requests > 1)}"
    masks = "" if settings.needs == "nothing" else ", without its masks,"
    return (
        f"By the costs alone, a settled step of {rows}{masks} takes {one:.2f} ms with one step in "
        f"flight (device + host + copy) and {two:.2f} ms with two (the longest of the three, or "
        "half of their sum)."
    )
