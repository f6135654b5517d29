"""What the designs wait for, and the time that they lose with it: counted in runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .markdown import table
from .units import ms
from .wait_runs import refusal, run_with, run_without, time_lost, waits_for

ABOUT = """\
## What each one waits for

Four requests with 24 tokens each; the first one has the grammar or the penalties, and with
speculation all of them carry three drafts a step. Each wait is a mark in the trace, and the time
lost is read off the device's intervals: a wait is charged the whole gap before the op that had to
wait, and what no wait explains is `host`: the device waited for the host's ordinary work. Behind a
device twice as fast less can be hidden. No run here waits for `speculation`: that arises on CUDA
and MLX only, where the host builds the ops and must know how many drafts were accepted; on `sim`
the device reads the lengths itself."""
HEADS = ("loop", "what waits for what", "time lost by reason", "whole run", "without it",
         "time lost on a device twice as fast", "whole run", "without it")  # fmt: skip
TITLES = {
    "grammar": "A grammar",
    "penalties": "Penalties (here they wait, also where the original's are late or ignored)",
    "late penalties": "Penalties that do without the newest token",
    "NGRAM": "Speculation: prompt lookup on the host (`NGRAM`)",
    "NGRAM_GPU": "Speculation: prompt lookup on the device (`NGRAM_GPU`)",
    "STANDALONE": "Speculation: a draft model (`STANDALONE`)",
    "grammar with speculation": "A draft model, and a grammar",
}


def what_waits(names: Mapping[str, str]) -> Iterator[str]:
    """The section's lines; ``names`` are the loops, and how each is written."""
    yield ABOUT
    for feature, title in TITLES.items():
        yield f"\n### {title}\n"
        yield table(HEADS, [row_of(loop, name, feature) for loop, name in names.items()])


def row_of(loop: str, name: str, feature: str) -> Sequence[str]:
    """One loop's line; a loop that does not do this says why."""
    if reason := refusal(loop, feature):
        return [name, f"refused: {reason}", *[""] * (len(HEADS) - 2)]
    cells = [name, waits_for(run_with(loop, feature))]
    for cost in ("usual", "fast"):
        trace, without = run_with(loop, feature, cost), run_without(loop, feature, cost)
        cells += [time_lost(trace), f"{ms(trace.end)} ms", f"{ms(without.end)} ms"]
    return cells
