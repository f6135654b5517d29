"""An engine's phases: messages, counters, the check at idle, the cost of a launch, the replies."""

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
from minisched.loops.mini_detokenize import DetokenizeMsg
from minisched.loops.run import make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import MemoryLeak, SchedulerConfig
from minisched.trace import NullRecorder
from tests.support import (
    SOME_LOOPS,
    VOCAB,
    Workload,
    a_request,
    hash_model,
    many,
    play,
    play_timed,
    timed_workloads,
    workloads,
)

MODEL = hash_model("sim", frozenset())


def an_engine(*requests: Request, recorder: Any = None) -> Engine:
    device = SimDevice(recorder) if recorder else SimDevice()
    return make_engine("serial", device, MODEL, SchedulerConfig(), Frontend(requests))


def run_to_end(engine: Engine) -> None:
    while not engine.is_done:
        engine.recv_requests()
        if batch := engine.get_next_batch_to_run():
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()


# -- messages --------------------------------------------------------------------------------------


def test_each_message_goes_to_the_handler_of_its_type() -> None:
    engine = an_engine()
    handle = engine.inbox.process_input_requests
    assert handle([a_request("r0")]) == [] and list(engine.scheduler.live) == ["r0"]
    twice = AbortReq("r0")
    assert [output.rid for output in handle([AbortReq("nobody"), twice, twice])] == ["r0"]
    handle([a_request("r1"), a_request("r2")])
    assert [output.rid for output in handle([AbortReq(abort_all=True)])] == ["r1", "r2"]
    dispatch = TypeBasedDispatcher([(AbortReq, lambda message: []), (Request, lambda message: [])])
    with pytest.raises(TypeError, match=r"type str came, but .* are AbortReq, Request"):
        dispatch("hello")


def test_the_cache_is_flushed_only_while_nothing_runs() -> None:
    engine = an_engine(a_request("r0"))
    engine.frontend.flush_cache()
    run_to_end(engine)
    tree, handle = engine.scheduler.tree, engine.inbox.process_input_requests
    assert tree is not None and tree.total_size > 0
    handle([FlushCacheReq()])
    assert tree.total_size == 0
    handle([a_request("r1")])
    engine.get_next_batch_to_run()
    handle([FlushCacheReq()])
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


# -- counters, and the check at idle ---------------------------------------------------------------


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=many(6, 60))
def test_counters_change_and_end_where_they_should(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    values: dict[str, list[int]] = {}
    for counter in run.trace.counters:
        values.setdefault(counter.name, []).append(counter.value)
    assert {*values} >= {"waiting", "running", "kv used", "kv cached", "new token ratio"}
    for name in ("waiting", "running", "kv used", "kv cached", "new token ratio"):
        assert all(a != b for a, b in pairwise(values[name])), "only what changed is recorded"
    assert all(values[name][-1] == 0 for name in ("waiting", "running", "kv used"))
    assert max(values["running"]) <= workload.config.max_running_requests
    assert max(values["kv used"]) <= workload.config.num_slots
    tree = run.engine.scheduler.tree
    cached = (tree.total_size if tree else 0) * workload.config.page_size
    assert values["kv cached"][-1] == cached
    assert run.engine.recording.delivered_by == {}, "of requests that have ended nothing is kept"


def test_nothing_is_recorded_where_nothing_is_kept() -> None:
    engine = an_engine(*(a_request(f"r{i}") for i in range(3)), recorder=NullRecorder())
    run_to_end(engine)
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


# -- a decode batch larger than any graph is launched op by op -------------------------------------


@SOME_LOOPS
@pytest.mark.parametrize(
    ("rows", "limit", "eager"), [(1, 0, 50), (3, 3, 50), (4, 3, None), (8, None, 50)]
)
def test_what_a_launch_costs_depends_on_the_largest_graph(
    loop: str, relay: str, options: dict[str, Any], rows: int, limit: int | None, eager: int | None
) -> None:
    """Without a cost of its own an eager launch only leaves its mark."""
    host = {"launch": 5, **({"launch eager": eager} if eager else {})}
    cost = CostModel(host, forward_base=10, sample=1, copy=1)
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"r{i}", [i, 1], params) for i in range(rows)]
    config = SchedulerConfig(cuda_graph_max_bs=limit)
    trace = run_loop(loop, SimDevice(), MODEL, requests, config, cost).trace
    took: dict[str, dict[int, int]] = {mode.value: {} for mode in ForwardMode}
    for item in trace.slices:
        if item.name == "launch":  # by whatever thread, in however many parts
            steps = took[item.mode]
            steps[item.step] = steps.get(item.step, 0) + item.duration
    is_eager = limit is not None and rows > limit
    assert {*took["decode"].values()} == {(eager or 5) if is_eager else 5}
    assert {*took["extend"].values()} == {5}
    marks = [mark.attrs for mark in trace.marks if mark.name == "eager launch"]
    assert [mark["step"] for mark in marks] == (sorted(took["decode"]) if is_eager else [])
    assert all(mark["rows"] == rows for mark in marks)


# -- mini-sglang's replies: a message for each token, finished on the last one ---------------------


def wrong_messages(workload: Workload, replies: list[list[DetokenizeMsg]]) -> list[str]:
    """Whose messages are not theirs: each token once, in order; one reply has one of a request."""
    wrong = []
    for req in workload.requests:
        mine = [[message for message in reply if message.uid == req.rid] for reply in replies]
        told = req.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        said = [(message.next_token, message.finished) for each in mine for message in each]
        last = len(req.output_ids) - 1
        expected = [(token, told and at == last) for at, token in enumerate(req.output_ids)]
        if said != expected or max(map(len, mine), default=0) > 1:
            wrong.append(req.rid)
    return wrong


@pytest.mark.parametrize("loop", ["mini_normal", "mini_overlap"])
@given(workload=workloads(), is_taken=st.booleans())
@settings(max_examples=many(12, 100))
def test_one_message_for_each_token_and_one_reply_for_each_step(
    loop: str, workload: Workload, is_taken: bool
) -> None:
    """Without a taker the messages stand in the trace."""
    replies: list[list[DetokenizeMsg]] = []
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    options = {"send_result": replies.append} if is_taken else {}
    play(workload, loop, "token_pool", options, device, model)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    told = [mark.attrs for mark in trace.marks if mark.name == "detokenize"]
    if is_taken:
        assert len(replies) == sum(item.name == "process" for item in trace.slices) and not told
    replies += [[DetokenizeMsg(**attrs)] for attrs in told]  # type: ignore[arg-type]
    assert not wrong_messages(workload, replies)
