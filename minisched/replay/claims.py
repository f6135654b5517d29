"""What the chunked-prefill guide claims for a long document, beside what the simulation gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .long_document import Outcome


@dataclass(frozen=True)
class Claim:
    """One sentence of the guide. ``gain`` is how many times better an outcome is than another."""

    about: str
    words: str
    least: float  # the gain that the words mean at least
    gain: Callable[[Outcome, Outcome], float]  # of the second over the first
    show: Callable[[Outcome], str]  # the figure that it is about
    why: str  # what decides it


CLAIMS = (
    Claim(
        "TTFT of the others", "15 s -> 0.5 s", 30.0,
        lambda plain, other: plain.mean_ttft / max(1, other.mean_ttft),
        lambda outcome: f"{outcome.mean_ttft / 1e9:.2f} s",
        "A prompt that is computed in chunks goes first in every prefill batch and takes the whole "
        "chunk, so whoever comes after the document is admitted with its last chunk at the "
        "earliest. Mixing gives tokens of the chunk to those who decode already, not to newcomers; "
        "they would need a share of each chunk.",
    ),
    Claim(
        "throughput", "2-3 x", 2.0,
        lambda plain, other: other.tokens_per_second / plain.tokens_per_second,
        lambda outcome: f"{outcome.tokens_per_second:.0f} tokens/s",
        "The same tokens are computed, and every chunk reads the weights and what came before it "
        "once more. Mixing saves the decode steps that a chunk takes along, no more than that.",
    ),
    Claim(
        "peak memory", "-60 %", 1 / 0.4,
        lambda plain, other: plain.peak_tokens / other.peak_tokens,
        lambda outcome: f"{outcome.peak_tokens:,} tokens a step",
        "A step computes no more than a chunk, and its tokens stand for the memory that "
        "activations take; weights and KV cache are as large as before.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """One claim against one setting."""

    claim: Claim
    before: Outcome
    after: Outcome

    @property
    def gain(self) -> float:
        """How many times better it is with the setting."""
        return self.claim.gain(self.before, self.after)

    @property
    def holds(self) -> bool:
        """Whether the gain is at least what was claimed."""
        return self.gain >= self.claim.least


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Every claim against every setting but the first, which the others are measured by."""
    plain, *others = outcomes
    return [Verdict(claim, plain, other) for claim in CLAIMS for other in others]
