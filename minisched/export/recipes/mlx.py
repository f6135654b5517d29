"""The runs of the lazy chain: who feeds whom, and when the chain breaks."""

from __future__ import annotations

from ...core import Request
from ...devices.cost import MILLISECOND
from .recipe import Recipe, tokens


def lazy_chain() -> Recipe:
    """A chain of three that a finish breaks (a), then an arrival (d), then the ends of all."""
    requests = [
        Request("a", range(6), tokens(5)),
        Request("b", range(10, 18), tokens(12)),
        Request("c", range(20, 24), tokens(12)),
        Request("d", range(30, 35), tokens(4), arrival_time=98 * MILLISECOND),
    ]
    return Recipe("mlx_async", requests)


RECIPES = {"lazy_chain": lazy_chain()}
