"""A token whose logits were not numbers (NaN) goes to the host as -1 - token: so the host can tell.

To torch a NaN is the largest of all logits, and to ``sampling.py`` too. So the one that was found
to be largest tells whether there is any, and nobody looks at the vocabulary twice. (In MLX ``max``
tells, for ``argmax`` has not always done so. SGLang looks for NaN with ``--enable-nan-detection``,
and then samples from what is left: ``layers/sampler.py``.) All of this happens on the device, and
nobody waits for it: the mark comes to the host with the token. Only the host's copy has it: steps
behind are in flight already, and their models must be given a token of the vocabulary.
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
