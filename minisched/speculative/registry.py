"""Which drafters there are, by SGLang's names of the algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.base import Model
from ..scheduler import SchedulerConfig
from .base import Drafter

MIN_N, MAX_N = 1, 3  # lengths of the n-grams that are looked up


def propose_from_history(tokens: Sequence[int], count: int) -> list[int]:
    """Host: at most ``count`` drafts from known tokens (``NGRAM``)."""
    from .prompt_lookup import propose

    return propose(tokens, count, MIN_N, MAX_N) if count else []


def make_drafter(config: SchedulerConfig, device: str, model: Model) -> Drafter:
    """What drafts on the device: ``NGRAM_GPU`` or ``STANDALONE``.

    Raises:
        ValueError: there is no such draft model, or it does not fit the target.
    """
    raise ValueError(f"{config.speculative_algorithm} on {device!r} is not there yet for {model}")
