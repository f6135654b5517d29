"""Random workloads, each on several loops: every law held against every one of them.

The workload of a number is that of its seed, so a failure is repeated by its seed and its loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core import FinishReason
from .case import Case
from .draw import designs_for, draw, read_design
from .judge import Finding, judge
from .laws import LAWS, cause_rank

# -- Random workloads, each on several loops -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tried:
    """One case that was run: what of it does not hold, and how its requests ended."""

    seed: int
    loop: str  # as ``--loop`` takes it
    findings: tuple[Finding, ...]
    finished: bool
    requests: int
    aborted: int
    refused: int
    unjudged: tuple[str, ...] = ()  # laws that had nothing to look at
    failed: int = 0  # requests that ended because a step failed, as the workload wanted it
    unknown: tuple[tuple[str, str], ...] = ()  # laws that do not know the rules, with the reason

    def holds(self, law: str) -> bool:
        """Whether a law was looked at and not broken."""
        looked_at = self.finished or not LAWS[law].is_of_the_end
        return looked_at and all(item.law != law for item in self.findings)


def case_of(seed: int, loop: str, device: str = "sim") -> Case:
    """The case that a failure names.

    Raises:
        ValueError: there is no such loop.
    """
    return draw(seed).on(read_design(loop), device)


def try_seed(seed: int, loops: Sequence[str] = (), device: str = "sim") -> list[Tried]:
    """One workload on each of the loops; without any, on those that come round with its seed."""
    drawn, tried = draw(seed), list[Tried]()
    for design in [read_design(name) for name in loops] or designs_for(drawn, device):
        verdict = judge(drawn.on(design, device))
        requests = verdict.workload.requests
        ends = Counter(req.finish_reason for req in requests)
        failed = sum(map(verdict.workload.has_failed, requests))
        tried.append(
            Tried(
                seed, design.name, verdict.findings, verdict.finished, sum(ends.values()),
                ends[FinishReason.ABORT], ends[FinishReason.ERROR] - failed,
                tuple(law for law in LAWS if verdict.lacking(law)), failed,
                tuple(verdict.unknown.items()),
            )
        )  # fmt: skip
    return tried


# -- What many cases came to: how many there were, and how many of them broke which law ------------


@dataclass(frozen=True)
class CaseTally:
    """The cases of so many workloads from the one of ``seed`` on, in their order.

    A case is one workload on one loop, with one relay and its options.
    """

    seed: int
    workloads: int
    device: str
    cases: Sequence[Tried]

    @cached_property
    def failures(self) -> list[tuple[Tried, Finding]]:
        """Every law that was broken, with the case that broke it, in the order of the seeds."""
        return [(case, item) for case in self.cases for item in case.findings]

    @property
    def first(self) -> list[tuple[Tried, Finding]]:
        """The first failure of each law, causes first; what is shown and made small is the first.

        Of an early free, tokens that are wrong are the last thing to look at.
        """
        by_law = {item.law: (case, item) for case, item in reversed(self.failures)}
        return [by_law[law] for law in sorted(by_law, key=cause_rank)]

    @property
    def loops(self) -> Counter[str]:
        """Cases of each loop, whatever its relay and options."""
        return Counter(case.loop.partition(":")[0] for case in self.cases)

    @property
    def unknown(self) -> Counter[tuple[str, str]]:
        """Cases in which a law does not know the rules in force, by law and reason."""
        return Counter(item for case in self.cases for item in case.unknown)

    def holding(self, law: str) -> int:
        """Cases that were looked at for a law and did not break it."""
        return sum(case.holds(law) for case in self.cases)

    def unjudged(self, law: str) -> int:
        """Those of them in which nothing happened that the law looks at."""
        return sum(law in case.unjudged for case in self.cases if case.holds(law))

    def as_json(self) -> dict[str, Any]:
        """What ``minisched check --workloads --json`` prints; all the numbers are counts.

        ``cases``: workload and loop; ``identical``: of these, how many ended with the oracle's
        tokens for every request; ``races`` and ``leaks``: how many had one; ``failures``: every law
        that was broken, with what repeats it. An aborted request counts as identical if its tokens
        are the first of the oracle's, as does one whose step was to fail, and a refused one if it
        had to be refused and got none.
        ``holding``: cases that kept a law, by law; ``unjudged``: those of them that had nothing to
        break it with. ``loops`` and ``designs``: cases by loop, and by loop with its relay and
        options.
        """
        sums = {
            name: sum(getattr(case, name) for case in self.cases)
            for name in ("requests", "aborted", "refused", "failed")
        }
        return {
            "cases": len(self.cases),
            "identical": self.holding("identity"),
            "races": len(self.cases) - self.holding("race"),
            "leaks": len(self.cases) - self.holding("leak"),
            "failures": [
                {"seed": case.seed, "loop": case.loop, "law": item.law, "sentence": item.sentence}
                for case, item in self.failures
            ],
            "workloads": self.workloads,
            "seed": self.seed,
            "device": self.device,
            "model": "hash",
            **sums,
            "holding": {law: self.holding(law) for law in LAWS},
            "unjudged": {law: self.unjudged(law) for law in LAWS},
            "loops": dict(self.loops),
            "designs": dict(Counter(case.loop for case in self.cases)),
        }
