"""``--advise``: a run beside the published targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..engine.metrics import Metrics
from ..loops.run import Run
from ..scheduler import SchedulerConfig
from .layout import Fitted

# -- What a tuning guide would say about a run: four figures, their targets, what to change --------

TOKEN_USAGE = (60.0, 80.0)  # percent of the KV pool
RUNNING = (70.0, 80.0)  # percent of max_running_requests
MAX_TTFT = 1000.0  # milliseconds
MAX_ITL = 50.0
FINE = "Fine as it is."


@dataclass(frozen=True)
class Advice:
    """One figure beside its target.

    ``value`` and ``target`` are in ``unit``. ``verdict`` is met, below or above. ``sentence`` says
    which option to change, in which direction and why; or that it is fine.
    """

    name: str
    value: float
    unit: str
    target: str
    verdict: str
    sentence: str


def advise(metrics: Metrics, config: SchedulerConfig) -> list[Advice]:
    """A run against the targets of the tuning guides.

    Token usage and running requests are averages over the time in which anybody held memory; TTFT
    and ITL are 90th percentiles. A figure that the run does not have (nothing ran, nobody got a
    second token) is left out.
    """
    advice = []
    if metrics.load.busy_ns:
        usage = 100 * metrics.load.used_tokens / config.num_slots
        running = 100 * metrics.load.running / config.max_running_requests
        anyone_waits = metrics.load.waiting >= 1
        advice += [_token_usage(usage, running, anyone_waits, metrics)]
        advice += [_running(usage, running, anyone_waits)]
    if metrics.ttft is not None:
        advice.append(_ttft(metrics.ttft.p90, metrics, config))
    if metrics.itl is not None:
        advice.append(_itl(metrics.itl.p90, config))
    return advice


def _token_usage(usage: float, running: float, anyone_waits: bool, metrics: Metrics) -> Advice:
    retractions = metrics.num_retractions
    verdict, sentence = _within(usage, TOKEN_USAGE), FINE
    if verdict == "above" and retractions:
        sentence = (
            f"Raise --schedule-conservativeness or --kv-tokens: {retractions} retractions threw "
            "away what was computed, because more was admitted than memory could hold."
        )
    elif verdict == "above":
        sentence = "Raise --kv-tokens: memory is nearly full, and longer outputs would not fit."
    elif verdict == "below" and not anyone_waits:
        sentence = "Lower --kv-tokens or send more: nobody waits, and memory stays empty."
    elif verdict == "below" and running > RUNNING[1]:
        sentence = "Raise --max-running-requests: requests wait for a place beside free memory."
    elif verdict == "below":
        sentence = (
            "Lower --schedule-conservativeness: requests wait beside free memory, because too much "
            "of it is kept back for outputs that never come."
        )
    return Advice("token usage", usage, "%", _target(TOKEN_USAGE), verdict, sentence)


def _running(usage: float, running: float, anyone_waits: bool) -> Advice:
    verdict, sentence = _within(running, RUNNING), FINE
    if verdict == "above" and not anyone_waits:
        sentence = (
            "Raise --max-running-requests before more come: as yet, nobody waits for a place."
        )
    elif verdict == "above" and usage > TOKEN_USAGE[1]:
        sentence = "Raise --kv-tokens and then --max-running-requests: both are nearly used up."
    elif verdict == "above":
        sentence = "Raise --max-running-requests: nearly all places are taken beside free memory."
    elif verdict == "below" and not anyone_waits:
        sentence = "Lower --max-running-requests or send more: nobody waits, places stay empty."
    elif verdict == "below" and usage > TOKEN_USAGE[0]:
        sentence = "Raise --kv-tokens: those who wait would find a place, but no memory."
    elif verdict == "below":
        sentence = (
            "Lower --schedule-conservativeness or raise --chunked-prefill-size: requests wait "
            "beside free places and free memory, so they are admitted too slowly."
        )
    return Advice("running requests", running, "%", _target(RUNNING), verdict, sentence)


def _ttft(p90: int, metrics: Metrics, config: SchedulerConfig) -> Advice:
    verdict, sentence = _within(p90 / 1e6, (0.0, MAX_TTFT)), FINE
    if verdict == "above" and metrics.queue is not None and 2 * metrics.queue.p90 > p90:
        sentence = (
            "Raise --max-running-requests or --kv-tokens, or send less: most of the time to the "
            "first token went by in the waiting queue."
        )
    elif verdict == "above" and config.chunked_prefill_size != -1:
        sentence = (
            "Raise --chunked-prefill-size: most of the time to the first token went by after "
            "admission, and larger chunks get through a prompt in fewer steps."
        )
    elif verdict == "above":
        sentence = (
            "Set --chunked-prefill-size: most of the time to the first token went by after "
            "admission, while longer prompts were computed in one piece."
        )
    return Advice("TTFT", p90 / 1e6, "ms", f"at most {MAX_TTFT:g}", verdict, sentence)


def _itl(p90: int, config: SchedulerConfig) -> Advice:
    verdict, sentence = _within(p90 / 1e6, (0.0, MAX_ITL)), FINE
    prompts_first = config.in_force.run_first == "prefill"
    if verdict == "above" and prompts_first and not config.enable_mixed_chunk:
        sentence = (
            "Turn on --enable-mixed-chunk or lower --chunked-prefill-size: those who decode stand "
            "still while prompts are computed."
        )
    elif verdict == "above":
        sentence = (
            "Lower --chunked-prefill-size and then --max-running-requests: each step computes too "
            "many tokens."
        )
    return Advice("ITL", p90 / 1e6, "ms", f"at most {MAX_ITL:g}", verdict, sentence)


def _within(value: float, limits: tuple[float, float]) -> str:
    """The verdict; a value at a limit meets the target."""
    return "below" if value < limits[0] else "above" if value > limits[1] else "met"


def _target(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"


def print_advice(console: Console, runs: Sequence[Run], config: SchedulerConfig) -> None:
    """One table for each run."""
    for run in runs:
        console.print(Fitted(table(run.loop, advise(run.metrics, config))))


def table(loop: str, advice: Sequence[Advice]) -> Table:
    """The figures, their targets, and what to change."""
    result = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"Advice for {loop}", title_justify="left"
    )
    for column in ("figure", "here", "target", "", "advice"):
        result.add_column(column, justify="right" if column in ("here", "target") else "left")
    for item in advice:
        here = f"{item.value:.0f} {item.unit}"
        result.add_row(item.name, here, f"{item.target} {item.unit}", item.verdict, item.sentence)
    return result


def advice_json(run: Run, config: SchedulerConfig) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [vars(item) for item in advise(run.metrics, config)]
