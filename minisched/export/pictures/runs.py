"""The runs that several pictures share: every loop on one common workload."""

from __future__ import annotations

from functools import cache

from ...trace import Trace
from ..recipes.recipe import a_bit_of_everything


@cache
def run_of(loop: str) -> Trace:
    """One loop on the common workload of five requests."""
    return a_bit_of_everything(loop).run()
