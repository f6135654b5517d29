"""A recorded run played again: the critical path, the bound, and what a change would have given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.bound import bound, longest_chain
from minisched.checks.overlap.bubbles import bubbles
from minisched.checks.overlap.course import course_of
from minisched.checks.overlap.critical_path import critical_path, shares
from minisched.checks.overlap.removal import AHEAD, largest_bubble
from minisched.checks.overlap.replay import replay
from minisched.checks.overlap.what_if import free, launch_ahead, sample_at_once, unchanged, what_if
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.export.wait_runs import run_with
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.registry import open_model
from minisched.trace import Edge, Slice, Trace
from tests.support import LOOP_OPTIONS, Workload, demanding
from tests.timed_plays import costs, played

law = settings(max_examples=40, deadline=None)
anything = (st.sampled_from(LOOP_OPTIONS), demanding(max_requests=4), costs)


def fixed(loop: str, cost: CostModel = SIM_COST, count: int = 2, tokens: int = 6) -> Trace:
    """Requests that are all there from the start, and end by length."""
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    requests = [Request(f"r{i}", [1, 2, 3 + i], params) for i in range(count)]
    return run_loop(loop, open_device("sim"), HashModel(), requests, cost=cost).trace


@law
@given(*anything)
def test_a_replay_gives_every_slice_its_time(
    item: Any, workload: Workload, cost: CostModel
) -> None:
    """And nothing is left to explain: on a virtual clock each start has its reason in the trace."""
    course = course_of(played(workload, *item, cost))
    ran = replay(course.lanes)
    assert {n: (r.start, r.end) for n, r in ran.items()} == {
        n: (s.start, s.end) for n, s in course.slices.items()
    }
    for items in course.lanes.values():
        for one in items:
            assert (one.lane_lag, one.launch_lag, one.delay, one.release) == (0, 0, 0, 0)


@law
@given(*anything)
def test_the_critical_path_is_the_makespan(item: Any, workload: Workload, cost: CostModel) -> None:
    """It has no hole, lies on slices all the way, and each of them ended when the next began."""
    trace = played(workload, *item, cost)
    slices = {item.id: item for item in trace.slices}
    path = critical_path(trace)
    assert sum(segment.duration for segment in path) == trace.end
    assert sum(shares(trace, path).values()) == trace.end
    at = 0
    for segment in path:
        here = slices[segment.slice]
        assert (segment.start, segment.start, segment.end) == (at, here.start, here.end)
        assert not segment.before or slices[segment.before].start == segment.end
        at = segment.end
    assert at == trace.end


SHARED = {"prepare": "advance step", "launch": "launch eager"}  # costs of slices of one name
NAMES = ["receive", "schedule", *SHARED, "fill", "postprocess", "mask", "process", "output"]


@law
@given(*anything, st.sampled_from([*NAMES, "copy", "sample", "recv"]))
def test_a_phase_that_is_free_is_one_that_costs_nothing(
    item: Any, workload: Workload, cost: CostModel, name: str
) -> None:
    """Against a real run with that cost 0. Who comes goes by turns, so the schedule is the same."""
    cost = replace(cost, host={**cost.host, "launch sample": 0})  # has no name of its own
    trace = played(workload, *item, cost)
    if name in NAMES:
        less = replace(cost, host={**cost.host, name: 0, SHARED.get(name, name): 0})
    else:
        less = replace(cost, **{name: 0})
    assert what_if(trace, unchanged) == trace.end
    assert what_if(trace, free(name)) in (played(workload, *item, less).end, None)


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_each_loop_is_played_again_exactly(loop: str) -> None:
    """With two schedulers too; requests come late, so somebody sleeps until they do."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    late = [Request(f"r{i}", [1, 2, 3 + i], params, 40 * i * MILLISECOND) for i in range(3)]
    trace = run_loop(loop, open_device("sim"), HashModel(), late, cost=SIM_COST).trace
    assert what_if(trace, unchanged) == trace.end
    assert sum(segment.duration for segment in critical_path(trace)) == trace.end
    assert bound(trace).ns <= trace.end


