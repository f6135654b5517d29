"""Did every schedule give the same log-probabilities? If not: by how much they differ."""

from __future__ import annotations

from collections.abc import Iterable

from ...core import Request, TokenLogprob


def largest_difference(baseline: Iterable[Request], others: Iterable[Request]) -> float | None:
    """The largest difference of one token's, up to where tokens differ; None: nobody wants any."""
    truth = {req.rid: req for req in baseline if req.params.return_logprob}
    if not truth:
        return None
    return max((distance(truth[req.rid], req) for req in others if req.rid in truth), default=0.0)


def distance(one: Request, other: Request) -> float:
    """The largest difference between what two runs of a request gave."""
    largest = 0.0
    for a, b in zip(told(one), told(other), strict=False):
        if a.token_id != b.token_id:
            break
        if a.logprob is not None and b.logprob is not None:
            largest = max(largest, abs(a.logprob - b.logprob))
    return largest


def told(req: Request) -> list[TokenLogprob]:
    """All that a request was given, the prompt's first."""
    return req.input_token_logprobs + req.output_token_logprobs
