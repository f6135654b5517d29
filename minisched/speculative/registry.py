"""Which drafters there are, by SGLang's names of the algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..devices.registry import library, load
from ..models.base import Model
from ..models.hash import HashModel
from ..models.registry import AUTO, open_model
from ..scheduler import SchedulerConfig
from .base import Drafter
from .draft_model import DraftModel, open_hash_draft
from .lookup import LookupDrafter, propose

MIN_N, MAX_N = 1, 3  # lengths of the n-grams that are looked up
LOOKUPS = {  # library of the device's arrays -> the module of the lookup in it
    "": "minisched.speculative.lookup",
    "torch": "minisched.speculative.prompt_lookup_torch",
    "mlx": "minisched.speculative.prompt_lookup_mlx",
}
DRAFT_MODELS = (
    "a model's directory or name, 'first_layers:N' for the target's own first N layers, or for the "
    "hash model 'hash:N', which agrees with it on N of 10 tokens"
)


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
        extra = library(device)
        lookup: Any = load(LOOKUPS[extra], "lookup", extra, f"NGRAM_GPU on device {device!r}")
        return LookupDrafter(lookup, count, MIN_N, MAX_N)
    draft = open_draft_model(config.speculative_draft_model_path, device, model)
    check_fits(draft, model, config.context_len + config.draft_slack)
    return DraftModel(draft, count)


def open_draft_model(path: str, device: str, target: Model) -> Model:
    """A draft model by its name, which is one of ``DRAFT_MODELS``; in the target's dtype.

    Raises:
        ValueError: there is none of that name, or the target has no such part.
    """
    kind, _, number = path.partition(":")
    if not path:
        raise ValueError(f"STANDALONE needs a draft model: {DRAFT_MODELS}.")
    if kind == "first_layers":
        return first_layers(path, number, target)
    if kind == "hash" and isinstance(target, HashModel):
        if number and not number.isdecimal():
            raise ValueError(f"the draft model is {path!r}, but {number!r} is no whole number.")
        return open_hash_draft(device, target, int(number or 7))
    return open_model(path, device, AUTO if path == "hash" else target.dtype or AUTO)


def first_layers(path: str, number: str, target: Any) -> Model:
    """The target's own first layers.

    Raises:
        ValueError: ``number`` is none of its layers, or it is not a Llama.
    """
    if not hasattr(target, "first_layers"):
        raise ValueError(f"the draft model is {path!r}, but {target.name} can't be cut in two.")
    if not (number.isdecimal() and 1 <= int(number) <= target.num_layers):
        raise ValueError(
            f"the draft model is {path!r}, but {target.name} has layers 1 to {target.num_layers}."
        )
    draft: Model = target.first_layers(int(number))
    return draft


def check_fits(draft: Model, target: Model, context_len: int) -> None:
    """Whether a draft model can draft for a target.

    Raises:
        ValueError: it has another vocabulary, or too short a context.
    """
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model {draft.name} has a vocabulary of {draft.vocab_size} tokens and the "
            f"target {target.name} one of {target.vocab_size}; they must be the same."
        )
    if draft.context_len < context_len:
        raise ValueError(
            f"the draft model {draft.name} has a context of {draft.context_len} tokens, but steps "
            f"reach {context_len}."
        )