def test_a_wall_clock_is_played_again_too() -> None:
    """Ops start while their launch still runs, and time passes that nothing explains."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    for loop in ("serial", "overlap", "overlap_thread"):
        model = open_model("hash", "thread")
        run = run_loop(loop, open_device("thread"), model, [Request("r", [1, 2], params)])
        assert len(run.outputs["r"]) == 4
        course = course_of(run.trace)
        assert all(course.ran[n].start == item.start for n, item in course.slices.items())
        assert sum(segment.duration for segment in critical_path(run.trace)) == run.trace.end


def test_without_a_program_edges_do() -> None:
    for loop in ("serial", "overlap"):
        trace = fixed(loop)
        again = replace(trace, program=())
        assert critical_path(again) == critical_path(trace)
        assert what_if(again, unchanged) == trace.end


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5), st.integers(1, 3))
def test_launching_ahead_makes_serial_what_overlap_is(
    forward: int, host: int, copy: int, count: int
) -> None:
    """Up to the last token that somebody gets; ``overlap`` then runs one step more, for nobody."""
    phases = dict.fromkeys(["schedule", "prepare", "launch", "process", "output"], host)
    cost = CostModel(phases, forward_base=forward, sample=1, copy=copy)
    serial, overlap = fixed("serial", cost, count), fixed("overlap", cost, count)
    last = max(item.end for item in overlap.slices if item.name == "output")
    one_step_less = 3 * host  # before its last result, overlap launches the step for nobody
    predicted = what_if(serial, launch_ahead)
    assert predicted is not None and last - one_step_less <= predicted <= last
    if forward > 6 * host + copy:
        assert predicted == last
    assert what_if(overlap, unchanged) == overlap.end


def test_what_overlaps_already_cannot_be_launched_ahead() -> None:
    for loop in ("overlap", "mini_overlap", "vllm_async", "mindie_single"):
        trace = fixed(loop)
        assert what_if(trace, launch_ahead) in (None, trace.end)


def test_the_remedy_for_serial_is_overlap() -> None:
    trace = fixed("serial")
    largest = largest_bubble(trace, bubbles(trace))
    assert largest is not None and largest.cause == "host"
    best = largest.removals[0]
    assert best.change == AHEAD.format(which="each step") and best.was_ns == trace.end
    assert best.ns == what_if(trace, launch_ahead)
    assert largest_bubble(fixed("overlap"), bubbles(fixed("overlap"))) is None


def test_sampling_at_once_is_what_a_grammar_costs() -> None:
    """With it, the device runs as if nobody had one."""
    trace = run_with("overlap", "grammar")
    quick = what_if(trace, sample_at_once(trace, "grammar"))
    assert quick is not None and quick <= trace.end
    assert what_if(trace, sample_at_once(trace, "penalty")) is None


@law
@given(*anything)
def test_nothing_beats_the_bound(item: Any, workload: Workload, cost: CostModel) -> None:
    """Not the run itself, and not the run with its steps launched ahead."""
    trace = played(workload, *item, cost)
    best = bound(trace)
    assert best.ns == max([best.chain_ns, *best.lanes.values()])
    assert best.ns <= trace.end
    ahead = what_if(trace, launch_ahead)
    assert ahead is None or best.ns <= ahead


def test_clocks_that_disagree_make_no_chain() -> None:
    """On a wall clock an op can seem to start before the one whose token it reads has ended."""
    slices = (
        Slice(1, "forward", "forward", 0, 5, 1, rids=("r",)),
        Slice(2, "forward", "forward", 4, 9, 2, rids=("r",)),
    )
    odd = Trace("odd", "cuda", "", "wall", slices, (Edge(1, 2, "token"),), (), ())
    assert bound(odd).ns == odd.end == 9 > bound(odd).chain_ns


def test_the_chain_of_one_request() -> None:
    """Its tokens one after the other: forward and sample of each step, nothing of the host."""
    trace = fixed("serial", count=1, tokens=3)
    ns = sum(item.duration for item in trace.on("forward"))
    assert longest_chain(trace, course_of(trace)) == (ns, "r0")
    stages = fixed("vllm_pp2", count=1, tokens=3)
    ops = [item for item in stages.slices if item.lane.startswith("stage")]
    assert longest_chain(stages, course_of(stages)) == (sum(item.duration for item in ops), "r0")
    assert not bound(stages).lane, "no stage has as much work as the request takes through both"
