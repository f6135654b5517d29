"""What the overlap check says can be read beside the picture, and no sentence denies another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minisched.checks.case import Case
from minisched.checks.case_text import case_text
from minisched.checks.overlap.dry_words import UNTOLD, dry_words
from minisched.checks.overlap.overlap import gaps, length, union
from minisched.checks.overlap.report import OverlapFindings, report
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, NO_COST, SIM_COST, CostModel, Pace
from minisched.devices.registry import open_device
from minisched.export.native import read
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.trace.lanes import is_forward

GOLDEN = sorted((Path(__file__).resolve().parents[1] / "traces").glob("*.json"))
SHARE = re.compile(r"\(([\d.]+) % of ")


Golden = tuple[Trace, OverlapFindings]


def said(loop: str, *requests: Request, config: SchedulerConfig | None = None) -> OverlapFindings:
    device = open_device("sim")
    return report(run_loop(loop, device, HashModel(), requests, config, SIM_COST).trace)


def asks(rid: str, count: int, arrival: int = 0) -> Request:
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return Request(rid, [1, 2, 3], params, arrival * MILLISECOND)


@pytest.fixture(scope="module", params=GOLDEN, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    trace = read(request.param)
    return trace, report(trace)


def test_both_shares_of_idle_time_are_of_the_same_time(golden: Golden) -> None:
    """From the first op to the last of each device."""
    trace, found = golden
    lanes = {item.lane for item in trace.slices if is_forward(item.lane)}
    busy = [union(trace.on(lane)) for lane in lanes]
    whole = sum(spans[-1][1] - spans[0][0] for spans in busy)
    assert found.idle_percent == pytest.approx(100 * sum(map(length, map(gaps, busy))) / whole)
    if len(lanes) == 1 and length(found.verdict.dry) == found.bubble_ns:
        assert found.verdict.dry_percent == pytest.approx(found.idle_percent)
        shares = {share for line in found.sentences[:2] for share in SHARE.findall(line)}
        assert len(shares) == bool(found.bubbles), "two sentences, one figure"


def test_never_dry_is_never_denied_by_idle_time(golden: Golden) -> None:
    """Where one device idled without running dry, the verdict says when that was."""
    _, found = golden
    if found.devices == 1 and found.bubble_ns:
        assert "the device never ran dry." not in found.verdict.sentence


def test_what_overlaps_is_not_told_to_overlap(golden: Golden) -> None:
    """But only to launch single steps earlier, where an order of the work allowed it."""
    _, found = golden
    if found.verdict.word == "overlapped":
        assert not any("each step" in line for line in found.sentences)


def test_which_device_is_said_where_there_are_several(golden: Golden) -> None:
    trace, found = golden
    lanes = {item.lane for item in trace.slices if is_forward(item.lane)}
    text = " ".join(found.sentences)
    assert found.devices == len(lanes)
    assert ("the device " in text) is (len(lanes) == 1)
    assert (f"the {len(lanes)} devices" in text) is (len(lanes) > 1)


def test_a_device_that_nobody_asks_is_dry_for_want_of_requests() -> None:
    found = said("overlap", *(asks(f"r{at}", 4, 900 * at) for at in range(3)))
    assert found.verdict.deserted == 2
    assert found.verdict.sentence.endswith(
        "the device ran dry only where nobody was left to be served (2 times)."
    )
    assert found.largest is not None and found.largest.sentence.endswith(
        "nobody was there, and only more requests would fill that time."
    )
    serial = said("serial", *(asks(f"r{at}", 4, 900 * at) for at in range(3))).verdict
    assert len(serial.dry) == 9 and serial.deserted == 2
    assert "besides 2 times when nobody was left to be served" in serial.sentence


def test_a_step_that_waits_for_memory_is_not_launched_ahead() -> None:
    """Its schedule found nothing before: no order of the work gives it memory earlier."""
    config = SchedulerConfig(kv_tokens=16, page_size=1, disable_radix_cache=True, context_len=12)
    found = said("overlap", asks("a", 9), asks("b", 9), config=config)
    assert found.verdict.word == "overlapped" and found.verdict.late
    assert found.largest is not None
    assert [item.change for item in found.largest.removals] == ["let schedule take no time"]


def test_late_steps_are_named() -> None:
    """mlx_async reads a step's tokens before it launches one with new prompts."""
    some = said("mlx_async", asks("a", 60), asks("b", 4, 50))
    assert some.verdict.word == "overlapped" and some.largest is not None
    *most, last = some.verdict.late
    steps = f"steps {', '.join(map(str, most))} and {last}, too, each before"
    assert most and some.largest.removals[0].change.startswith(f"launch {steps}")
    many = said("multi_step", asks("a", 30)).largest
    assert many is not None and " late steps, too, each before" in many.sentence


@pytest.mark.parametrize(
    ("spells", "blocking", "words"),
    [
        (1, {"x": 1}, "the device ran dry once, for 2 ms (9.0 % of the time); before it the host "
                      "was blocked in x"),
        (2, {"x": 2}, "the device ran dry 2 times, for 2 ms at the median (9.0 % of the time in "
                      "all); before each of them the host was blocked in x"),
        (3, {UNTOLD: 2, "x": 1}, "the device ran dry 3 times, for 2 ms at the median (9.0 % of "
                                 "the time in all); before 2 of them no call had blocked the host"),
    ],
)  # fmt: skip
def test_one_dry_spell_has_no_median(spells: int, blocking: dict[str, int], words: str) -> None:
    dry = tuple((at, at + 2 * MILLISECOND) for at in range(spells))
    assert dry_words("the device", dry, 9, blocking, deserted=0, queued=0) == words


def test_a_case_says_only_what_is_not_as_usual() -> None:
    workload = Workload([asks("r", 1)], [0], {}, SchedulerConfig())

    def lines(cost: CostModel) -> list[str]:
        return [line for line in case_text(Case(workload, "serial", cost=cost)) if "cost" in line]

    assert lines(NO_COST) == []
    assert lines(SIM_COST) == ["costs: the usual ones of sim"]
    assert lines(CostModel({"schedule": 7, "launch": 0}, copy=3)) == [
        "costs (ns): schedule 7, copy 3"
    ]
    paced = Pace(after={"launch": 5}, wake=2)
    assert lines(CostModel(copy=3, pace=paced)) == [
        "costs (ns): copy 3, pace after launch 5, pace wake 2"
    ]
