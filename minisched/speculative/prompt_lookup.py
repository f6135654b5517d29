"""Prompt lookup: what followed the last few tokens the last time they occurred.

vLLM ``v1/spec_decode/ngram_proposer.py``, SGLang's ``NGRAM``. The longest suffix of the history
that occurred before wins, then its most recent occurrence. (So SGLang's by default; vLLM takes the
earliest one, which knows less of the present topic.) Where the tokens that followed reach the end
of the history, reading goes on with the drafts themselves, so that text which goes in circles is
drafted in full; both originals stop short there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..devices.base import Buffer
from ..devices.vector import Vector


def propose(tokens: Sequence[int], num_draft_tokens: int, min_n: int, max_n: int) -> list[int]:
    """Host: drafts of the tokens behind ``tokens``, ``num_draft_tokens`` of them or none.

    None where no suffix of ``min_n`` to ``max_n`` tokens occurred before.
    """
    length = len(tokens)
    for n in range(min(max_n, length - 1), min_n - 1, -1):
        suffix = tokens[length - n :]
        for start in range(length - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                return follow(tokens, length - n - start, num_draft_tokens)
    return []


def follow(tokens: Sequence[int], distance: int, count: int) -> list[int]:
    """``count`` tokens, each equal to the one ``distance`` places before it."""
    return [tokens[len(tokens) - distance + at % distance] for at in range(count)]


def lookup(
    history: Buffer,
    max_len: int,
    rows: Sequence[int],
    lengths: Vector,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> Vector:
    """Device (``sim``): drafts for every row, [num_reqs * num_draft_tokens].

    ``history[row * max_len + position]`` is a token, ``lengths`` [num_reqs] (at least 1) says how
    many each of ``rows`` has. Where nothing is found, the last token is drafted again and again:
    a step has one shape, so it has to verify something (vLLM ``ngram_proposer_gpu.py``).
    """
    drafts = Vector()
    for row, length in zip(rows, lengths, strict=True):
        tokens = history[row * max_len : row * max_len + length]
        drafts += propose(tokens, num_draft_tokens, min_n, max_n) or follow(
            tokens, 1, num_draft_tokens
        )
    return drafts
