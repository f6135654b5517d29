"""A made-up workload in the shape of Azure's conversation trace, where the trace is not at hand.

The medians and the spread are those of AzurePublicDataset's AzureLLMInferenceDataset2023 (conv):
prompts of 1,020 tokens in the median, answers of 129, 5.5 requests a second.
"""

from __future__ import annotations

import random
from pathlib import Path

PROMPT, PROMPT_SPREAD = 1020, 1.0  # median in tokens, and sigma of its logarithm
ANSWER, ANSWER_SPREAD = 129, 0.86
LONGEST_PROMPT, LONGEST_ANSWER = 14000, 1000
RATE = 5.5  # requests a second


def make_trace(path: Path, requests: int, seed: int = 0) -> None:
    """Write that many requests as CSV, the same for the same seed."""
    draw, time = random.Random(seed), 0.0
    with path.open("w", encoding="utf-8") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for _ in range(requests):
            prompt = length(draw, PROMPT, PROMPT_SPREAD, LONGEST_PROMPT)
            answer = length(draw, ANSWER, ANSWER_SPREAD, LONGEST_ANSWER)
            file.write(f"{time:.6f},{prompt},{answer}\n")
            time += draw.expovariate(RATE)


def length(draw: random.Random, median: int, spread: float, most: int) -> int:
    """Tokens, log-normal."""
    return min(most, max(1, round(median * draw.lognormvariate(0, spread))))
