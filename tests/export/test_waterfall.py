"""The waterfall: its causes add up to the difference, whatever the workload and the design."""

from __future__ import annotations

from fractions import Fraction

import pytest

from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.overlap import forward_lanes, measure
from minisched.export.pictures.compare import FALLS
from minisched.export.recipes import run_of
from minisched.export.scene import Lanes
from minisched.export.waterfall import NAMES, spent, steps_between, waterfall
from minisched.loops.design import LOOPS
from minisched.trace import Trace
from tests.support import every, many

WAITS = ("host", "copy", "needs", "device", "other")


def holds(trace: Trace) -> None:
    """A run's time is its causes, none of them less than nothing."""
    found, report = spent(trace), measure(trace)
    assert sum(found.values()) == trace.end and all(ns > 0 for ns in found.values())
    count = max(1, len(forward_lanes(trace)))
    waits = sum(found.get(name, Fraction()) for name in WAITS)
    assert waits * count == report.bubble_ns
    computes = found.get("work", Fraction()) + found.get("wasted", Fraction())
    assert computes * count == report.device_busy_ns


@pytest.mark.parametrize("loop", every(5, LOOPS))
def test_the_causes_add_up_to_the_difference(loop: str) -> None:
    for seed in range(many(4, 20)):
        traces = [judge(case_of(seed, name)).trace for name in ("serial", loop)]
        for trace in traces:
            holds(trace)
        assert sum(steps_between(*traces).values()) == traces[1].end - traces[0].end


def test_each_row_begins_where_the_last_one_ended() -> None:
    traces = [run_of(loop) for loop in FALLS]
    scene = waterfall(traces)
    for trace, part in zip(traces[1:], scene.parts, strict=True):
        (lanes,) = part.shows
        assert isinstance(lanes, Lanes)
        (first, *between, last) = [row.spans[0] for row in lanes.rows]
        assert (first.end, last.end) == (traces[0].end, trace.end)
        level = first.end
        for item in between:
            start, end = (item.start, item.end) if item.kind == "loses" else (item.end, item.start)
            assert start == level
            level = end
        assert level == last.end
        names = [row.name for row in lanes.rows[1:-1]]
        assert names == [NAMES[name] for name in steps_between(traces[0], trace)]


def test_its_title_is_the_largest_cause_of_the_quickest() -> None:
    serial, overlap = run_of("serial"), run_of("overlap")
    steps = steps_between(serial, overlap)
    assert min(steps, key=lambda name: steps[name]) == "host" and steps["host"] == -194_600_000
    said = "overlap takes 200.05 ms less than serial: the device waits 194.6 ms less for the host"
    assert waterfall([serial, overlap]).title == said
    assert waterfall([serial, run_of("vllm_batch_queue")]).title == (
        "vllm_batch_queue takes 41.1 ms more than serial: "
        "the device computes 243 ms more for requests"
    )
    assert waterfall([serial, serial]).title == "serial takes as long as serial"
    assert spent(run_of("mindie_plugin"))["wasted"] == 9_050_000, "a step without a taker"
    assert spent(run_of("vllm_pp2")).keys() == {"host", "copy", "device", "ends", "work"}
    with pytest.raises(ValueError, match="got 1"):
        waterfall([serial])
