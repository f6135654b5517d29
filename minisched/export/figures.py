"""What the designs do with one workload: the figures of the written comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ..checks.overlap import measure
from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..loops.run import run_loop
from ..models.hash import HashModel
from .pictures.runs import run_of
from .recipes.recipe import Recipe, tokens

LENGTHS = (4, 7, 10, 13)  # tokens of the requests whose ends are counted
SHORT, LONG = 12, 36  # tokens of the two runs whose difference is settled steps only


@dataclass(frozen=True)
class Figures:
    """One loop on sim; times in nanoseconds, a waste in rows for each end.

    ``token_time`` is settled: for one more token of each of four requests. ``makespan``,
    ``speedup`` over serial and the shares are of the common workload.
    """

    loop: str
    token_time: float
    makespan: int
    device_busy_percent: float
    host_hidden_percent: float
    speedup: float
    waste_of_stop: float
    waste_of_length: float


def figures_of(loop: str) -> Figures:
    """What one loop did."""
    trace = run_of(loop)
    report = measure(trace)
    return Figures(
        loop,
        token_time(loop),
        trace.end,
        report.device_busy_percent,
        report.host_hidden_percent,
        run_of("serial").end / trace.end,
        wasted_rows(loop, by_token=True),
        wasted_rows(loop, by_token=False),
    )


def token_time(loop: str) -> float:
    """Nanoseconds for one more token of each of four requests, once the run has settled."""
    ends = [Recipe(loop, four([tokens(count)] * 4)).run().end for count in (SHORT, LONG)]
    return (ends[1] - ends[0]) / (LONG - SHORT)


def wasted_rows(loop: str, by_token: bool) -> float:
    """Rows that were computed for nothing, for each request that ended by token or by length."""
    requests = four([tokens(count) for count in LENGTHS])
    if by_token:
        requests = four([stopping(tuple(req.prompt), req.params) for req in requests])
    marks = Recipe(loop, requests).run().marks
    return sum(mark.name == "wasted row" for mark in marks) / len(requests)


def four(params: Sequence[SamplingParams]) -> list[Request]:
    """Four requests that come together and share nothing."""
    return [Request(f"r{at}", range(20 * at, 20 * at + 6), each) for at, each in enumerate(params)]


def stopping(prompt: tuple[int, ...], params: SamplingParams) -> SamplingParams:
    """More room, and the token at which these parameters ended as the one that stops."""
    token = greedy_tokens(prompt)[params.max_new_tokens - 1]
    stop_token_ids = frozenset({token})
    return SamplingParams(max_new_tokens=LONG, stop_token_ids=stop_token_ids, ignore_eos=True)


@cache
def greedy_tokens(prompt: tuple[int, ...]) -> list[int]:
    """What a request alone says."""
    requests = [Request("r", prompt, tokens(LONG))]
    return run_loop("serial", open_device("sim"), HashModel(), requests).outputs["r"]
