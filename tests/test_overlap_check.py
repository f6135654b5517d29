"""Law 5, it overlaps: the metrics, on traces worked out by hand; and how long a step takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisched
from minisched.checks.overlap.overlap import (
    OverlapReport,
    beats_ideal,
    gaps,
    ideal_speedup,
    intersection,
    length,
    measure,
    speedup_over,
    step_intervals,
    union,
    versus_ideal,
)
from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import fresh, run_loop
from minisched.models.hash import HashModel
from minisched.trace import Mark, Slice, Trace
from minisched.trace.lanes import is_host

HOST_PHASES = ("schedule", "prepare", "launch", "process")


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
    assert ideal_speedup(report) == 30 / 20  # the host worked for 20
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


UNIT = 100_000  # nanoseconds
COSTS = st.builds(
    lambda host, base, per_token, sample, copy: CostModel(
        {name: cost * UNIT for name, cost in zip(HOST_PHASES, host, strict=True)},
        base * UNIT, per_token * UNIT, sample * UNIT, copy * UNIT,
    ),
    st.tuples(*[st.integers(0, 30)] * 4), st.integers(0, 60), st.integers(0, 2),
    st.integers(0, 2), st.integers(0, 40),
)  # fmt: skip
ASKED = st.lists(  # prompt, new tokens, when it comes
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 900)), min_size=1, max_size=4
)
PLAIN = [name for name in LOOPS if name not in ("serial", "mixed")]


@settings(max_examples=60, deadline=None)
@given(COSTS, ASKED, st.sampled_from(PLAIN))
def test_an_exact_clock_beats_the_ceiling_only_with_less_work_or_more_devices(
    cost: CostModel, asked: list[tuple[int, int, int]], loop: str
) -> None:
    """The law of the ceiling: each of host, device and copies does one thing at a time."""
    requests = [
        Request(f"r{at}", [at] * prompt, SamplingParams(max_new_tokens=new), arrival * UNIT)
        for at, (prompt, new, arrival) in enumerate(asked)
    ]
    serial, other = (
        run_loop(name, SimDevice(), HashModel(), map(fresh, requests), cost=cost)
        for name in ("serial", loop)
    )
    before, after = measure(serial.trace), measure(other.trace)
    lanes = ("host_busy_ns", "device_busy_ns", "copy_busy_ns")
    assert before.unserved_ns + before.longest_ns <= before.makespan_ns
    does_less = any(getattr(after, lane) < getattr(before, lane) for lane in lanes)
    hosts = len({item.lane for item in other.trace.slices if is_host(item.lane)})
    if not does_less and after.devices == 1 and hosts == 1:
        assert not beats_ideal(before, after)
    said = versus_ideal(before, after, "virtual")
    speedup = speedup_over(before, after)
    if speedup is None:
        assert said == "no time passed, so nothing was faster"
    elif not beats_ideal(before, after):
        assert (
            said == f"{speedup:.2f} x; hiding everything would give {ideal_speedup(before):.2f} x"
        )
    elif after.devices > 1:
        assert said.endswith(f", because it had {after.devices} devices")
    else:
        assert "ms of work instead of" in said or hosts > 1


def test_serial_takes_what_its_host_device_and_copies_take_and_all_of_it_can_be_hidden() -> None:
    """The usual workload: the copies are hidden as well, so they belong to the ceiling."""
    found = minisched.compare(loops=["mini_overlap"])
    serial, overlapped = found.reports
    parts = serial.host_busy_ns + serial.device_busy_ns + serial.copy_busy_ns
    assert serial.makespan_ns == parts and serial.unserved_ns == 0
    assert (serial.steps, serial.host_busy_ns) <= (overlapped.steps, overlapped.host_busy_ns)
    assert (found.speedup["mini_overlap"] or 0) <= found.ideal


def test_time_without_a_request_is_nothing_to_hide() -> None:
    """Two requests far apart: between them nobody works, however the loop is made."""
    params = SamplingParams(max_new_tokens=8)
    asked = [Request("a", [1], params), Request("b", [2], params, 10_000_000_000)]
    found = minisched.compare(asked, ["overlap"])
    serial = found.reports[0]
    assert serial.unserved_ns > 0.9 * serial.makespan_ns
    assert 1 < found.ideal < 1.05
    assert not beats_ideal(*found.reports)


def test_what_beats_its_ceiling_is_called_noise_on_a_wall_clock() -> None:
    def run(host: tuple[int, int], device: tuple[int, int]) -> OverlapReport:
        """The report on one step; in milliseconds."""
        spans = [(start * 10**6, end * 10**6) for start, end in (host, device)]
        return measure(trace_of(("host", "schedule", *spans[0]), ("forward", "forward", *spans[1])))

    serial, lucky = run((0, 40), (40, 50)), run((0, 10), (5, 20))
    assert versus_ideal(serial, lucky, "wall") == (
        "2.50 x, more than the 1.25 x that hiding everything could give, so it is noise: "
        "single runs of the same work differ, repeat them"
    )
    assert versus_ideal(serial, lucky, "virtual") == (
        "2.50 x, more than the 1.25 x that hiding everything could give, because its host had "
        "10.0 ms of work instead of 40.0 ms"
    )
    assert versus_ideal(serial, serial, "wall") == "1.00 x; hiding everything would give 1.25 x"
