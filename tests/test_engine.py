"""An engine's phases: handlers of messages, counters, the check at idle, the cost of a launch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, ForwardMode, Output, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.dispatcher import AbortReq, FlushCacheReq, TypeBasedDispatcher
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.run import make_engine, run_loop
from minisched.scheduler import MemoryLeak, SchedulerConfig
from minisched.trace import NullRecorder, Trace
from tests.support import SOME_LOOPS, Workload, a_request, hash_model, play_timed, timed_workloads

MODEL = hash_model("sim", frozenset())


def an_engine(*requests: Request, config: SchedulerConfig | None = None) -> Engine:
    frontend = Frontend(requests)
    return make_engine("serial", SimDevice(), MODEL, config or SchedulerConfig(), frontend)


def test_each_message_goes_to_the_handler_of_its_type() -> None:
    engine = an_engine()
    request = a_request("r0")
    assert engine.inbox.process_input_requests([request]) == []
    assert list(engine.scheduler.live) == ["r0"]
    unknown, twice = AbortReq("nobody"), AbortReq("r0")
    outputs = engine.inbox.process_input_requests([unknown, twice, twice])
    assert [output.rid for output in outputs] == ["r0"]
    engine.inbox.process_input_requests([a_request("r1"), a_request("r2")])
    outputs = engine.inbox.process_input_requests([AbortReq(abort_all=True)])
    assert [output.rid for output in outputs] == ["r1", "r2"]


def test_a_message_that_nobody_handles_is_refused_in_one_sentence() -> None:
    dispatch = TypeBasedDispatcher([(AbortReq, lambda message: []), (Request, lambda message: [])])
    with pytest.raises(TypeError) as refusal:
        dispatch("hello")
    assert str(refusal.value) == (
        "a message of type str came, but the types handled are AbortReq, Request."
    )


def test_the_cache_is_flushed_only_while_nothing_runs() -> None:
    engine = an_engine(a_request("r0"))
    engine.frontend.flush_cache()
    run_to_end(engine)
    tree = engine.scheduler.tree
    assert tree is not None and tree.total_size > 0
    engine.inbox.process_input_requests([FlushCacheReq()])
    assert tree.total_size == 0
    engine.inbox.process_input_requests([a_request("r1")])
    engine.get_next_batch_to_run()
    engine.inbox.process_input_requests([FlushCacheReq()])
    marks = engine.device.recorder.trace("", "", "", "virtual").marks
    done = [mark.attrs["done"] for mark in marks if mark.name == "flush cache"]
    assert done == [True, True, False]


def test_clients_hear_at_once_what_scheduling_had_to_say() -> None:
    """A request that turns out not to fit ends while a batch is being chosen."""
    heard: list[Output] = []
    engine = an_engine()
    engine.frontend.on_output = heard.append
    too_large = Output("r0", None, FinishReason.ERROR, "it needs more pages than there are.")
    engine.scheduler.outbox.append(too_large)
    assert not engine.get_next_batch_to_run()
    assert heard == [too_large] and not engine.scheduler.outbox


def run_to_end(engine: Engine) -> None:
    while not engine.is_done:
        engine.recv_requests()
        if batch := engine.get_next_batch_to_run():
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=60, deadline=None)
def test_counters_change_and_end_where_they_should(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    names = {"waiting", "running", "kv used", "kv cached", "new token ratio"}
    by_name: dict[str, list[int]] = {name: [] for name in names}
    for counter in run.trace.counters:
        if counter.name in names:
            by_name[counter.name].append(counter.value)
    for values in by_name.values():
        assert all(a != b for a, b in pairwise(values)), "only what changed is recorded"
    assert all(by_name[name][-1] == 0 for name in ("waiting", "running", "kv used"))
    assert max(by_name["running"]) <= workload.config.max_running_requests
    assert max(by_name["kv used"]) <= workload.config.num_slots
    tree = run.engine.scheduler.tree
    assert by_name["kv cached"][-1] == (tree.total_size if tree else 0) * workload.config.page_size
    assert run.engine.recording.delivered_by == {}, "of requests that have ended nothing is kept"


def test_nothing_is_recorded_where_nothing_is_kept() -> None:
    device = SimDevice(NullRecorder())
    requests = [a_request(f"r{i}") for i in range(3)]
    frontend = Frontend(requests)
    engine = make_engine("serial", device, MODEL, SchedulerConfig(), frontend)
    run_to_end(engine)
    assert all(req.finished for req in requests)
    assert engine.recording.counted == engine.recording.delivered_by == {}
    assert engine.metrics.num_finished == 3


@SOME_LOOPS
def test_a_leak_is_found_at_the_next_idle_moment(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    """A row is lost while the first request runs; nobody comes for a while after it."""
    requests = [a_request("first"), a_request("second", 10**9)]
    workload = Workload(requests, [], {}, SchedulerConfig(max_running_requests=4))

    def lose_a_row(engine: Engine) -> None:
        engine.scheduler.leases.table.alloc()

    with pytest.raises(MemoryLeak, match="3 of 4 rows are free, but nothing runs"):
        play_timed(workload, loop, relay, options, lose_a_row)
    assert requests[0].finished and not requests[1].finished


COST = CostModel({"launch": 5, "launch eager": 50}, forward_base=10, sample=1, copy=1)


def launched(
    cost: CostModel, rows: int, limit: int | None, loop: str = "overlap"
) -> tuple[Trace, dict[int, int]]:
    """A run of ``rows`` requests; how long each decode step's launch took, by step."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"r{i}", [i, 1], params) for i in range(rows)]
    config = SchedulerConfig(cuda_graph_max_bs=limit)
    trace = run_loop(loop, SimDevice(), MODEL, requests, config, cost).trace
    return trace, launch_durations(trace, ForwardMode.DECODE)


def launch_durations(trace: Trace, mode: ForwardMode) -> dict[int, int]:
    """How long each step's launch took, whatever thread did it, and in how many parts."""
    durations: dict[int, int] = {}
    for item in trace.slices:
        if item.name == "launch" and item.mode == mode.value:
            durations[item.step] = durations.get(item.step, 0) + item.duration
    return durations


@SOME_LOOPS
@given(rows=st.integers(1, 8), limit=st.one_of(st.none(), st.integers(1, 8)))
@settings(max_examples=20, deadline=None)
def test_a_decode_batch_larger_than_any_graph_is_launched_op_by_op(
    loop: str, relay: str, options: dict[str, Any], rows: int, limit: int | None
) -> None:
    trace, durations = launched(COST, rows, limit, loop)
    is_eager = limit is not None and rows > limit
    assert set(durations.values()) == {50 if is_eager else 5}
    marks = {mark.attrs["step"]: mark for mark in trace.marks if mark.name == "eager launch"}
    assert marks.keys() == (durations.keys() if is_eager else set())
    assert all(mark.attrs["rows"] == rows for mark in marks.values())
    assert set(launch_durations(trace, ForwardMode.EXTEND).values()) == {5}


def test_without_a_cost_of_its_own_an_eager_launch_only_leaves_its_mark() -> None:
    trace, durations = launched(CostModel({"launch": 5}, 10), rows=3, limit=2)
    assert set(durations.values()) == {5}
    assert any(mark.name == "eager launch" for mark in trace.marks)
