"""What a step costs: on ``sim`` the virtual time it takes, elsewhere host work that is added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MICROSECOND = 1_000
MILLISECOND = 1_000_000


@dataclass(frozen=True)
class CostModel:
    """Nanoseconds for each phase of the host and each op of the device.

    ``host`` maps phases to their cost; a phase that is not named costs nothing. On a wall-clock
    device the host really spends this time in pure Python, on top of its own work.
    """

    host: Mapping[str, int] = field(default_factory=dict)
    forward_base: int = 0
    forward_per_token: int = 0
    sample: int = 0
    copy: int = 0
    verify: int = 0  # comparing drafts with what was sampled
    draft: int = 0  # one forward pass of a draft model, or one lookup on the device
    recv: int = 0  # the hidden states of a step, from a pipeline stage to the next one
    logprobs: int = 0  # log-probabilities, in a step where somebody wants some

    def forward(self, num_tokens: int) -> int:
        """The cost of a forward pass over ``num_tokens`` positions."""
        return self.forward_base + self.forward_per_token * num_tokens


# About what a small model on a fast GPU looks like, times ten so that figures read in milliseconds.
SIM_COST = CostModel(
    host={
        "receive": 300 * MICROSECOND,
        "schedule": 2200 * MICROSECOND,
        "prepare": 1000 * MICROSECOND,
        "advance step": 200 * MICROSECOND,  # the same rows, one position on
        "launch": 500 * MICROSECOND,
        "launch eager": 3000 * MICROSECOND,  # op by op, where no captured graph is large enough
        "fill": 300 * MICROSECOND,  # tokens from the host into inputs that are laid out already
        "postprocess": 700 * MICROSECOND,  # where a second layer keeps a book of its own
        "mask": 1500 * MICROSECOND,  # what a grammar lets each row sample, or its penalties
        "send": 300 * MICROSECOND,  # KV, or where it may go; see loops/pd.py
        "process": 2200 * MICROSECOND,
        "output": 800 * MICROSECOND,
    },
    forward_base=8 * MILLISECOND,
    forward_per_token=50 * MICROSECOND,
    sample=1 * MILLISECOND,
    copy=500 * MICROSECOND,
    verify=200 * MICROSECOND,
    draft=800 * MICROSECOND,
    recv=200 * MICROSECOND,
    logprobs=300 * MICROSECOND,
)
NO_COST = CostModel()
