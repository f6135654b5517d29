"""What a request's history and wishes do to its logits, before a token is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogitAdjustment:
    """How one row of logits is changed, in this order (SGLang ``sampling/penaltylib/``).

    ``repetition_penalty``: the logit of every token in ``seen`` (prompt and output) is divided by
    it where positive, else multiplied. ``frequency_penalty`` times its count in ``counts`` (output
    only) is taken off, and ``presence_penalty`` once. ``logit_bias`` is added. Of tokens whose bit
    is not set in ``vocab_mask`` (bit i % 8 of byte i // 8), none can be chosen.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seen: Set[int] = frozenset()
    counts: Mapping[int, int] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    vocab_mask: bytes | None = None
