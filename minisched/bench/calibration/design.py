"""The workloads that costs are fitted to, and those that are predicted: requests alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND
from ...scheduler import SchedulerConfig

MOST_TOKENS = 128  # of prompts in one step
LEAD = 500 * MILLISECOND  # before the first arrival: an engine takes time to be made


@dataclass(frozen=True)
class Load:
    """A workload by its figures: requests alike, ``every`` nanoseconds apart.

    ``work`` is pure-Python work added to each step, in nanoseconds.
    """

    requests: int
    prompt: int
    new: int
    work: int = 0
    every: int = 0

    def make(self, vocab: int) -> list[Request]:
        """The requests; each runs to its length."""
        params = SamplingParams(max_new_tokens=self.new, ignore_eos=True)
        return [
            Request(
                f"r{at}",
                [(31 * at + 7 * place) % (vocab - 8) + 5 for place in range(self.prompt)],
                params,
                arrival_time=LEAD + at * self.every if self.every else 0,
            )
            for at in range(self.requests)
        ]

    @property
    def config(self) -> SchedulerConfig:
        """Room for all of them at once."""
        length = self.prompt + self.new
        return SchedulerConfig(
            max_running_requests=self.requests,
            kv_tokens=(length + 2) * self.requests + 1,
            context_len=length,
            chunked_prefill_size=MOST_TOKENS,
        )


@dataclass(frozen=True)
class Design:
    """The workloads that costs are fitted to: in the serial loop alone, and through every loop.

    The serial ones should reach as far as what is to be predicted, and have every batch size and
    prompt that the line of the forward pass bends at. ``config`` is for all of them; without one
    each has room for itself.
    """

    serial: Sequence[Load]
    loops: Sequence[Load]
    config: SchedulerConfig | None = None

    @property
    def context_len(self) -> int:
        """How long a context the model needs for them."""
        return max(load.config.context_len for load in (*self.serial, *self.loops))


WORK = 20 * MILLISECOND
USUAL = Design(
    serial=(
        Load(1, 32, 12), Load(2, 16, 8), Load(4, 32, 10), Load(8, 16, 8), Load(16, 4, 8),
        Load(1, 160, 3),
    ),
    loops=(Load(4, 8, 12), Load(4, 8, 12, WORK), Load(8, 6, 6)),
)  # fmt: skip
