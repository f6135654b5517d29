"""The written comparisons of the designs, as Markdown; their figures come from runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ..checks.overlap import measure
from ..core import Request, SamplingParams
from ..loops.design import LOOPS
from ..trace import Trace
from ..trace.events import is_host
from .pictures.waits import FEATURES, waits_table
from .recipes import Recipe, a_bit_of_everything, run_of, tokens
from .tables import filled, table
from .units import MILLISECOND, ms

# -- vLLM, SGLang and MindIE, and two more beside them ---------------------------------------------

NAMES = {  # of the loops that are told of at length
    "serial": "no overlap",
    "vllm_async": "vLLM",
    "overlap": "SGLang",
    "mindie_dual": "MindIE",
    "mini_overlap": "mini-sglang",
    "mlx_async": "SGLang on MLX",
}


def to_three_way() -> str:
    """The comparison's text."""
    figures = {f"follows {loop}": LOOPS[loop].follows for loop in NAMES if loop != "serial"}
    figures["every"] = table(HEADS, map(costs_of, LOOPS))
    figures |= {f"waits {feature}": waits_table(NAMES, feature) for feature in FEATURES}
    return filled("diagrams/async_scheduling_three_way_compare.md", **figures)


LENGTHS = (4, 7, 10, 13)  # tokens of the requests whose ends are counted
SHORT, LONG = 12, 36  # tokens of the two runs whose difference is settled steps only
HEADS = ("loop", "ms for one more token each", "device busy", "host hidden", "speed-up over serial",
         "rows wasted by a stop token", "rows wasted by a length stop", "whole run")  # fmt: skip


def costs_of(loop: str) -> tuple[str, ...]:
    """What one loop did: all but the wastes, and one token more, is of the common workload."""
    trace = run_of(loop)
    report = measure(trace)
    return (
        f"`{loop}`",
        f"{token_time(loop) / MILLISECOND:.2f}",
        f"{report.device_busy_percent:.0f} %",
        f"{report.host_hidden_percent:.0f} %",
        f"{run_of('serial').end / trace.end:.2f}×",
        f"{wasted_rows(loop, by_token=True):g}",
        f"{wasted_rows(loop, by_token=False):g}",
        f"{ms(trace.end)} ms",
    )


def token_time(loop: str) -> float:
    """Nanoseconds for one more token of each of four requests, once the run has settled."""
    ends = [Recipe(loop, four([tokens(count)] * 4)).run().end for count in (SHORT, LONG)]
    return (ends[1] - ends[0]) / (LONG - SHORT)


def wasted_rows(loop: str, by_token: bool) -> float:
    """Rows that were computed for nothing, for each request that ended by token or by length."""
    requests = four([tokens(count) for count in LENGTHS])
    for req, count in zip(requests, LENGTHS, strict=True):
        if by_token:  # it would have more room, but the token at which it would end stops it
            token = said()[req.rid][count - 1]
            req.params = replace(tokens(LONG), stop_token_ids=frozenset({token}))
    marks = Recipe(loop, requests).run().marks
    return sum(mark.name == "wasted row" for mark in marks) / len(requests)


def four(params: Sequence[SamplingParams]) -> list[Request]:
    """Four requests that come together and share nothing."""
    return [Request(f"r{at}", range(20 * at, 20 * at + 6), each) for at, each in enumerate(params)]


@cache
def said() -> dict[str, list[int]]:
    """What they say where nothing stops them: the same on every loop."""
    return Recipe("serial", four([tokens(LONG)] * 4)).play().outputs


# -- MindIE's two layers and the pipeline in their place -------------------------------------------

BOOKS = ("ledger", "context")  # marks; whoever keeps a book of requests records it under its name


def pipelines_table() -> str:
    """The comparison as a markdown page, the same every time."""
    columns = {
        "two layers": run_of("mindie_dual"),
        "two layers, filled on the device": a_bit_of_everything("mindie_dual", "fill_device").run(),
        "one pipeline": run_of("mindie_single"),
    }
    counted = [pipeline_figures(trace) for trace in columns.values()]
    rows = [[name, *(f"{figures[name]:g}" for figures in counted)] for name in counted[0]]
    return filled("diagrams/mindie_pipeline_refactor.md", table=table(["", *columns], rows))


def pipeline_figures(trace: Trace) -> dict[str, float]:
    """The table's column of one run.

    ``host work`` is that of all host threads together, without what they wait. ``books`` counts
    what is kept on requests beside the scheduler's own state: the ledger of placeholders, the
    plugin's context.
    """
    report = measure(trace)
    return {
        "steps": report.steps,
        "makespan (ms)": hundredths_of_ms(report.makespan_ns),
        "device busy (%)": round(report.device_busy_percent, 1),
        "host work (ms)": hundredths_of_ms(report.host_busy_ns),
        "host work a step (ms)": hundredths_of_ms(report.host_busy_ns / max(1, report.steps)),
        "wasted rows": report.wasted_rows,
        "host threads": len({item.lane for item in trace.slices if is_host(item.lane)}),
        "books of requests": len({mark.name for mark in trace.marks if mark.name in BOOKS}),
    }


def hundredths_of_ms(nanoseconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(nanoseconds / 1e6, 2)
