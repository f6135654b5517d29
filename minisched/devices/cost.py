"""The cost of a step: its virtual time on ``sim``, and added host work on other devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

MICROSECOND = 1_000
MILLISECOND = 1_000_000
ADDED_TO = ("schedule", "process")  # phases that share the added host work of a run


@dataclass(frozen=True)
class Pace:
    """Delays of a real machine: between phases and ops, and while both sides work together.

    ``after``: nanoseconds of host work after a phase that no slice shows. ``start``: from the time
    when an op could start to its start. ``wake``: from an op's end until the host that waited for
    it goes on. Of 1000 nanoseconds in which the host and a stream both work, the host loses
    ``host_lost`` to the interpreter lock and shared cores, and the device ``device_lost``.
    """

    after: Mapping[str, int] = field(default_factory=dict)
    start: Mapping[str, int] = field(default_factory=dict)
    wake: int = 0
    host_lost: int = 0
    device_lost: int = 0

    @property
    def is_shared(self) -> bool:
        """True if host and device slow each other down."""
        return bool(self.host_lost or self.device_lost)


IDEAL_PACE = Pace()


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
    logprobs: int = 0  # log-probabilities, in a step with a request for them
    pace: Pace = IDEAL_PACE

    def phase(self, name: str, rows: int = 0, tokens: int = 0) -> int:
        """Return the cost of a phase of the host for a batch of rows and new tokens."""
        return self.host.get(name, 0)

    def forward(self, num_tokens: int) -> int:
        """Return the cost of a forward pass over ``num_tokens`` positions."""
        return self.forward_base + self.forward_per_token * num_tokens

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """Return the cost of a forward pass over rows of (first new position, new positions)."""
        return self.forward(sum(length for _, length in rows))

    def sample_rows(self, rows: int) -> int:
        """Return the cost of sampling ``rows`` tokens."""
        return self.sample

    def of_loop(self, loop: str) -> CostModel:
        """Return the costs of one loop, where each loop was measured."""
        return self

    def with_host_work(self, nanoseconds: int) -> Self:
        """Return costs with pure-Python work added to each step, half before and half after."""
        added = {name: self.host.get(name, 0) + nanoseconds // 2 for name in ADDED_TO}
        return replace(self, host={**self.host, **added})


# About what a small model on a fast GPU looks like, times ten so that figures read in milliseconds.
# The host's shares are made up, so that each phase has room for its name: schedule is a third of it
# here. Measured with 256 running (traces/bench/phases.md), schedule is 13 %, prepare 32, launch 29,
# process 19 and output 7: building inputs is the largest part, which overlap hides.
SIM_COST = CostModel(
    host={
        "receive": 300 * MICROSECOND,
        "schedule": 2200 * MICROSECOND,
        "prepare": 1000 * MICROSECOND,
        "advance step": 200 * MICROSECOND,  # the same rows, one position on
        "launch": 500 * MICROSECOND,
        "launch eager": 3000 * MICROSECOND,  # op by op, where no captured graph is large enough
        "fill": 300 * MICROSECOND,  # writing tokens into inputs that are laid out already
        "postprocess": 700 * MICROSECOND,  # of a design with a second scheduler layer
        "mask": 1500 * MICROSECOND,  # masks of grammars, and penalties
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


def of_milliseconds(host: float, device: float, copy: float, token: float = 0) -> CostModel:
    """Return the costs of one step, in ms; half of ``host`` is before the step, half after it.

    Each token of a step costs the device ``token`` in addition to ``device``.
    """
    before = round(host * MILLISECOND) // 2
    return CostModel(
        {"schedule": before, "process": round(host * MILLISECOND) - before},
        forward_base=round(device * MILLISECOND),
        forward_per_token=round(token * MILLISECOND),
        copy=round(copy * MILLISECOND),
    )
