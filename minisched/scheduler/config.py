"""The scheduler's limits, and what makes a request unacceptable."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Request


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes and rules of one scheduler.

    ``run_ahead``, ``foresee_length`` and ``new_token_ratio`` are explained where they are used
    (``policy/decode.py``). ``chunk_size`` is the most prompt tokens of one batch.

    Raises:
        ValueError: a size is not positive, or ``new_token_ratio`` is not between 0 and 1.
    """

    num_pages: int = 1024
    page_size: int = 1
    max_running_requests: int = 16
    chunk_size: int = 128
    context_len: int = 1024
    vocab_size: int = 257
    eos_ids: frozenset[int] = frozenset()
    run_ahead: bool = False
    foresee_length: bool = True
    new_token_ratio: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_pages", "page_size", "max_running_requests", "chunk_size", "context_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but it must be at least 1.")
        if not 0.0 <= self.new_token_ratio <= 1.0:
            raise ValueError(
                f"new_token_ratio is {self.new_token_ratio}, but it must be between 0 and 1."
            )

    @property
    def num_slots(self) -> int:
        """KV slots that can be handed out."""
        return self.num_pages * self.page_size

    def refusal(self, req: Request) -> str | None:
        """One sentence on why ``req`` can never run here, or None."""
        if problem := req.params.problem():
            return problem
        if not req.prompt:
            return "the prompt is empty, but it needs at least one token."
        outside = [token for token in req.prompt if not 0 <= token < self.vocab_size]
        if outside:
            return (
                f"token id {outside[0]} is outside the vocabulary, "
                f"which ends at {self.vocab_size - 1}."
            )
        for limit, what in (
            (self.context_len, f"the context of {self.context_len} tokens"),
            (self.num_slots, f"the KV pool of {self.num_slots} slots"),
        ):
            if req.max_device_len > limit:
                return (
                    f"the prompt has {len(req.prompt)} tokens and max_new_tokens is "
                    f"{req.params.max_new_tokens}, together more than {what}."
                )
        return None
