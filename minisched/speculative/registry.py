"""Which drafters there are, by SGLang's names of the algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from ..devices.registry import library
from ..models.base import Model
from ..scheduler import SchedulerConfig
from .base import Drafter
from .draft_model import DraftModel, check_fits, open_draft_model
from .lookup import LOOKUPS, LookupDrafter, propose

MIN_N, MAX_N = 1, 3  # lengths of the n-grams that are looked up


def propose_from_history(tokens: Sequence[int], count: int) -> list[int]:
    """Host: ``count`` drafts from known tokens, or none (``NGRAM``)."""
    return propose(tokens, count, MIN_N, MAX_N) if count else []


def make_drafter(config: SchedulerConfig, device: str, model: Model) -> Drafter:
    """What drafts on the device: ``NGRAM_GPU`` or ``STANDALONE``.

    Raises:
        ValueError: there is no such draft model, or it does not fit the target.
    """
    count = config.num_draft_tokens
    if config.speculative_algorithm == "NGRAM_GPU":
        return LookupDrafter(LOOKUPS[library(device)], count, MIN_N, MAX_N)
    draft = open_draft_model(config.speculative_draft_model_path, device, model)
    check_fits(draft, model, config.context_len + config.draft_slack)
    return DraftModel(draft, count)
