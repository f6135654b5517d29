"""The laws of scheduling judge only rules that they know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import minisched as ms
from minisched.checking import verdict_on_cases
from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.progress import ORDERS
from minisched.policy.waiting import POLICIES, RANKS

LONGEST_FIRST = {"lpf": lambda req: -len(req.prompt)}


@pytest.fixture
def lpf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the policy "longest prompt first" as the first half of CONTRIBUTING does."""
    for name, rank in LONGEST_FIRST.items():
        monkeypatch.setitem(RANKS, name, rank)
        for module in ("scheduler.config", "checks.draw"):
            monkeypatch.setattr(f"minisched.{module}.SCHEDULE_POLICIES", (*POLICIES, name))


def test_the_law_order_knows_every_order_of_the_queue() -> None:
    assert {*POLICIES} == {*ORDERS}


def test_an_order_that_the_law_does_not_know_is_not_judged(lpf: None) -> None:
    unknown, told = 0, "the law order does not know lpf; teach it in checks/progress.py"
    for seed in range(12):
        case = case_of(seed, "overlap")
        own = {"schedule_policy": "lpf", "run_first": "", "enable_mixed_chunk": False}
        config = replace(case.workload.config, **own)
        verdict = judge(replace(case, workload=replace(case.workload, config=config)))
        assert not verdict.broke("order") and not verdict.broke("progress"), seed
        assert verdict.lacking("order") == told and told not in verdict.lacking("progress")
        unknown += verdict.unknown == {"order": told}
    assert unknown == 12


def test_a_check_says_which_law_does_not_know_which_order(
    lpf: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisched.checks.draw.SCHEDULE_POLICIES", ("lpf",))
    found: Any = ms.check(loops=["overlap"], workloads=8)
    assert found.holds is True and not found.tally.failures
    count = len([case for case in found.tally.cases if case.unknown])
    assert 4 <= count < 8  # the other workloads have priorities
    told = "the law order does not know lpf; teach it in checks/progress.py"
    assert found.lines[1:] == (f"? {told}: order is not judged in {count} cases.",)
    assert found.as_json()["unjudged"]["order"] >= count
    alone = [replace(it, unjudged=("order",)) for it in found.tally.cases if it.unknown]
    verdict = verdict_on_cases(replace(found.tally, cases=alone))
    assert verdict.startswith(f"? No law broke in {count} cases, but not all are judged: ")


def test_the_law_order_judges_an_order_that_it_was_taught(
    lpf: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisched.checks.draw.SCHEDULE_POLICIES", ("lpf",))
    monkeypatch.setitem(ORDERS, "lpf", LONGEST_FIRST["lpf"])
    assert ms.check(loops=["overlap"], workloads=2).holds is not False
    monkeypatch.setitem(ORDERS, "lpf", lambda req: len(req.prompt))  # the opposite
    broken = {
        finding.law for seed in range(4) for finding in judge(case_of(seed, "overlap")).findings
    }
    assert "order" in broken
