"""What the overlap check says can be read beside the picture, and no sentence denies another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minisched.checks.overlap.dry_words import UNTOLD, dry_words
from minisched.checks.overlap.overlap import gaps, length, union
from minisched.checks.overlap.report import OverlapFindings, report
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST
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


def test_only_free_work_beats_the_bound(golden: Golden) -> None:
    """So the sentence on the bound says that work takes what it took."""
    _, found = golden
    removals = found.largest.removals if found.largest else ()
    faster = [item.change for item in removals if item.ns < found.bound.ns]
    assert all(change.endswith("take no time") for change in faster)
    assert found.sentences[-1].startswith("As long as each piece of work takes what it took, ")


def test_what_no_replay_can_tell() -> None:
    """Most idle time of a pipeline is that of stages that wait for the one before."""
    found = said("vllm_pp4", asks("a", 4), asks("b", 4)).largest
    assert found is not None and (found.cause, found.removals) == ("stage", ())
    assert found.sentence.endswith("replaying cannot tell what removing this would save.")


def test_a_device_that_nobody_asks_is_dry_for_want_of_requests() -> None:
    found = said("overlap", *(asks(f"r{at}", 4, 900 * at) for at in range(3)))
    assert found.verdict.deserted == 2
    assert found.verdict.sentence.endswith(
        "the device ran dry only where nobody was left to be served (2 times)."
    )
    assert found.largest is not None and found.largest.sentence.endswith(
        "what idled had no request to serve, and only more of them would fill that time."
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


ONCE = "the device ran dry once, for 2 ms (9.0 % of the time); "
TWICE = "the device ran dry 2 times, for 2 ms at the median (9.0 % of the time in all); "


@pytest.mark.parametrize(
    ("spells", "launcher", "blocking", "words"),
    [
        (1, "host", {"x": 1}, ONCE + "just before, the host was blocked in x"),
        (1, "host", {UNTOLD: 1}, ONCE + "just before, no call had blocked the host"),
        (2, "host", {"x": 2}, TWICE + "before each of them the host was blocked in x"),
        (2, "host", {UNTOLD: 1, "x": 1}, TWICE + "before 1 of them no call had blocked the host"),
    ],
)
def test_a_dry_spell_in_words(
    spells: int, launcher: str, blocking: dict[str, int], words: str
) -> None:
    dry = tuple((at, at + 2 * MILLISECOND) for at in range(spells))
    assert dry_words("the device", dry, 9, launcher, blocking, deserted=0, queued=0) == words


def test_the_thread_that_launches_is_named_where_another_one_waits() -> None:
    """The scheduler's thread is blocked in each of these gaps; the one that launches is not."""
    found = said("mindie_dual", asks("a", 6))
    assert found.verdict.sentence.endswith(
        "before each of them no call had blocked the forward thread, which launches."
    )
