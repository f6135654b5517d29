"""A token whose logits were not numbers (NaN) travels as minus itself, less one: so the host can tell.

Most of what makes NaN a maximum costs nothing: torch and MLX count one as the largest logit, and so
does ``sampling.py``. So whether a row has any shows in the one logit that was found to be largest,
and nobody looks at the vocabulary twice (SGLang ``layers/sampler.py`` does so with
``--enable-nan-detection``, and then samples from what is left). Only the host sees the mark: steps
behind may already be in flight, and they take the token for what it is, one of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..devices.base import Array, Arrays


def without_marks(xp: Arrays, marked: Array) -> Array:
    """On the device: valid tokens, whatever their logits were."""
    return xp.where(marked < 0, -marked - 1, marked)


def read_marks(marked: Sequence[int]) -> tuple[Sequence[int], frozenset[int]]:
    """On the host: the tokens, and at which places logits were not numbers."""
    if not marked or min(marked) >= 0:
        return marked, frozenset()
    places = frozenset(at for at, token in enumerate(marked) if token < 0)
    return [-1 - token if token < 0 else token for token in marked], places
