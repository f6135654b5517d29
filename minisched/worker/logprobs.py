"""Log-probabilities on their way: computed on the device, copied beside the tokens, told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from ..core import Logprobs, ScheduleBatch, TokenLogprob
from ..devices.base import Array, Arrays
from ..models.base import ForwardBatch, LogitModel, Model
from ..models.sampling import LogprobInfo


def compute(
    model: Model, xp: Arrays, info: LogprobInfo | None, logits: Array, tokens: Array
) -> Array:
    """Device: how likely each place's token is, [num_places, 1 + 2 * top_logprobs_num].

    SGLang computes those of prompts in the forward pass and brings their top tokens over at once,
    for which the host waits (``layers/logits_processor.py:get_top_logprobs``); here nobody waits
    before the result is read.
    """
    assert info is not None
    targets = xp.where(info.is_sampled, tokens[info.samples], info.input_ids)
    return cast(LogitModel, model).logprobs(logits, info.logits_at, targets, info.top_logprobs_num)


def sampled_logits(xp: Arrays, inputs: ForwardBatch, logits: Array) -> Array:
    """Device: the logits that tokens are sampled from, [num_samples, vocab]."""
    info = inputs.logprobs
    if info is None or info.samples_at is None:
        return logits
    return xp.rows_at(logits, info.samples_at)


def read_logprobs(
    batch: ScheduleBatch,
    input_lens: Sequence[int],
    start_lens: Sequence[int],
    tokens: Sequence[int],
    values: Sequence[Sequence[float]],
) -> list[Logprobs | None]:
    """Host: what ``values`` [num_places] say of each row, [num_reqs]; None if it wants nothing.

    Of each prompt's part ``input_lens`` [num_extend_reqs] says how long it is, ``start_lens`` where
    in it log-probabilities begin.
    """
    places = iter(values)
    found: list[Logprobs | None] = []
    sample = 0
    for row, (req, num_samples) in enumerate(zip(batch.reqs, batch.sample_lens, strict=True)):
        sampled = tokens[sample : sample + num_samples]
        sample += num_samples
        if not req.params.return_logprob:
            found.append(None)
            continue
        prompt: Sequence[int] = []
        if row < len(input_lens):
            start = batch.starts[row]
            first = start + start_lens[row]
            prompt = req.prompt[first + 1 : start + input_lens[row] + 1]
        top = req.params.top_logprobs_num
        found.append(Logprobs(of(prompt, places, top), of(sampled, places, top)))
    return found


def of(tokens: Sequence[int], places: Iterator[Sequence[float]], top: int) -> list[TokenLogprob]:
    """The next places, which are those of ``tokens``, with the ``top`` most likely tokens each."""
    return [read_place(token, next(places), top) for token in tokens]


def read_place(token: int, place: Sequence[float], top: int) -> TokenLogprob:
    """One place as ``models/sampling.py`` lays it out: there may be more top tokens than wanted."""
    width = (len(place) - 1) // 2
    best = zip(place[1 : 1 + top], map(int, place[1 + width : 1 + width + top]), strict=True)
    return TokenLogprob(place[0], token, tuple(best))
