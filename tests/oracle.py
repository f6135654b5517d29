"""The truth: one request alone, no cache, no batch, no scheduler. Shares only the hash itself."""

from __future__ import annotations

from minisched.core import SamplingParams
from minisched.models.mix import P, mix
from minisched.models.sampling import choose


def hash_logits(tokens: list[int], vocab_size: int) -> list[float]:
    """What the hash model predicts after ``tokens``, straight from its definition."""
    lower = upper = 0
    for position, token in enumerate(tokens):
        lower += mix(mix(token, position), position)
        upper += mix(mix(lower % P, position), position)
    hidden = mix(upper % P, len(tokens))
    return [mix(hidden, token) * 10 / P for token in range(vocab_size)]


def hash_oracle(
    prompt: list[int], params: SamplingParams, key: int, vocab_size: int, eos_ids: frozenset[int]
) -> list[int]:
    """All tokens of one request."""
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else eos_ids)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + params.max_new_tokens:
        logits = hash_logits(tokens, vocab_size)
        tokens.append(choose(logits, params, key, len(tokens)))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]
