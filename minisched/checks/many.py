"""Random workloads, each on several loops, with the laws applied to every run.

The workload of a number is that of its seed, so seed and loop repeat a failure. If no loop is
named, one case of ``DEPTH_EVERY`` is judged in depth (``Case.in_depth``), for the sake of time. A
mistake that only the laws of such cases see is almost always in many cases.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core import FinishReason
from .case import Case, shallow
from .coverage import SITUATIONS, Observed, situations
from .draw import designs_for, draw, read_design
from .judge import Finding, judge
from .laws import LAWS, cause_rank

# -- Random workloads, each on several loops -------------------------------------------------------

DEPTH_EVERY = 4  # cases


@dataclass(frozen=True, slots=True)
class Tried:
    """One case that was run: its broken laws, and the ends of its requests."""

    seed: int
    loop: str  # as ``--loop`` takes it
    findings: tuple[Finding, ...]
    finished: bool
    requests: int
    aborted: int
    refused: int
    unjudged: tuple[str, ...] = ()  # laws without anything to judge in the run
    failed: int = 0  # requests ended by an injected fault of a step
    unknown: tuple[tuple[str, str], ...] = ()  # laws that do not know the rules, with the reason
    situations: tuple[str, ...] = ()  # of ``coverage.py:SITUATIONS``, if they are looked for

    def holds(self, law: str) -> bool:
        """Return whether a law was judged and not broken."""
        looked_at = self.finished or not LAWS[law].is_of_the_end
        return looked_at and all(item.law != law for item in self.findings)


def case_of(seed: int, loop: str, device: str = "sim") -> Case:
    """Return the case that a failure names.

    Raises:
        ValueError: there is no such loop.
    """
    return draw(seed).on(read_design(loop), device)


def cases_of(seed: int, device: str = "sim") -> dict[str, Case]:
    """Return the cases of a seed, by loop; some of them are judged in depth."""
    drawn = draw(seed)
    cases = {design.name: drawn.on(design, device) for design in designs_for(drawn, device)}
    return {
        name: case if (seed + number) % DEPTH_EVERY == 0 else shallow(case)
        for number, (name, case) in enumerate(cases.items())
    }


def try_seed(
    seed: int, loops: Sequence[str] = (), device: str = "sim", coverage: bool = False
) -> list[Tried]:
    """Try one workload on each of the loops; without any, on those of its seed.

    With ``coverage`` each case has its situations.
    """
    drawn, named = draw(seed), [read_design(name) for name in loops]
    cases = {design.name: drawn.on(design, device) for design in named} or cases_of(seed, device)
    with modules_frozen():
        return [try_case(seed, name, case, coverage) for name, case in cases.items()]


@contextmanager
def modules_frozen() -> Iterator[None]:
    """Exclude the objects of the loaded modules from the search for garbage.

    There are about 70,000, and they stay. Each search would take longer than a case.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()  # what the body has left; the next freeze would keep it
        gc.unfreeze()


def try_case(seed: int, name: str, case: Case, coverage: bool) -> Tried:
    """Run and judge one case of a seed."""
    ran = Observed()
    verdict = judge(case, ran.watch) if coverage else judge(case)
    requests = verdict.workload.requests
    ends = Counter(req.finish_reason for req in requests)
    failed = sum(map(verdict.workload.has_failed, requests))
    return Tried(
        seed, name, verdict.findings, verdict.finished, sum(ends.values()),
        ends[FinishReason.ABORT], ends[FinishReason.ERROR] - failed,
        tuple(law for law in LAWS if verdict.lacking(law)), failed,
        tuple(verdict.unknown.items()), situations(ran, verdict) if coverage else (),
    )  # fmt: skip


# -- Totals: the number of cases, and how many of them broke which law -----------------------------


@dataclass(frozen=True)
class CaseTally:
    """The cases of consecutive workloads from ``seed`` on, in order.

    A case is one workload on one loop, with one relay and its options.
    """

    seed: int
    workloads: int
    device: str
    cases: Sequence[Tried]
    coverage: bool = False  # whether each case has its situations

    @cached_property
    def failures(self) -> list[tuple[Tried, Finding]]:
        """Return every broken law with its case, in the order of the seeds."""
        return [(case, item) for case in self.cases for item in case.findings]

    @property
    def first(self) -> list[tuple[Tried, Finding]]:
        """Return the first failure of each law, causes first; the first of all is shrunk and shown.

        After an early free, for example, wrong tokens are only a consequence.
        """
        by_law = {item.law: (case, item) for case, item in reversed(self.failures)}
        return [by_law[law] for law in sorted(by_law, key=cause_rank)]

    @property
    def loops(self) -> Counter[str]:
        """Count the cases of each loop, with all its relays and options."""
        return Counter(case.loop.partition(":")[0] for case in self.cases)

    @property
    def unknown(self) -> Counter[tuple[str, str]]:
        """Count the cases in which a law does not know the rules in force, by law and reason."""
        return Counter(item for case in self.cases for item in case.unknown)

    @property
    def situations(self) -> dict[str, int]:
        """Count the cases in which each situation occurred, in the order of the table."""
        counts = Counter(name for case in self.cases for name in case.situations)
        return {name: counts[name] for name in SITUATIONS}

    def holding(self, law: str) -> int:
        """Count the cases that were judged by a law and did not break it."""
        return sum(case.holds(law) for case in self.cases)

    def unjudged(self, law: str) -> int:
        """Count those of them in which the law had nothing to judge."""
        return sum(law in case.unjudged for case in self.cases if case.holds(law))

    def as_json(self) -> dict[str, Any]:
        """Return the output of ``minisched check --workloads --json``; all numbers are counts.

        ``cases``: pairs of workload and loop; ``identical``: those in which every request ended
        with the oracle's tokens; ``races`` and ``leaks``: those with at least one; ``failures``:
        every broken law, with the way to repeat it. An aborted request counts as identical if its
        tokens are a prefix of the oracle's. So does a request of a step with an injected fault. A
        refused one counts if it had to be refused and got none.

        ``holding``: cases that kept a law, by law; ``unjudged``: those of them with nothing to
        judge. ``loops`` and ``designs``: cases by loop, and by loop with its relay and options.
        ``situations``: cases by situation, if they were looked for.
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
            **({"situations": self.situations} if self.coverage else {}),
        }
