"""What steps cost on a machine where they were measured: the costs that ``calibrate`` fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from .cost import ADDED_TO
from .profiles import AttentionCost

Knots = tuple[tuple[int, int], ...]  # (tokens, nanoseconds), tokens ascending


@dataclass(frozen=True)
class HostCost:
    """The host's side of one loop: nanoseconds a phase, for each row, and for each new token.

    ``after`` is ``Pace.after``: what follows a phase and is no slice.
    """

    base: Mapping[str, int] = field(default_factory=dict)
    per_row: Mapping[str, int] = field(default_factory=dict)
    per_token: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredCost(AttentionCost):
    """Costs with which ``sim`` predicts a machine; all in nanoseconds unless the name says more.

    A forward pass takes what ``forward_knots`` say of its new tokens, padded to a multiple of
    ``pad_to``, with straight lines between; ``forward_per_row`` and ``AttentionCost`` come on top.
    ``loops`` has the host's side of each loop; one that was not measured takes that of ``serial``.
    Of 1000 nanoseconds of host work that a run is told to add, ``added_work`` pass.
    """

    forward_knots: Knots = ()
    forward_per_row: int = 0
    sample_per_row: int = 0
    pad_to: int = 1
    host_side: HostCost = HostCost()
    loops: Mapping[str, HostCost] = field(default_factory=dict)
    host_work: int = 0
    added_work: int = 1000

    def phase(self, name: str, rows: int = 0, tokens: int = 0) -> int:
        """The cost of a phase of the host for a batch of so many rows and new tokens."""
        side = self.host_side
        growth = rows * side.per_row.get(name, 0) + tokens * side.per_token.get(name, 0)
        added = self.host_work // 2 * self.added_work // 1000 if name in ADDED_TO else 0
        return side.base.get(name, 0) + growth + added

    def forward(self, num_tokens: int) -> int:
        """The cost of a forward pass over ``num_tokens`` positions, without attention."""
        padded = -(-num_tokens // self.pad_to) * self.pad_to
        return interpolate(self.forward_knots, padded)

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """The cost of a forward pass over rows of (first new position, new positions)."""
        rows = list(rows)
        return super().forward_rows(rows) + self.forward_per_row * len(rows)

    def sample_rows(self, rows: int) -> int:
        """The cost of sampling so many tokens."""
        return self.sample + self.sample_per_row * rows

    def of_loop(self, loop: str) -> MeasuredCost:
        """The same with the host's side of one loop; its relay and options make no difference."""
        name = loop.partition(":")[0].partition("(")[0]
        side = self.loops.get(name, self.loops.get("serial", self.host_side))
        return replace(self, host_side=side, pace=replace(self.pace, after=side.after))

    def with_host_work(self, nanoseconds: int) -> Self:
        """The same with so much pure-Python work added to each step, half before, half after."""
        return replace(self, host_work=nanoseconds)


def interpolate(knots: Knots, at: int) -> int:
    """The value at ``at``, never less than 0.

    Beyond the first and the last knot, the line next to it goes on; measured knots that lie close
    together may be so steep that it would get below 0.
    """
    if len(knots) < 2:
        return knots[0][1] if knots else 0
    right = min(max(1, bisect_right(knots, (at, -1))), len(knots) - 1)
    (x0, y0), (x1, y1) = knots[right - 1], knots[right]
    return max(0, y0 + (y1 - y0) * (at - x0) // (x1 - x0))
