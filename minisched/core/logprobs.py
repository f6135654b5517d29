"""Log-probabilities: what a request may ask for, and what it is given.

A token's log-probability is ``log_softmax`` of the model's own logits at the position before it, in
float32 (float64 where the logits are), before penalties, ``logit_bias``, mask and temperature: how
likely the model finds it, not how likely it was to be drawn. That is vLLM's default
(``logprobs_mode`` ``raw_logprobs``; ``processed_logprobs`` come behind all of these, top-k and
top-p too, and there are ``raw_logits`` and ``processed_logits``). SGLang gives the same for a
prompt; its output log-probabilities are taken in the sampler, behind penalties, bias, mask and
temperature (before the temperature alone with ``SGLANG_RETURN_ORIGINAL_LOGPROB``).
"""

from __future__ import annotations

from typing import NamedTuple

from .sampling import SamplingParams


class TokenLogprob(NamedTuple):
    """A token where it stands, and what else might have stood there.

    ``top_logprobs`` has the most likely tokens there, most likely first, of equals the lower id
    first. ``logprob`` is None where the logits at the position before were not asked for.
    """

    logprob: float | None
    token_id: int
    top_logprobs: tuple[tuple[float, int], ...] = ()


class Logprobs(NamedTuple):
    """Those that a row of a step gives, or those that come with one output."""

    input_token_logprobs: list[TokenLogprob]  # of the prompt
    output_token_logprobs: list[TokenLogprob]  # of what was sampled


def next_logprob_at(params: SamplingParams, num_prompt: int, num_known: int) -> int:
    """The position whose logits a prompt's log-probabilities need next, with ``num_known`` there.

    The logits at a position say how likely the token behind it is, so the first log-probability,
    for which nobody asks the position before, is None (SGLang ``_process_input_token_logprobs``).
    Where nothing is missing the position lies past all that the request can have.
    """
    start = params.logprob_start_len
    if not params.return_logprob or start < 0 or start + num_known == num_prompt:
        return num_prompt + params.max_new_tokens
    return start + max(0, num_known - 1)


def logprob_problem(params: SamplingParams, num_prompt: int, vocab_size: int) -> str | None:
    """One sentence on what a request may not ask for, given its prompt and the model, or None."""
    count, start = params.top_logprobs_num, params.logprob_start_len
    if count > vocab_size:
        return f"top_logprobs_num is {count}, but the vocabulary has only {vocab_size} tokens."
    if start >= num_prompt:
        return (
            f"logprob_start_len is {start}, but the prompt has {num_prompt} tokens, so it must be "
            f"at most {num_prompt - 1}, or -1 for none."
        )
    return None
