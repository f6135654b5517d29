"""PD separation compared with mixed chunks: a table from two runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from ..checks.history import many
from ..checks.overlap import measure, union, within
from ..core import Request
from ..engine.metrics import Percentiles
from ..loops.run import Run
from ..recipes import Recipe
from ..scheduler import SchedulerConfig
from ..trace import Slice, Trace
from .units import ms

LOOPS = ("pd", "mixed")
NO_PAUSE = "no request decoded then"
ROOMY = SchedulerConfig(kv_tokens=8192)


def both(requests: Sequence[Request], **link: Any) -> tuple[Run, Run]:
    """Run both loops on one workload; ``link`` are the options of ``pd``."""
    pd = Recipe("pd", requests, ROOMY, options=link)
    return pd.play(), Recipe("mixed", requests, ROOMY).play()


def find_runs(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """Return the runs of pd and of mixed, or None if one is missing."""
    by_loop = {run.loop.partition(":")[0]: run for run in runs}
    return (by_loop["pd"], by_loop["mixed"]) if set(LOOPS) <= by_loop.keys() else None


# -- The table: figures counted in each run, and words for the rest --------------------------------


def rows(pd: Run, mixed: Run) -> list[tuple[str, str, str]]:
    """Return the rows of the table: the subject, pd, mixed."""
    of_pd, of_mixed = figures_of(pd), figures_of(mixed)
    return [
        ("design", "physical separation: a device for each", "logical union: one batch for both"),
        ("deployment", "two engines, a link between them, and a load balancer", "one engine"),
        *((name, figure, of_mixed[name]) for name, figure in of_pd.items()),
        ("scenario", "long prompts next to streams that must not stutter, and load for two devices",
         "one device, short prompts, or throughput before steadiness"),
    ]  # fmt: skip


def figures_of(run: Run) -> dict[str, str]:
    """Return the figures of a run, by subject."""
    trace, devices = run.trace, measure(run.trace).devices
    prompts, mixed = passes(trace, "extend", "mixed"), passes(trace, "mixed")
    is_apart = any(item.lane == "prefill forward" for item in prompts)
    where = "a device of its own" if is_apart else "the one device"
    moved = "none: a prompt's KV stays where it is computed"
    if transfers := trace.on("kv transfer"):
        size = sum(int(mark.attrs["bytes"]) for mark in trace.marks if mark.name == "kv transfer")
        took = ms(sum(item.duration for item in transfers))
        moved = f"{size / 2**20:.1f} MiB in {many(len(transfers), 'transfer')}, {took} ms"
    return {
        "devices": str(devices),
        "transfer": moved,
        "schedulers": str(len({it.lane for it in trace.slices if it.name == "schedule"})),
        "prefill": f"{many(len(prompts), 'step')} on {where}",
        "mixing": f"{len(mixed)} of {len(passes(trace))} steps hold prompts and decodes",
        "latency: first token, p50 / p99": percentiles(run.metrics.ttft),
        "latency: between tokens, p50 / p99": percentiles(run.metrics.itl),
        "latency: longest pause while a prompt is computed": pause(run),
        "throughput: in all": f"{run.metrics.throughput:.0f} tokens/s",
        "throughput: for each device": f"{run.metrics.throughput / devices:.0f} tokens/s",
    }


def percentiles(times: Percentiles | None) -> str:
    """Write the median and the 99th percentile."""
    return f"{ms(times.p50)} / {ms(times.p99)} ms" if times else "none"


def pause(run: Run) -> str:
    """Write the longest time between two tokens of a request while a prompt is computed."""
    _, start, end = longest_pause(run)
    return f"{ms(end - start)} ms" if end > start else NO_PAUSE


def longest_pause(run: Run) -> tuple[str, int, int]:
    """Return that request and the times of its two tokens, in nanoseconds; without one, zeros."""
    prompts = union(passes(run.trace, "extend", "mixed"))
    gaps = (
        (item.rid, start, end)
        for item in run.metrics.ended
        for start, end in pairwise(accumulate(item.itls, initial=item.first_token or 0))
        if within(prompts, start, end)
    )
    return max(gaps, key=lambda gap: gap[2] - gap[1], default=("", 0, 0))


def passes(trace: Trace, *modes: str) -> list[Slice]:
    """Return the forward slice of each step of these modes, or of all, on every device."""
    return [item for item in trace.slices
            if item.name == "forward" and (not modes or item.mode in modes)]  # fmt: skip
