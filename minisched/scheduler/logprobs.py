"""Log-probabilities that have come back: to whom they belong, and what is told to clients."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Logprobs, Output, Request, Row, ScheduleBatch, TokenLogprob


def deliver_logprobs(
    batch: ScheduleBatch,
    logprobs: Sequence[Logprobs | None],
    outputs: Sequence[Output],
    keep_stale: bool = False,
) -> None:
    """Add to the ``outputs`` of a step the log-probabilities of what they say.

    Only tokens that clients hear have some: of several that a row sampled, those that were
    accepted; none where the row came too late. Those of the prompt are kept for as long as chunks
    of it come in, and go out with the first token.
    """
    heard: dict[str, list[Output]] = {}
    for output in outputs:
        if output.token is not None:
            heard.setdefault(output.rid, []).append(output)
    for row, found in zip(batch.rows, logprobs, strict=True):
        if found is None:
            continue
        req, said = row.req, heard.get(row.req.rid, [])
        is_stale = keep_stale and not (req.finished or row.lease.is_spoiled)
        if said or req.lease is row.lease or is_stale:
            learn_prompt(row, found.input_token_logprobs)
        for output, logprob in zip(said, found.output_token_logprobs, strict=False):
            output.logprobs = Logprobs(of_prompt(req), [logprob])
            req.output_token_logprobs.append(logprob)


def of_prompt(req: Request) -> list[TokenLogprob]:
    """Those of the prompt, before the first token was heard; nothing after it."""
    return [] if req.output_token_logprobs else list(req.input_token_logprobs)


def learn_prompt(row: Row, found: Sequence[TokenLogprob]) -> None:
    """Take in those of a prompt's tokens that a row has computed.

    They go on where the last row's ended: rows come back in order, and a request that has lost its
    memory asks, when it goes on, for what it lacks by then and for nothing twice (SGLang computes
    all of them again, and drops them: ``add_input_logprob_return_values``).
    """
    req, start = row.req, row.req.params.logprob_start_len
    if start < 0 or row.end <= start:
        return
    if not req.input_token_logprobs:
        req.input_token_logprobs.append(TokenLogprob(None, req.prompt[start]))
    req.input_token_logprobs += found
