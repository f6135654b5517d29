"""Log-probabilities on their way: computed on the device, copied beside the tokens, told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from ..core import Logprobs, TokenLogprob
from ..devices.base import Array, Arrays
from ..models.base import ForwardBatch, LogitModel, LogprobInfo

if TYPE_CHECKING:
    from .worker import GenerationBatchResult, Worker


def launch_logprobs(worker: Worker, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
    """Host: queue a step's log-probabilities behind its sampling, and their copy behind them.

    Nothing, in a step where nobody wants any. SGLang computes those of prompts in the forward pass
    and brings their top tokens over at once, for which the host waits
    (``layers/logits_processor.py:get_top_logprobs``); here nobody waits before the result is read.
    """
    info, batch, label = inputs.logprobs, pending.batch, inputs.label
    if info is None:
        return
    pending.extend_input_len_per_req = list(map(len, batch.ids[: batch.num_extend_reqs]))
    pending.extend_logprob_start_len_per_req = batch.extend_logprob_start_lens
    device, cost, model = worker.device, worker.cost, cast(LogitModel, worker.model)
    found = worker.forward_stream.launch(
        compute, model, device.xp, info, pending.logits_output, pending.next_token_ids,
        name="logprobs", cost=cost.logprobs, label=label, touches=[worker.touches.inputs(batch)],
    )  # fmt: skip
    worker.copy_stream.wait(found)
    pending.logprobs = copy = worker.copy_stream.launch(
        device.bring_to_host, found, name="copy logprobs", cost=cost.copy, label=label
    )
    device.recorder.edge("copy", found.slice_id, copy.slice_id)


def compute(
    model: LogitModel, xp: Arrays, info: LogprobInfo, logits: Array, tokens: Array
) -> Array:
    """Device: how likely each place's token is, [num_places, 1 + 2 * top_logprobs_num]."""
    targets = xp.where(info.is_sampled, tokens[info.samples], info.input_ids)
    return model.logprobs(logits, info.logits_at, targets, info.top_logprobs_num)


def sampled_logits(xp: Arrays, inputs: ForwardBatch, logits: Array) -> Array:
    """Device: the logits that tokens are sampled from, [num_samples, vocab]."""
    info = inputs.logprobs
    if info is None or info.samples_at is None:
        return logits
    return xp.rows_at(logits, info.samples_at)


def read_logprobs(
    pending: GenerationBatchResult, tokens: Sequence[int], values: Sequence[Sequence[float]]
) -> list[Logprobs | None]:
    """Host: what ``values`` [num_places] say of each row, [num_reqs]; None if it wants nothing."""
    batch, places = pending.batch, iter(values)
    found: list[Logprobs | None] = []
    sample = 0
    for row, (req, num_samples) in enumerate(zip(batch.reqs, batch.sample_lens, strict=True)):
        sampled = tokens[sample : sample + num_samples]
        sample += num_samples
        if not req.params.return_logprob:
            found.append(None)
            continue
        prompt = req.prompt[input_tokens(pending, row)]
        top = req.params.top_logprobs_num
        found.append(Logprobs(of(prompt, places, top), of(sampled, places, top)))
    return found


def input_tokens(pending: GenerationBatchResult, row: int) -> slice:
    """Which of a request's prompt tokens its row gives log-probabilities of."""
    if row >= len(pending.extend_input_len_per_req):
        return slice(0)
    start = pending.batch.starts[row]
    first = start + pending.extend_logprob_start_len_per_req[row]
    return slice(first + 1, start + pending.extend_input_len_per_req[row] + 1)


def of(tokens: Sequence[int], places: Iterator[Sequence[float]], top: int) -> list[TokenLogprob]:
    """The next places, which are those of ``tokens``, with the ``top`` most likely tokens each."""
    return [read_place(token, next(places), top) for token in tokens]


def read_place(token: int, place: Sequence[float], top: int) -> TokenLogprob:
    """One place as ``models/sampling.py`` lays it out: there may be more top tokens than wanted."""
    width = (len(place) - 1) // 2
    best = zip(place[1 : 1 + top], map(int, place[1 + width : 1 + width + top]), strict=True)
    return TokenLogprob(place[0], token, tuple(best))
