"""Law 5, it overlaps: the metrics, on traces worked out by hand; and how long a step takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import (
    gaps,
    ideal_speedup,
    intersection,
    length,
    measure,
    step_intervals,
    union,
)
from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.trace import Mark, Slice, Trace


def trace_of(*slices: tuple[str, str, int, int], marks: tuple[Mark, ...] = ()) -> Trace:
    """A trace of (lane, name, start, end)."""
    made = [Slice(i, *item, step=i) for i, item in enumerate(slices, 1)]
    return Trace("tiny", "sim", "hash", "virtual", tuple(made), (), (), marks)


# Time:      0    5    10   15   20   25   30
# host       ssss ssss .... pppp ssss ....      (. is a wait)
# forward         ffff ffff           ffff
# copy                      cc
TINY = trace_of(
    ("host", "schedule", 0, 10),
    ("forward", "forward", 5, 12),
    ("host", "wait", 10, 15),
    ("forward", "sample", 12, 15),
    ("copy", "copy", 15, 17),
    ("host", "process", 15, 20),
    ("host", "schedule", 20, 25),
    ("forward", "forward", 25, 30),
    ("host", "wait", 25, 30),
    marks=(Mark("wasted row", 20), Mark("retraction", 3), Mark("wasted row", 21)),
)


def test_a_trace_worked_out_by_hand() -> None:
    report = measure(TINY, tokens=2)
    assert report.makespan_ns == 30
    assert report.device_busy_ns == 15
    assert report.copy_busy_ns == 2
    assert report.host_busy_ns == 20  # the waits are not work
    assert report.host_hidden_ns == 5  # 5 to 10
    assert report.bubbles == ((15, 25),)
    assert report.bubble_ns == 10
    assert report.wasted_rows == 2
    assert report.tokens == 2
    assert report.device_busy_percent == 50
    assert report.host_hidden_percent == 25
    assert ideal_speedup(report) == 35 / 20
    assert step_intervals(TINY) == [20]


def test_nothing_happened() -> None:
    report = measure(trace_of())
    assert (report.makespan_ns, report.steps, report.bubbles) == (0, 0, ())
    assert report.device_busy_percent == report.host_hidden_percent == 0
    assert ideal_speedup(report) == 1


def test_idle_before_the_first_and_after_the_last_step_is_no_bubble() -> None:
    report = measure(trace_of(("forward", "forward", 10, 20), ("host", "process", 20, 90)))
    assert report.bubbles == ()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8), st.data())
def test_intervals_are_sets_of_moments(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8))

    def moments(some: list[tuple[int, int]]) -> set[int]:
        return {t for start, long in some for t in range(start, start + long)}

    def merged(some: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        return union(Slice(1, "host", "x", start, start + long) for start, long in some)

    a, b = merged(spans), merged(others)
    assert {t for start, end in a for t in range(start, end)} == moments(spans)
    assert length(a) == len(moments(spans))
    assert length(intersection(a, b)) == len(moments(spans) & moments(others))
    if a:
        assert length(gaps(a)) == a[-1][1] - a[0][0] - length(a)


D, C = 10_000, 600  # nanoseconds: the device's forward and sample, and the copy
SHARES = (("schedule", 4), ("prepare", 1), ("launch", 1), ("process", 3), ("output", 1))


def run_steady(loop: str, host: int, device: int, copy: int) -> list[int]:
    """The intervals of 40 decode steps of one request, once the loop has settled."""
    phases = {name: host * share // 10 for name, share in SHARES}
    assert sum(phases.values()) == host
    cost = CostModel(phases, forward_base=device - 1000, sample=1000, copy=copy)
    request = Request("r", [1, 2, 3], SamplingParams(max_new_tokens=64, ignore_eos=True))
    run = run_loop(loop, SimDevice(), HashModel(), [request], cost=cost)
    assert len(run.outputs["r"]) == 64
    return step_intervals(run.trace)[10:50]


# Steps of one request that can be in flight. Without run-ahead it is one, however many steps of
# other requests are: vllm_batch_queue and the pipelines, and MindIE's scheduler behind its gate.
DEPTHS = {
    "serial": 1,
    "overlap": 2,
    "overlap_pool_indexed": 2,
    "overlap_thread": 2,
    "mini_normal": 1,
    "mini_overlap": 2,
    "mlx_async": 2,
    "vllm_step": 1,
    "vllm_batch_queue": 1,
    "vllm_async": 2,
    "vllm_pp2": 1,
    "vllm_pp4": 1,
    "mindie_placeholder": 1,
    "mindie_single": 2,
    "mixed": 2,
}
# Waits for more than the law counts; their own tests say for what.
WAIT_FOR_MORE = {"mindie_plugin", "mindie_dual", "multi_step"}


def test_every_loop_has_its_law() -> None:
    one_engine = {name for name, spec in LOOPS.items() if spec.whole_run is None}
    assert DEPTHS.keys() | WAIT_FOR_MORE == one_engine


@pytest.mark.parametrize("loop", DEPTHS)
@pytest.mark.parametrize("tenths", range(1, 21))
def test_a_settled_step_takes_what_the_law_says(loop: str, tenths: int) -> None:
    """max(d, h, (d + h + c) / depth), exactly; a loop of depth k repeats every k steps."""
    host, depth = D * tenths // 10, DEPTHS[loop]
    law = max(depth * D, depth * host, D + host + C)  # of ``depth`` steps
    intervals = run_steady(loop, host, D, C)
    sums = {sum(intervals[at : at + depth]) for at in range(len(intervals) - depth + 1)}
    assert sums == {law}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(11, 200), st.integers(0, 300))
def test_the_law_holds_for_any_costs(host: int, device: int, copy: int) -> None:
    """A copy slower than both is a third thing that no step can be faster than."""
    host, device, copy = 10 * host, 100 * device, 10 * copy
    for loop in ("serial", "overlap"):
        depth = LOOPS[loop].depth
        intervals = run_steady(loop, host, device, copy)
        law = max(depth * device, depth * host, depth * copy, device + host + copy)
        assert {sum(intervals[at : at + depth]) for at in range(20)} == {law}
