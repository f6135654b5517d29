"""A draft model for the exact model: it agrees with the target more or less often, as told."""

from __future__ import annotations

from typing import Any

from ..models.hash import HashModel
from ..models.mix import P
from ..models.registry import hash_class

ELSEWHERE = 1_234_567  # added to a state, it makes other logits


class Disagrees:
    """Mixed into a hash model: of ten states, about ``10 - agree`` get logits of their own.

    Which ones, depends on the state alone: so a draft depends on every token before it, and is the
    same on every device. With ``agree`` 10 the drafts are what a greedy target says itself.
    """

    agree = 10

    def settle(self, state: Any) -> Any:
        """States [num_logits] that the logits are hashed from; integers, or an array of them."""
        return (state + (state % 10 >= self.agree) * ELSEWHERE) % P


def open_hash_draft(device: str, target: HashModel, agree: int = 7) -> HashModel:
    """A draft model for ``target`` in a device's arrays, with the same vocabulary.

    Raises:
        ValueError: ``agree`` is not in 0 .. 10, or the device's extra is missing.
    """
    if not 0 <= agree <= 10:
        raise ValueError(f"a hash draft model agrees on {agree} of 10 tokens; it must be 0 to 10.")
    cls = hash_class(device)
    mixed = type("HashDraft", (Disagrees, cls), {"name": "hash draft", "agree": agree})
    draft: HashModel = mixed(target.vocab_size, target.context_len, target.eos_ids)
    return draft
