"""What every mutant is tried with first: many small runs, each with every law held against it.

Not collected by the ordinary run: ``minisched bench mutation`` names it. An item is one workload of
``minisched check --workloads`` on one loop, of some milliseconds, so that a mutant dies soon.
"""

from __future__ import annotations

import pytest

from minisched.checks.draw.designs import all_designs
from minisched.checks.many import try_seed

EACH = 3  # workloads for each loop, relay and option


def cases() -> list[tuple[int, str]]:
    """Seeds and loops, so that every seed has another few of the loops."""
    names = [design.name for design in all_designs()]
    return [
        (index + turn * len(names), name)
        for turn in range(EACH)
        for index, name in enumerate(names)
    ]


@pytest.mark.parametrize(("seed", "loop"), cases())
def test_every_law_holds(seed: int, loop: str) -> None:
    for tried in try_seed(seed, [loop]):
        assert not tried.findings, (seed, loop, tried.findings)
