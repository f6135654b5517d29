"""Which of a step's logits say how likely which token is, laid out for the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

from ..core import ModelWorkerBatch
from ..devices.base import Array, Arrays


@dataclass(frozen=True)
class LogprobInfo:
    """What the log-probabilities of a step are made of: a *place* for each, row after row.

    In a row those of the prompt come first, then one for each token that it samples. With prompt
    log-probabilities there are more logits than samples, and sampling has to take its own.
    """

    samples_at: Array  # [num_samples] among the logits; None: all of them
    logits_at: Array  # [num_places] among the logits
    is_sampled: Array  # [num_places] whether the token is sampled here
    samples: Array  # [num_places] among the samples, where it is
    input_ids: Array  # [num_places] the token, where it is the prompt's
    top_logprobs_num: int  # the most that anybody wants


def logit_lens_of(batch: ModelWorkerBatch) -> list[int]:
    """Of how many last positions each row gives logits, [num_reqs]: at least where it samples."""
    lens, wanted = batch.sample_lens, batch.logprobs
    if wanted is None:
        return lens
    parts = zip(batch.extend_seq_lens, wanted.extend_logprob_start_lens, lens, strict=False)
    prompts = [max(length - start, samples) for length, start, samples in parts]
    return prompts + lens[len(prompts) :]


def make_logprob_info(
    batch: ModelWorkerBatch, logit_lens: list[int], xp: Arrays
) -> LogprobInfo | None:
    """The places of a batch; None if nobody wants any."""
    wanted = batch.logprobs
    if wanted is None:
        return None
    samples_at: list[int] = []
    places: list[tuple[int, bool, int, int]] = []  # as the fields of LogprobInfo
    first = 0
    columns = zip(
        logit_lens,
        batch.sample_lens,
        wanted.top_logprobs_nums,
        chain(wanted.extend_input_logprob_token_ids, repeat([])),
        strict=False,
    )
    for num_logits, num_samples, top, tokens in columns:
        end = first + num_logits
        sampled = range(end - num_samples, end)
        if top >= 0:
            places += [(at, False, 0, token) for at, token in enumerate(tokens, first)]
            places += [(at, True, sample, 0) for sample, at in enumerate(sampled, len(samples_at))]
        samples_at += sampled
        first = end
    logits_at, is_sampled, samples, input_ids = zip(*places, strict=True)
    return LogprobInfo(
        xp.asarray(samples_at) if len(samples_at) < first else None,
        xp.asarray(logits_at),
        xp.mask(is_sampled),
        xp.asarray(samples),
        xp.asarray(input_ids),
        max(wanted.top_logprobs_nums),
    )
