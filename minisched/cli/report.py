"""What ``run``, ``compare`` and ``replay`` say of requests: clients' times, and how they ended."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..checks.answers import count_drafts
from ..core import Request
from ..engine.metrics import Metrics
from ..loops.run import Run

METRICS = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "itl_ms")


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """What each request's client would have measured, by id, in the order of arrival.

    Times are in milliseconds, ``itl_ms`` is the mean; None is for what was not.
    """
    ended = sorted(metrics.ended, key=lambda it: (it.arrival, len(it.rid), it.rid))
    return {
        it.rid: {
            "prompt_tokens": it.prompt_tokens,
            "cached_tokens": it.cached_tokens,
            "output_tokens": it.output_tokens,
            "queue_ms": None if it.queue_ns is None else it.queue_ns / 1e6,
            "ttft_ms": None if it.ttft_ns is None else it.ttft_ns / 1e6,
            "itl_ms": sum(it.itls) / len(it.itls) / 1e6 if it.itls else None,
            "retractions": it.retractions,
        }
        for it in ended
    }


def logprobs_json(requests: Iterable[Request]) -> dict[str, dict[str, Any]]:
    """By id of who wanted some: pairs of log-probability and token (SGLang ``meta_info``).

    One list is of the tokens themselves, and one of the most likely ones at each place.
    """
    found = {}
    for req in requests:
        if req.params.return_logprob:
            said = {"input": req.input_token_logprobs, "output": req.output_token_logprobs}
            found[req.rid] = {
                f"{kind}_token_logprobs": [[item.logprob, item.token_id] for item in logprobs]
                for kind, logprobs in said.items()
            } | {
                f"{kind}_top_logprobs": [list(map(list, item.top_logprobs)) for item in logprobs]
                for kind, logprobs in said.items()
            }
    return found


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
