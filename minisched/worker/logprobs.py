"""Log-probabilities: two more ops of a step, and the reading of their values on the host.

``logprobs`` runs on the stream that samples, ``copy logprobs`` after the copy of the tokens. Each
log-probability has a *place* (``models/sampling.py:LogprobInfo``). SGLang computes those of prompts
in the forward pass and waits for their top tokens immediately
(``layers/logits_processor.py:get_top_logprobs``). Here the host waits only for the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ..core import Logprobs, Result, TokenLogprob
from ..devices.base import Array, Op
from ..models.base import ForwardBatch, LogitModel
from .worker import Step, Worker


def launch_logprobs(worker: Worker[Any], step: Step) -> None:
    """Queue the two ops after the copy of the step's tokens; its result will have their values."""
    found = worker.queue(
        step, "logprobs", partial(compute_logprobs, worker),
        step.inputs, step.logits_output, step.next_token_ids,
        on=worker.sample_stream, cost=worker.cost.logprobs,
        touches=[worker.touches.inputs(step.batch)],
    )  # fmt: skip
    worker.copy_stream.wait(found)
    copied = worker.queue(
        step, "copy logprobs", worker.device.bring_to_host, found, on=worker.copy_stream,
        cost=worker.cost.copy, after=("copy", found),
    )  # fmt: skip
    step.readers += (partial(read_logprobs, copied),)


def compute_logprobs(
    worker: Worker[Any], inputs: ForwardBatch, logits: Array, tokens: Array
) -> Array:
    """Return the log-probability of each place's token, on the device.

    [num_places, 1 + 2 * top_logprobs_num]
    """
    info, model = inputs.logprobs, cast(LogitModel, worker.model)
    assert info is not None
    targets = worker.device.xp.where(info.is_sampled, tokens[info.samples], info.input_ids)
    return model.logprobs(logits, info.logits_at, targets, info.top_logprobs_num)


def read_logprobs(copied: Op, step: Step, result: Result) -> Result:
    """Add the log-probabilities of each row, [num_reqs]; None for a row that wants none."""
    places = iter(copied.synchronize().tolist())
    batch, found, sample = step.batch, list[Logprobs | None](), 0
    for row, (req, num_samples) in enumerate(zip(batch.reqs, batch.sample_lens, strict=True)):
        sampled = result.tokens[sample : sample + num_samples]
        sample += num_samples
        if not req.params.return_logprob:
            found.append(None)
            continue
        prompt: Sequence[int] = []
        if row < batch.num_extend_reqs:
            start = batch.starts[row]
            first = start + batch.extend_logprob_start_lens[row]
            prompt = req.prompt[first + 1 : start + len(batch.ids[row]) + 1]
        top = req.params.top_logprobs_num
        found.append(Logprobs(of(prompt, places, top), of(sampled, places, top)))
    return replace(result, logprobs=found)


def of(tokens: Sequence[int], places: Iterator[Sequence[float]], top: int) -> list[TokenLogprob]:
    """The next places, which are those of ``tokens``, with the ``top`` most likely tokens each."""
    return [read_place(token, next(places), top) for token in tokens]


def read_place(token: int, place: Sequence[float], top: int) -> TokenLogprob:
    """One place as ``models/sampling.py`` lays it out: there may be more top tokens than wanted."""
    width = (len(place) - 1) // 2
    best = zip(place[1 : 1 + top], map(int, place[1 + width : 1 + width + top]), strict=True)
    return TokenLogprob(place[0], token, tuple(best))
