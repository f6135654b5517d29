"""Log-probabilities: those that the oracle says, of each request, and those of two runs.

What a model computes is the same in every schedule, to the last bit, on each device. Two devices,
or two libraries, add up a row in another order, or have another exponential: then they agree as far
as ``OF_HASH`` and ``OF_FLOATS`` say, and in which tokens are the most likely ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...core import Logprobs, Output, Request, TokenLogprob
from .oracle import logprobs_alone

Both = tuple[list[TokenLogprob], list[TokenLogprob]]  # those of a prompt, and of an output
OF_HASH = {"": 0.0, "torch": 1e-12, "mlx": 1e-6}
"""By the library of the device's arrays, how far those of ``hash`` may be from the oracle's: its
logits are exact in float64 everywhere, but the exponential of MLX is that of float32
(``models/sampling_mlx.py``)."""
OF_FLOATS = 1e-4
"""How far those of a Llama in float32 may be from another library's, or another device's."""


def find_unlike(
    told: Iterable[tuple[Request, Sequence[Output]]],
    vocab_size: int,
    tolerance: float = 0.0,
    alone: Callable[[Request, int], Both] = logprobs_alone,
) -> Iterator[str]:
    """Who knows, or was told, other log-probabilities than it would be ``alone``.

    Of who gave up, was refused or failed, those of the tokens that it got; the prompt's are heard
    with the first token, and only those that were computed are known before.
    """
    for req, heard in told:
        if not all(0 <= token < vocab_size for token in req.output_ids):
            continue  # no token that the model has
        known = req.input_token_logprobs
        has_none = bool(req.problem()) or not (req.output_ids or known)
        of_prompt, of_output = ([], []) if has_none else alone(req, vocab_size)
        if not req.output_ids:
            of_prompt = of_prompt[: len(known)]
        for what, found, truth in (
            ("prompt", known, of_prompt),
            ("output", req.output_token_logprobs, of_output),
        ):
            if unlike := difference(found, truth, tolerance):
                yield f"{req.name}'s {what} has {unlike}"
        number = 0
        for output in heard:
            truths = None
            if output.token is not None:
                here = of_output[number : number + 1]
                truths = Logprobs([] if number else of_prompt, here) if here else None
                number += 1
            if unlike := difference_heard(output.logprobs, truths, tolerance):
                yield f"{req.name} heard {unlike} with output {number}"


def difference_heard(found: Logprobs | None, truth: Logprobs | None, tolerance: float) -> str:
    """The first thing about what came with one output that is not as it should be, or nothing."""
    if found is None or truth is None:
        return "" if found is truth else f"{found} and not {truth}"
    pairs = zip(found, truth, strict=True)
    return next(filter(None, (difference(*pair, tolerance) for pair in pairs)), "")


def difference(
    found: Sequence[TokenLogprob], truth: Sequence[TokenLogprob], tolerance: float
) -> str:
    """The first place at which two lists differ, or nothing."""
    if len(found) != len(truth):
        return f"{len(found)} log-probabilities and not {len(truth)}"
    for at, (one, other) in enumerate(zip(found, truth, strict=True)):
        if not alike(one, other, tolerance):
            return f"{plain(one)} at place {at} and not {plain(other)}"
    return ""


def alike(one: TokenLogprob, other: TokenLogprob, tolerance: float) -> bool:
    """Whether two are of the same tokens, and as likely but for a tolerance."""
    mine, theirs = (
        [(place.logprob, place.token_id), *place.top_logprobs] for place in (one, other)
    )
    if [token for _, token in mine] != [token for _, token in theirs]:
        return False
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= tolerance)
        for (a, _), (b, _) in zip(mine, theirs, strict=True)
    )


def plain(place: TokenLogprob) -> str:
    """A place in few words."""
    top = f", top {list(place.top_logprobs)}" if place.top_logprobs else ""
    return f"{place.logprob} for token {place.token_id}{top}"


# -- two runs --------------------------------------------------------------------------------------


def largest_difference(baseline: Iterable[Request], others: Iterable[Request]) -> float | None:
    """The largest difference of one token's, up to where tokens differ; None: nobody wants any."""
    truth = {req.rid: req for req in baseline if req.params.return_logprob}
    if not truth:
        return None
    return max((distance(truth[req.rid], req) for req in others if req.rid in truth), default=0.0)


def distance(one: Request, other: Request) -> float:
    """The largest difference between what two runs of a request gave."""
    largest = 0.0
    mine, theirs = ([*req.input_token_logprobs, *req.output_token_logprobs] for req in (one, other))
    for a, b in zip(mine, theirs, strict=False):
        if a.token_id != b.token_id:
            break
        if a.logprob is not None and b.logprob is not None:
            largest = max(largest, abs(a.logprob - b.logprob))
    return largest
