"""The door: why a request can never run here, in one sentence that names the value and the limit.

Every field of a request is looked at here, before anything else reads it (``Request.problem``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core import Request, SamplingParams
from ..core.logprobs import logprob_problem
from ..core.sampling_types import shown

if TYPE_CHECKING:
    from .config import SchedulerConfig


def find_refusal(config: SchedulerConfig, req: Request) -> str | None:
    """The first reason that is found, or None."""
    return (
        req.problem()
        or outside_the_vocabulary(config, req.prompt)
        or not_combined(config, req.params)
        or out_of_reach(config, req.params)
        or logprob_problem(req.params, len(req.prompt), config.vocab_size)
        or too_long(config, req)
    )


def outside_the_vocabulary(config: SchedulerConfig, prompt: Sequence[int]) -> str | None:
    """Whether the prompt is made of the model's tokens."""
    if not prompt:
        return "the prompt is empty, but it needs at least one token."
    lowest, highest = min(prompt), max(prompt)
    if lowest >= 0 and highest < config.vocab_size:
        return None
    return (
        f"token id {shown(lowest if lowest < 0 else highest)} is outside the vocabulary, "
        f"which ends at {config.vocab_size - 1}."
    )


def not_combined(config: SchedulerConfig, params: SamplingParams) -> str | None:
    """Whether the loop's original does not combine it with what the options ask for."""
    for feature, is_wanted in (
        ("grammar", params.has_grammar),
        ("penalties", params.has_penalties),
    ):
        if is_wanted and feature in config.refuses:
            return f"this loop takes no {feature}: {config.refuses[feature]}."
    return None


def out_of_reach(config: SchedulerConfig, params: SamplingParams) -> str | None:
    """Whether this model can do what the options ask for."""
    for token in params.logit_bias:
        if not 0 <= token < config.vocab_size:
            return (
                f"logit_bias is for token {shown(token)}, which is outside the vocabulary: "
                f"it must be between 0 and {config.vocab_size - 1}."
            )
    if params.stop and not config.has_tokenizer:
        stop = shown(params.stop[0])
        return f"stop is {stop}, but a model without a tokenizer has no text to search."
    if params.return_logprob and not config.has_logits:
        return "return_logprob is on, but this model computes no logits to take them from."
    return None


def too_long(config: SchedulerConfig, req: Request) -> str | None:
    """Whether it could ever have enough memory, and fits into the context."""
    room = config.num_slots - config.draft_slack
    drafts = f" (and {config.draft_slack} for drafts)" if config.draft_slack else ""
    for limit, what in (
        (config.context_len, f"the context of {config.context_len} tokens"),
        (room, f"the KV pool of {room} slots{drafts}"),
    ):
        if req.max_device_len > limit:
            return (
                f"the prompt has {len(req.prompt)} tokens and max_new_tokens is "
                f"{req.params.max_new_tokens}, together more than {what}."
            )
    return None
