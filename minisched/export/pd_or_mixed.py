"""PD separation beside mixed chunks: the guides' comparison, filled in from two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from ..checks.history import many, side_of
from ..checks.overlap import measure, union, within
from ..core import Request
from ..devices.cost import MILLISECOND, SIM_COST
from ..engine.metrics import Percentiles
from ..loops.pd import Link
from ..loops.run import Run
from ..scheduler import SchedulerConfig
from ..trace import Slice, Trace
from .layout import DECODES, View, make_view, slices_of
from .recipes import RECIPES, Recipe, tokens
from .runs import side_by_side
from .scene import Scene
from .tables import filled, table
from .units import ms

LOOPS = ("pd", "mixed")
NO_PAUSE = "nobody decoded then"
ROOMY = SchedulerConfig(kv_tokens=8192)


def both(requests: Sequence[Request], **link: Any) -> tuple[Run, Run]:
    """The runs of the two loops on one workload."""
    pd = Recipe("pd", requests, ROOMY, options=link)
    return pd.play(), Recipe("mixed", requests, ROOMY).play()


def find_runs(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The runs of both loops, where both are there."""
    by_loop = {run.loop.partition(":")[0]: run for run in runs}
    return (by_loop["pd"], by_loop["mixed"]) if set(LOOPS) <= by_loop.keys() else None


# -- The comparison: what can be counted in each run, and words for the rest -----------------------


def rows(pd: Run, mixed: Run) -> list[tuple[str, str, str]]:
    """The comparison: what is compared, of pd, of mixed."""
    of_pd, of_mixed = figures_of(pd), figures_of(mixed)
    return [
        ("design", "physical separation: a device for each", "logical union: one batch for both"),
        ("deployment", "two engines behind a load balancer, and a link between them", "one engine"),
        *((name, said, of_mixed[name]) for name, said in of_pd.items()),
        ("scenario", "long prompts beside streams that must not stutter, and load for two devices",
         "one device, short prompts, or throughput before steadiness"),
    ]  # fmt: skip


def figures_of(run: Run) -> dict[str, str]:
    """What a run did, by what is compared."""
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
    """The middle and the last of a hundred."""
    return f"{ms(times.p50)} / {ms(times.p99)} ms" if times else "none"


def pause(run: Run) -> str:
    """The longest time between two tokens of a request while another's prompt is computed."""
    prompts = union(passes(run.trace, "extend", "mixed"))
    gaps = (gap for item in run.metrics.ended
            for gap in pairwise(accumulate(item.itls, initial=item.first_token or 0)))  # fmt: skip
    longest = max((end - start for start, end in gaps if within(prompts, start, end)), default=0)
    return f"{ms(longest)} ms" if longest else NO_PAUSE


def passes(trace: Trace, *modes: str) -> list[Slice]:
    """The forward slice of each step of these modes, or of all, on every device."""
    return [item for item in trace.slices
            if item.name == "forward" and (not modes or item.mode in modes)]  # fmt: skip


# -- The picture: a long prompt is computed, and others decode meanwhile ---------------------------


def beside_a_prompt(pd: Run, mixed: Run) -> Scene | None:
    """Both runs from when the longest prompt beside decodes is scheduled until it decodes itself.

    None where no prompt is computed while others decode.
    """
    rid = longest_prompt(pd)
    views = [view for run in (pd, mixed) if (view := prompt_view(run.trace, rid))]
    apart, together = pause(pd), pause(mixed)
    if len(views) < 2 or NO_PAUSE in (apart, together):
        return None
    title = (
        f"While a prompt is computed, others pause {together} at most if mixed, {apart} if apart"
    )
    names = [
        (name, f"devices: {measure(run.trace).devices}; longest pause while a prompt is computed: "
         f"{pause(run)}; between tokens, p50 / p99: {percentiles(run.metrics.itl)}")
        for name, run in (("pd: a device for each", pd), ("mixed: one batch for both", mixed))
    ]  # fmt: skip
    about = f"{pd.trace.what_ran}; 0 is when the host begins to schedule the prompt of {rid}"
    return replace(side_by_side(views, title, names), about=about)


def longest_prompt(pd: Run) -> str:
    """Who is computed for longest while the decode side is at work; empty: nobody is."""
    decodes, times = union(passes(pd.trace, *DECODES)), Counter[str]()
    for item in passes(pd.trace, "extend", "mixed"):
        if both_work := within(decodes, item.start, item.end):
            times.update(dict.fromkeys(item.rids, both_work))
    return max(times, key=lambda rid: (times[rid], rid), default="")


def prompt_view(trace: Trace, rid: str) -> View | None:
    """From when the host begins a prompt's first step to the end of its first decode step."""
    steps = [item for item in passes(trace) if rid in item.rids]
    decodes = [item for item in steps if item.mode in DECODES]
    if not decodes:
        return None
    side, _ = side_of(steps[0].lane)
    begun = (item.start for item in slices_of(trace)
             if item.step == steps[0].step and item.lane.startswith(side))  # fmt: skip
    return make_view(trace, min(begun), decodes[0].end)


# -- ``diagrams/pd_or_mixed.md``: the comparison on one workload, and on others where it turns -----


def pd_or_mixed() -> str:
    """The page, the same every time."""
    link, recipe = Link(), RECIPES["pd"]
    slow = {"bytes_per_second": link.bytes_per_second // 10, "latency": 10 * link.latency}
    others = {
        "one request": both(streams(1)),
        "short prompts": both(streams(3) + prompts(4, 12)),
        "more, longer prompts": both(streams(4) + prompts(8, 512)),
        "a slow link": both(recipe.requests, **slow),
    }
    lines = [
        {"": f"{name}: {loop}"}
        | {of.partition(": ")[2]: said for of, said in figures_of(run).items() if ": " in of}
        for name, pair in others.items()
        for loop, run in zip(("PD", "mixed"), pair, strict=True)
    ]
    return filled(
        "diagrams/pd_or_mixed.md",
        chunk=recipe.config.chunked_prefill_size,
        base=SIM_COST.forward_base // MILLISECOND,
        per_token=SIM_COST.forward_per_token / MILLISECOND,
        latency=link.latency / MILLISECOND,
        rate=link.bytes_per_second // 10**9,
        slot=link.slot_bytes // 1024,
        table=table(("", "PD separation", "mixed chunks"), rows(*both(recipe.requests))),
        others=table(lines[0], (line.values() for line in lines)),
    )


def streams(count: int) -> list[Request]:
    """Requests with a short prompt and a long answer, all there at the beginning."""
    return [Request(f"s{at}", range(at, at + 12), tokens(36)) for at in range(count)]


def prompts(count: int, length: int) -> list[Request]:
    """Requests with a prompt of that length and a short answer, one every 40 ms."""
    return [
        Request(f"p{at}", [(7 * at + i) % 250 for i in range(length)], tokens(8),
                arrival_time=(60 + 40 * at) * MILLISECOND)
        for at in range(count)
    ]  # fmt: skip
