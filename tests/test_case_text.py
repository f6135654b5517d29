"""A case in words says what is not as usual, and nothing in Python's own notation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.case_text import case_text
from minisched.checks.play import play
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.cost import NO_COST, SIM_COST, CostModel, Pace
from minisched.devices.registry import open_device
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig, SchedulerStuck


def workload(count: int = 1) -> Workload:
    requests = [Request(f"r{at}", [1, 2], SamplingParams(max_new_tokens=1)) for at in range(count)]
    return Workload(requests, [0] * count, {}, SchedulerConfig())


def test_a_case_says_only_what_is_not_as_usual() -> None:
    def lines(cost: CostModel) -> list[str]:
        return [line for line in case_text(Case(workload(), "serial", cost=cost)) if "cost" in line]

    assert lines(NO_COST) == []
    assert lines(SIM_COST) == ["costs: the usual ones of sim"]
    assert lines(CostModel({"schedule": 7, "launch": 0}, copy=3)) == [
        "costs (ns): schedule 7, copy 3"
    ]
    paced = Pace(after={"launch": 5}, wake=2)
    assert lines(CostModel(copy=3, pace=paced)) == [
        "costs (ns): copy 3, pace after launch 5, pace wake 2"
    ]


@pytest.mark.parametrize(("count", "words"), [(1, "1 request is"), (2, "2 requests are")])
def test_a_stuck_scheduler_counts_its_requests(count: int, words: str) -> None:
    def plans_nothing(engine: Any) -> None:
        engine.scheduler.run_first.plan = lambda: SimpleNamespace(prompts=[], decodes=[])

    device = open_device("sim")
    with pytest.raises(SchedulerStuck, match=f"yet {words} not done$"):
        play(workload(count), "serial", "host", {}, device, HashModel(), NO_COST, plans_nothing)
