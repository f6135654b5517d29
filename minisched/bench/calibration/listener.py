"""A cost model that also hears of which rows each forward pass is: no trace has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...devices.cost import CostModel

Rows = list[tuple[int, int]]  # first new position and new positions of each row


class Listener:
    """A cost model that also notes the rows of each forward pass: no trace has them.

    Steps are launched in the order in which their forward passes run.
    """

    def __init__(self, cost: CostModel, heard: list[Rows] | None = None) -> None:
        self.cost = cost
        self.heard: list[Rows] = [] if heard is None else heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cost, name)

    def of_loop(self, loop: str) -> Listener:
        """The same for one loop."""
        return Listener(self.cost.of_loop(loop), self.heard)

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """The cost of a forward pass, which is noted."""
        self.heard.append(list(rows))
        return self.cost.forward_rows(self.heard[-1])
