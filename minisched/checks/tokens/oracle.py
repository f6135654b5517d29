"""The truth: one request alone, no cache, no batch, no scheduler. Shares only the hash itself."""

from __future__ import annotations

import math

from ...core import Request, SamplingParams
from ...core.grammar import Grammar
from ...grammar import compile_grammar
from ...models.mix import P, mix
from ...models.sampling import choose
from ...models.tokenizer import ByteTokenizer


def hash_logits(tokens: list[int], vocab_size: int) -> list[float]:
    """What the hash model predicts after ``tokens``, straight from its definition."""
    lower = upper = 0
    for position, token in enumerate(tokens):
        lower += mix(mix(token, position), position)
        upper += mix(mix(lower % P, position), position)
    hidden = mix(upper % P, len(tokens))
    return [mix(hidden, token) * 10 / P for token in range(vocab_size)]


def hash_oracle(
    prompt: list[int],
    params: SamplingParams,
    key: int,
    vocab_size: int,
    eos_ids: frozenset[int],
    grammar: Grammar | None = None,
    late_penalties: bool = False,
    late_stop_strings: bool = False,
) -> list[int]:
    """All tokens of one request; with a grammar, its mask is on the logits of every position.

    What is late does without the newest token.
    """
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else eos_ids)
    output: list[int] = []
    while len(output) < params.max_new_tokens:
        tokens, heard = prompt + output, output[:-1] if late_penalties else output
        logits = penalised(hash_logits(tokens, vocab_size), prompt, heard, params)
        if grammar is not None:
            logits = masked(logits, grammar.fill_vocab_mask())
        output.append(choose(logits, params, key, len(tokens)))
        if grammar is not None:
            assert grammar.accept_token(output[-1])
        if output[-1] in stops or (grammar is not None and grammar.is_terminated):
            break
        if says(output[:-1] if late_stop_strings else output, params.stop):
            break
    return output


def penalised(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    """Logits after what a request wants of single tokens, straight from its definition."""
    changed = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        logit -= params.frequency_penalty * output.count(token)
        logit -= params.presence_penalty if token in output else 0.0
        changed.append(logit + params.logit_bias.get(token, 0.0))
    return changed


def says(output: list[int], strings: tuple[str, ...]) -> bool:
    """Whether the whole output, read as bytes, has one of the strings in it."""
    text = ByteTokenizer().decode(output)
    return any(string in text for string in strings)


def masked(logits: list[float], mask: bytes) -> list[float]:
    """Logits of which only the tokens with a bit in the mask can be chosen."""
    bits = int.from_bytes(mask, "little")
    return [logit if bits >> token & 1 else -math.inf for token, logit in enumerate(logits)]


def grammar_of(req: Request, vocab_size: int, eos_ids: frozenset[int]) -> Grammar | None:
    """A request's grammar at its start, or None; ValueError where it can't have one."""
    if not req.params.has_grammar:
        return None
    return compile_grammar(req.params, vocab_size, eos_ids, None)
