"""Log-probabilities: the options of a request, and the values that it gets.

The log-probability of a token is ``log_softmax`` of the model's logits at the position before it,
in float32 (float64 if the logits are), before penalties, ``logit_bias``, mask and temperature. It
is the probability in the model, not in the draw. This is vLLM's default (``logprobs_mode``
``raw_logprobs``; ``processed_logprobs`` are taken after all of these, top-k and top-p too). SGLang
gives the same for a prompt. Its sampler takes those of the output after penalties, bias, mask and
temperature (with ``SGLANG_RETURN_ORIGINAL_LOGPROB`` before the temperature).
"""

from __future__ import annotations

from typing import NamedTuple

from .sampling import SamplingParams


class TokenLogprob(NamedTuple):
    """The log-probability of a token, and those of the most likely tokens at its position.

    ``top_logprobs`` begins with the most likely token; of equal ones the lower id is first.
    ``logprob`` is None if the request does not want the logits at the position before.
    """

    logprob: float | None
    token_id: int
    top_logprobs: tuple[tuple[float, int], ...] = ()


class Logprobs(NamedTuple):
    """The log-probabilities of one row of a step, or of one output."""

    input_token_logprobs: list[TokenLogprob]  # of the prompt
    output_token_logprobs: list[TokenLogprob]  # of the sampled tokens


def next_logprob_at(params: SamplingParams, num_prompt: int, num_known: int) -> int:
    """Return the next position with logits for a prompt's log-probabilities, after ``num_known``.

    The logits at a position belong to the token after it. The first log-probability would need the
    position before ``logprob_start_len``, so it is None (SGLang ``_process_input_token_logprobs``).
    If none is missing, return a position past the end of the request.
    """
    start = params.logprob_start_len
    if not params.return_logprob or start < 0 or start + num_known == num_prompt:
        return num_prompt + params.max_new_tokens
    return start + max(0, num_known - 1)


def logprob_problem(params: SamplingParams, num_prompt: int, vocab_size: int) -> str | None:
    """Return a sentence on an option that this prompt or this model does not allow, or None."""
    count, start = params.top_logprobs_num, params.logprob_start_len
    if count > vocab_size:
        return f"top_logprobs_num is {count}, but the vocabulary has only {vocab_size} tokens."
    if start >= num_prompt:
        return (
            f"logprob_start_len is {start}, but the prompt has {num_prompt} tokens, so it must be "
            f"at most {num_prompt - 1}, or -1 for none."
        )
    return None
