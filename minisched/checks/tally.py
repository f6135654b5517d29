"""What many cases came to: how many there were, and how many of them broke which law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .draw.axes import OF_A_RUN, Table, axes_of_design, of_a_design, table_of
from .draw.designs import read_design
from .draw.draw import draw, loops_that_refuse
from .many import LAWS, Tried

CAUSES = (
    "lifetime", "race", "touches", "ownership", "leak", "deadlock", "crash", "order", "progress",
    "livelock", "budget", "time", "abort", "ends", "client", "identity", "logprobs",
)  # fmt: skip
"""The laws again, a cause before what follows from it: wrong tokens follow from anything. Lifetimes
are judged where somebody watches the memory (``Device.lifetimes``), which is in tests."""


class Failure(NamedTuple):
    """One law that one case broke; seed and loop repeat it."""

    seed: int
    loop: str
    law: str
    sentence: str


@dataclass(frozen=True)
class Tally:
    """The cases of the workloads from ``seed`` on, in their order.

    A case is one workload on one loop, with one relay and its options. ``loops`` are those that it
    was to be on; without any, all.
    """

    seed: int
    workloads: int
    device: str
    cases: Sequence[Tried]
    loops: Sequence[str] = ()

    @cached_property
    def failures(self) -> list[Failure]:
        """Every law that was broken, in the order of the seeds."""
        return [
            Failure(case.seed, case.loop, item.law, item.sentence)
            for case in self.cases
            for item in case.findings
        ]

    @property
    def first(self) -> list[Failure]:
        """The first failure of each law, causes first; what is shown and made small is the first.

        Of an early free, tokens that are wrong are the last thing to look at.
        """
        by_law = {failure.law: failure for failure in reversed(self.failures)}
        return [by_law[law] for law in CAUSES if law in by_law]

    def holding(self, law: str, loop: str | None = None) -> int:
        """Cases that were looked at for a law and did not break it; all, or those of one loop."""
        return sum(case.holds(law) for case in self.cases if loop in (None, base_of(case.loop)))

    def unjudged(self, law: str) -> int:
        """Cases in which nothing happened that a law looks at."""
        return sum(law in case.unjudged for case in self.cases)

    @property
    def by_loop(self) -> Counter[str]:
        """Cases of each loop, whatever its relay and options."""
        return Counter(base_of(case.loop) for case in self.cases)

    @cached_property
    def refusing(self) -> list[int]:
        """Of each workload, how many loops take none of its kind, whatever relay they have."""
        drawn = (draw(self.seed + at) for at in range(self.workloads))
        return [len(loops_that_refuse(item, self.device)) for item in drawn]

    @cached_property
    def axes(self) -> Table:
        """Where its workloads lie on each axis."""
        return table_of(draw(self.seed + at) for at in range(self.workloads))

    @cached_property
    def design_axes(self) -> Table:
        """Where what they ran on does, case by case."""
        every = of_a_design(self.device)
        table = Table(dict.fromkeys(every, ()) if self.loops else every)
        for name, cases in Counter(case.loop for case in self.cases).items():
            table.add(axes_of_design(read_design(name)).items(), cases)
        return table

    @cached_property
    def run_axes(self) -> Table:
        """What came about in how many cases."""
        table = Table(OF_A_RUN)
        for case in self.cases:
            table.add(case.happened)
        return table

    @property
    def all_axes(self) -> dict[str, Table]:
        """All of these, by what is counted."""
        return {"workloads": self.axes, "cases": self.design_axes, "runs": self.run_axes}

    def as_json(self) -> dict[str, Any]:
        """What ``minisched check --workloads --json`` prints; all the numbers are counts.

        ``cases``: workload and loop; ``identical``: of these, how many ended with the oracle's
        tokens for every request; ``races`` and ``leaks``: how many had one; ``failures``: every law
        that was broken, with what repeats it. An aborted request counts as identical if its tokens
        are the first of the oracle's, as does one whose step was to fail, and a refused one if it
        had to be refused and got none.
        ``holding``: cases that kept a law, by law; ``unjudged``: those of them that had nothing to
        break it with. ``loops`` and ``designs``: cases by loop, and by
        loop with its relay and options. ``axes``: workloads, or cases, by the value of each axis;
        ``never``: the values that there are and that none of them has.
        """
        return {
            "cases": len(self.cases),
            "identical": self.holding("identity"),
            "races": len(self.cases) - self.holding("race"),
            "leaks": len(self.cases) - self.holding("leak"),
            "failures": [failure._asdict() for failure in self.failures],
            "workloads": self.workloads,
            "seed": self.seed,
            "device": self.device,
            "model": "hash",
            "requests": sum(case.requests for case in self.cases),
            "aborted": sum(case.aborted for case in self.cases),
            "refused": sum(case.refused for case in self.cases),
            "failed": sum(case.failed for case in self.cases),
            "holding": {law: self.holding(law) for law in LAWS},
            "unjudged": {law: self.unjudged(law) for law in LAWS},
            "loops": dict(self.by_loop),
            "designs": dict(Counter(case.loop for case in self.cases)),
            "axes": {k: v for axes in self.all_axes.values() for k, v in axes.as_json().items()},
            "never": {k: v for axes in self.all_axes.values() for k, v in axes.never.items()},
        }


def base_of(loop: str) -> str:
    """A loop's name without relay and options."""
    return loop.partition(":")[0]
