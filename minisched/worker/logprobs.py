"""Log-probabilities: two ops behind a step, and what the host makes of their values.

They are computed where the step is sampled and copied beside its tokens, at one *place* for each
(``models/sampling.py:LogprobInfo``). SGLang computes those of prompts in the forward pass and
brings their top tokens over at once, for which the host waits
(``layers/logits_processor.py:get_top_logprobs``); here nobody waits before the result is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from ..core import Logprobs, Result, TokenLogprob
from ..devices.base import Array
from ..models.base import ForwardBatch, LogitModel
from .worker import Recipe, Step, StepOp, Worker


def logprobs(worker: Worker, inputs: ForwardBatch, logits: Array, tokens: Array) -> Array:
    """Device: how likely each place's token is, [num_places, 1 + 2 * top_logprobs_num]."""
    info, model = inputs.logprobs, cast(LogitModel, worker.model)
    assert info is not None
    targets = worker.device.xp.where(info.is_sampled, tokens[info.samples], info.input_ids)
    return model.logprobs(logits, info.logits_at, targets, info.top_logprobs_num)


def copy_logprobs(worker: Worker, found: Array) -> Array:
    """The same on the host."""
    return worker.device.bring_to_host(found)


def read_logprobs(step: Step, result: Result) -> Result:
    """Host: what the places say of each row, [num_reqs]; None if it wants nothing."""
    assert step.logprobs is not None
    places = iter(step.logprobs.synchronize().tolist())
    input_lens, start_lens = step.extend_input_len_per_req, step.extend_logprob_start_len_per_req
    batch, found, sample = step.batch, list[Logprobs | None](), 0
    for row, (req, num_samples) in enumerate(zip(batch.reqs, batch.sample_lens, strict=True)):
        sampled = result.tokens[sample : sample + num_samples]
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
    return replace(result, logprobs=found)


def of(tokens: Sequence[int], places: Iterator[Sequence[float]], top: int) -> list[TokenLogprob]:
    """The next places, which are those of ``tokens``, with the ``top`` most likely tokens each."""
    return [read_place(token, next(places), top) for token in tokens]


def read_place(token: int, place: Sequence[float], top: int) -> TokenLogprob:
    """One place as ``models/sampling.py`` lays it out: there may be more top tokens than wanted."""
    width = (len(place) - 1) // 2
    best = zip(place[1 : 1 + top], map(int, place[1 + width : 1 + width + top]), strict=True)
    return TokenLogprob(place[0], token, tuple(best))


def logprob_ops(recipe: Recipe) -> Recipe:
    """The ops behind a step of this recipe."""
    stream = next(op.stream for op in recipe if op.gives == "next_token_ids")
    return (
        StepOp(
            "logprobs",
            logprobs,
            stream,
            takes=("inputs", "logits_output", "next_token_ids"),
            gives="found_logprobs",
            awaited_by="copy",
            cost=lambda worker, step: worker.cost.logprobs,
            touches=lambda worker, step: [worker.touches.inputs(step.batch)],
        ),
        StepOp(
            "copy logprobs",
            copy_logprobs,
            "copy",
            takes=("found_logprobs",),
            gives="logprobs",
            edge=("copy", "found_logprobs"),
            cost=lambda worker, step: worker.cost.copy,
            read=read_logprobs,
        ),
    )
