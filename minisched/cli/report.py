"""What ``compare``, ``run`` and ``replay`` say of a run: its clients' times, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from ..checks.answers import count_drafts
from ..core import Request, TokenLogprob
from ..engine.metrics import Metrics, RequestMetrics
from ..loops.run import Run
from ..models.base import Model
from ..scheduler import SchedulerConfig
from .layout import say_table

# -- What each request's client would have measured: queue time, TTFT, ITL, cached tokens ----------

METRICS = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "itl_ms")


def figures(request: RequestMetrics) -> dict[str, Any]:
    """One request's figures; times in milliseconds, ``itl_ms`` the mean, None for what was not."""
    itls = request.itls
    return {
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "queue_ms": in_ms(request.queue_ns),
        "ttft_ms": in_ms(request.ttft_ns),
        "itl_ms": in_ms(sum(itls) / len(itls)) if itls else None,
        "retractions": request.retractions,
    }


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Every request's figures, by id."""
    return {request.rid: figures(request) for request in in_order(metrics)}


def say_metrics(console: Console, metrics: Metrics) -> None:
    """The same to read: counts, and times in milliseconds; a dash for what was not."""
    heads = ("request", *(f">{name.replace('_', ' ')}" for name in METRICS))
    rows = [
        (rid, *("-" if found[name] is None
                else f"{found[name]:.1f}" if name.endswith("ms") else str(found[name])
                for name in METRICS))
        for rid, found in metrics_json(metrics).items()
    ]  # fmt: skip
    say_table(console, heads, rows)


def in_order(metrics: Metrics) -> list[RequestMetrics]:
    """Those that ended, by arrival."""
    return sorted(
        metrics.ended, key=lambda request: (request.arrival, len(request.rid), request.rid)
    )


def in_ms(nanoseconds: float | None) -> float | None:
    """Milliseconds."""
    return None if nanoseconds is None else nanoseconds / 1e6


# -- What ``run`` and ``compare`` say of log-probabilities: as SGLang's JSON, and in a few lines


def logprobs_json(requests: Iterable[Request]) -> dict[str, dict[str, Any]]:
    """By id of who wanted some: pairs of log-probability and token (SGLang ``meta_info``)."""
    return {
        req.rid: {
            **lists("input", req.input_token_logprobs),
            **lists("output", req.output_token_logprobs),
        }
        for req in requests
        if req.params.return_logprob
    }


def lists(kind: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """One list of the tokens themselves, and one of the most likely ones at each place."""
    return {
        f"{kind}_token_logprobs": [[item.logprob, item.token_id] for item in logprobs],
        f"{kind}_top_logprobs": [list(map(list, item.top_logprobs)) for item in logprobs],
    }


def print_logprobs(console: Console, model: Model, requests: Iterable[Request]) -> None:
    """Two lines for each request that wanted some: its prompt, and what it said."""
    for req in requests:
        for kind, found in (
            ("prompt", req.input_token_logprobs),
            ("output", req.output_token_logprobs),
        ):
            if found:
                console.print(line(f"{req.rid} {kind}:", found, model), soft_wrap=True)


def line(title: str, found: Sequence[TokenLogprob], model: Model) -> Text:
    """``'The' - ' capital' -5.12 (' first' -3.40)``: behind a token its log-probability, and what
    would have been likeliest, if that is another one.
    """
    text = Text(title, "bold")
    for logprob, token, top in found:
        text.append(f" {spelled(token, model)} ", "not bold")
        text.append("-" if logprob is None else f"{logprob:.2f}", "dim not bold")
        if top and top[0][1] != token:
            best, other = top[0]
            text.append(f" ({spelled(other, model)} {best:.2f})", "dim not bold")
    return text


def spelled(token: int, model: Model) -> str:
    """A token as text, or as its id where it has none."""
    text = model.tokenizer.decode([token]) if model.tokenizer else ""
    return repr(text) if text else str(token)


# -- Drafts and errors -----------------------------------------------------------------------------


def drafts_as_json(run: Run) -> dict[str, dict[str, int]]:
    """How many drafts were proposed and accepted, if there were any."""
    drafts = count_drafts(run.trace)
    if drafts is None:
        return {}
    return {"drafts": {"proposed": drafts.proposed, "accepted": drafts.accepted}}


def print_errors(errors: Mapping[str, str]) -> None:
    """Say on stderr which requests ended badly, and why."""
    for rid, error in errors.items():
        print(f"request {rid}: {error}", file=sys.stderr)


# -- What a tuning guide would say about a run: four figures, their targets, what to change --------

TARGETS = {  # least and most, the unit, and what to do about a figure below and above
    "token usage": (
        60.0, 80.0, "%",
        "Lower --kv-tokens or send more where nobody waits; where some do, raise "
        "--max-running-requests or lower --schedule-conservativeness.",
        "Raise --kv-tokens; where requests were retracted, --schedule-conservativeness too.",
    ),
    "running requests": (
        70.0, 80.0, "%",
        "Lower --max-running-requests or send more where nobody waits; where some do, raise "
        "--kv-tokens if memory is full, else --chunked-prefill-size.",
        "Raise --max-running-requests, and --kv-tokens first if memory is nearly full.",
    ),
    "TTFT": (
        0.0, 1000.0, "ms", "",
        "Raise --max-running-requests or --kv-tokens if the queue took most of it, else "
        "--chunked-prefill-size.",
    ),
    "ITL": (
        0.0, 50.0, "ms", "",
        "Lower --chunked-prefill-size, or turn on --enable-mixed-chunk: those who decode stand "
        "still while prompts are computed.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """One figure beside its target.

    ``value`` and ``target`` are in ``unit``. ``verdict`` is met, below or above. ``sentence`` says
    which option to change, in which direction; or that it is fine.
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
    second token) is left out. A value at a limit meets the target.
    """
    load, found = metrics.load, dict[str, float]()
    if load.busy_ns:
        found["token usage"] = 100 * load.used_tokens / config.num_slots
        found["running requests"] = 100 * load.running / config.max_running_requests
    for name, times in (("TTFT", metrics.ttft), ("ITL", metrics.itl)):
        if times is not None:
            found[name] = times.p90 / 1e6
    advice = []
    for name, value in found.items():
        least, most, unit, below, above = TARGETS[name]
        verdict = "below" if value < least else "above" if value > most else "met"
        sentence = {"below": below, "above": above, "met": "Fine as it is."}[verdict]
        target = f"{least:g} to {most:g}" if least else f"at most {most:g}"
        advice.append(Advice(name, value, unit, target, verdict, sentence))
    return advice


def say_advice(console: Console, loop: str, metrics: Metrics, config: SchedulerConfig) -> None:
    """The figures of a run, their targets, and what to change."""
    print(f"Advice for {loop}")
    rows = [
        (item.name, f"{item.value:.0f} {item.unit}", f"{item.target} {item.unit}", item.verdict,
         item.sentence)
        for item in advise(metrics, config)
    ]  # fmt: skip
    say_table(console, ("figure", ">here", ">target", "", "advice"), rows)


def advice_json(metrics: Metrics, config: SchedulerConfig) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [vars(item) for item in advise(metrics, config)]
