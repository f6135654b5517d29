"""What ``compare``, ``run`` and ``replay`` say of a run: its clients' times, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from .layout import Fitted, table

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


def metrics_table(metrics: Metrics) -> Fitted:
    """The same to read."""
    heads = ("request", *(f">{name.replace('_', ' ')}" for name in METRICS))
    rows = []
    for request in in_order(metrics):
        found = figures(request)
        rows.append((request.rid, *(as_text(found[name]) for name in METRICS)))
    return table(heads, rows)


def in_order(metrics: Metrics) -> list[RequestMetrics]:
    """Those that ended, by arrival."""
    return sorted(
        metrics.ended, key=lambda request: (request.arrival, len(request.rid), request.rid)
    )


def in_ms(nanoseconds: float | None) -> float | None:
    """Milliseconds."""
    return None if nanoseconds is None else nanoseconds / 1e6


def as_text(value: float | None) -> str:
    """A cell: a count, a time, or a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


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

TOKEN_USAGE, RUNNING, TTFT, ITL = "token usage", "running requests", "TTFT", "ITL"
TARGETS = {  # least and most: percent of the KV pool, and of max_running_requests; milliseconds
    TOKEN_USAGE: (60.0, 80.0), RUNNING: (70.0, 80.0), TTFT: (0.0, 1000.0), ITL: (0.0, 50.0),
}  # fmt: skip
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


@dataclass(frozen=True)
class Tuned:
    """What advice depends on beside a figure's own verdict."""

    usage: float  # percent, as running is
    running: float
    waits: bool  # on average, somebody does
    retractions: int
    mostly_queued: bool  # more than half of the time to the first token
    config: SchedulerConfig

    @property
    def stand_still(self) -> bool:
        """Whether those who decode do, while prompts are computed."""
        is_first = self.config.in_force.run_first == "prefill"
        return is_first and not self.config.enable_mixed_chunk


# Figure, verdict, where it applies, and the sentence: the first that applies counts.
SENTENCES: tuple[tuple[str, str, Callable[[Tuned], bool], str], ...] = (
    (TOKEN_USAGE, "above", lambda it: it.retractions > 0,
     "Raise --schedule-conservativeness or --kv-tokens: {retractions} retractions threw away what "
     "was computed, because more was admitted than memory could hold."),
    (TOKEN_USAGE, "above", lambda it: True,
     "Raise --kv-tokens: memory is nearly full, and longer outputs would not fit."),
    (TOKEN_USAGE, "below", lambda it: not it.waits,
     "Lower --kv-tokens or send more: nobody waits, and memory stays empty."),
    (TOKEN_USAGE, "below", lambda it: it.running > TARGETS[RUNNING][1],
     "Raise --max-running-requests: requests wait for a place beside free memory."),
    (TOKEN_USAGE, "below", lambda it: True,
     "Lower --schedule-conservativeness: requests wait beside free memory, because too much of it "
     "is kept back for outputs that never come."),
    (RUNNING, "above", lambda it: not it.waits,
     "Raise --max-running-requests before more come: as yet, nobody waits for a place."),
    (RUNNING, "above", lambda it: it.usage > TARGETS[TOKEN_USAGE][1],
     "Raise --kv-tokens and then --max-running-requests: both are nearly used up."),
    (RUNNING, "above", lambda it: True,
     "Raise --max-running-requests: nearly all places are taken beside free memory."),
    (RUNNING, "below", lambda it: not it.waits,
     "Lower --max-running-requests or send more: nobody waits, places stay empty."),
    (RUNNING, "below", lambda it: it.usage > TARGETS[TOKEN_USAGE][0],
     "Raise --kv-tokens: those who wait would find a place, but no memory."),
    (RUNNING, "below", lambda it: True,
     "Lower --schedule-conservativeness or raise --chunked-prefill-size: requests wait beside free "
     "places and free memory, so they are admitted too slowly."),
    (TTFT, "above", lambda it: it.mostly_queued,
     "Raise --max-running-requests or --kv-tokens, or send less: most of the time to the first "
     "token went by in the waiting queue."),
    (TTFT, "above", lambda it: it.config.chunked_prefill_size != -1,
     "Raise --chunked-prefill-size: most of the time to the first token went by after admission, "
     "and larger chunks get through a prompt in fewer steps."),
    (TTFT, "above", lambda it: True,
     "Set --chunked-prefill-size: most of the time to the first token went by after admission, "
     "while longer prompts were computed in one piece."),
    (ITL, "above", lambda it: it.stand_still,
     "Turn on --enable-mixed-chunk or lower --chunked-prefill-size: those who decode stand still "
     "while prompts are computed."),
    (ITL, "above", lambda it: True,
     "Lower --chunked-prefill-size and then --max-running-requests: each step computes too many "
     "tokens."),
)  # fmt: skip


def advise(metrics: Metrics, config: SchedulerConfig) -> list[Advice]:
    """A run against the targets of the tuning guides.

    Token usage and running requests are averages over the time in which anybody held memory; TTFT
    and ITL are 90th percentiles. A figure that the run does not have (nothing ran, nobody got a
    second token) is left out. A value at a limit meets the target.
    """
    load, ttft, queue = metrics.load, metrics.ttft, metrics.queue
    found: dict[str, float] = {}
    if load.busy_ns:
        found[TOKEN_USAGE] = 100 * load.used_tokens / config.num_slots
        found[RUNNING] = 100 * load.running / config.max_running_requests
    if ttft is not None:
        found[TTFT] = ttft.p90 / 1e6
    if metrics.itl is not None:
        found[ITL] = metrics.itl.p90 / 1e6
    queued = ttft is not None and queue is not None and 2 * queue.p90 > ttft.p90
    it = Tuned(
        found.get(TOKEN_USAGE, 0.0), found.get(RUNNING, 0.0), load.waiting >= 1,
        metrics.num_retractions, queued, config,
    )  # fmt: skip
    advice = []
    for name, value in found.items():
        least, most = TARGETS[name]
        verdict = "below" if value < least else "above" if value > most else "met"
        said = (text for of, at, applies, text in SENTENCES
                if (of, at) == (name, verdict) and applies(it))  # fmt: skip
        sentence = next(said, FINE).format(retractions=it.retractions)
        target = f"{least:g} to {most:g}" if least else f"at most {most:g}"
        unit = "ms" if name in (TTFT, ITL) else "%"
        advice.append(Advice(name, value, unit, target, verdict, sentence))
    return advice


def advice_table(loop: str, metrics: Metrics, config: SchedulerConfig) -> Fitted:
    """The figures of a run, their targets, and what to change."""
    rows = [
        (item.name, f"{item.value:.0f} {item.unit}", f"{item.target} {item.unit}", item.verdict,
         item.sentence)
        for item in advise(metrics, config)
    ]  # fmt: skip
    return table(("figure", ">here", ">target", "", "advice"), rows, f"Advice for {loop}")


def advice_json(metrics: Metrics, config: SchedulerConfig) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [vars(item) for item in advise(metrics, config)]
