"""The smallest case that shows a bug of the museum is small: few requests, few settings."""

from __future__ import annotations

from statistics import median

from minisched.checks.case import Case, changed, shrink
from minisched.checks.draw import all_designs, designs_for, draw
from minisched.checks.judge import breaks_the_same, judge
from minisched.checks.laws import cause_rank
from minisched.museum import Exhibit, exhibits
from minisched.museum.patch import put_in
from minisched.scheduler import SchedulerConfig
from tests.support import many

WORKLOADS = many(1, 12)  # that are drawn to find a bug
TRIALS = 200  # cases that are judged to make one small
EVERY = many(12, 2)  # of that many exhibits one is tried


def smallest(exhibit: Exhibit) -> Case | None:
    """The smallest case of the first random one that breaks a law; None if none does."""
    with put_in(exhibit.edits):
        for seed in range(WORKLOADS):
            drawn = draw(seed)
            for design in designs_for(drawn):
                case = drawn.on(design)
                if found := sorted(judge(case).findings, key=lambda item: cause_rank(item.law)):
                    return shrink(case, breaks_the_same(found[0]), TRIALS)
    return None


def test_the_median_case_has_two_requests_and_two_settings_at_most() -> None:
    all_designs()  # kept from now on, and not made by what is broken
    small = [case for item in exhibits()[::EVERY] if (case := smallest(item)) is not None]
    assert len(small) >= many(2, 8)
    assert median(len(case.workload.requests) for case in small) <= 2
    assert median(settings(case) for case in small) <= 2


def settings(case: Case) -> int:
    """How many settings and options are not default."""
    return len(changed(case.workload.config, SchedulerConfig())) + len(case.options)
