"""What is asked for in ``bench generation``: some requests at once, each of a fixed length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice

LENGTHS = (256, 64, 128, 64, 512, *(64,) * 11)  # tokens of prompts, over and over
BATCHES = (1, 16)  # requests at once; with more sizes a run takes longer than half an hour
NEW_TOKENS = 64


@dataclass(frozen=True)
class Load:
    """Requests that come at once; each runs to its length."""

    prompt_lens: tuple[int, ...]
    new_tokens: int = NEW_TOKENS

    @property
    def name(self) -> str:
        """Batch size, and what is asked for."""
        low, high = min(self.prompt_lens), max(self.prompt_lens)
        asked = f"{low}" if low == high else f"{low} to {high}"
        return f"batch {len(self.prompt_lens)}, prompts of {asked}, {self.new_tokens} new"

    @property
    def tokens(self) -> int:
        """How many new tokens all requests get."""
        return len(self.prompt_lens) * self.new_tokens

    @property
    def question(self) -> dict[str, object]:
        """For the processes: prompts of small token ids that differ from each other."""
        prompts = [
            [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
            for row, length in enumerate(self.prompt_lens)
        ]
        return {"prompts": prompts, "new_tokens": self.new_tokens}


@dataclass(frozen=True)
class Choice:
    """Which loads to measure; ``batch`` is one batch size instead of those that a part has."""

    batch: int | None = None
    new_tokens: int = NEW_TOKENS

    def loads(
        self, batches: tuple[int, ...] = BATCHES, lengths: tuple[int, ...] = LENGTHS
    ) -> tuple[Load, ...]:
        """A load for each batch size, with prompts as long as ``lengths`` says, over and over."""
        chosen = (self.batch,) if self.batch else batches
        return tuple(
            Load(tuple(islice(cycle(lengths), batch)), self.new_tokens) for batch in chosen
        )
