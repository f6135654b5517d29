"""The worker thread: who waits for whom, how long a step takes, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisched.loops.overlap_thread_worker as tp_worker_thread
from minisched.checks.case import Case
from minisched.checks.faults.in_step import ForwardRaises
from minisched.checks.faults.trial import try_fault
from minisched.checks.overlap.overlap import step_intervals
from minisched.core import FinishReason, Output, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.overlap_thread_client import TpModelWorkerClient
from minisched.loops.overlap_thread_worker import FutureStep
from minisched.loops.run import make_engine, run_loop
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from tests.support import (
    EVERY_BACKEND,
    VOCAB,
    Workload,
    check_all,
    check_no_thread_left,
    hash_model,
    open_device,
    play,
    some_requests,
    workloads,
)
from tests.test_overlap import check_one_row_is_wasted

LOOP = "overlap_thread"
EVERY_RELAY = pytest.mark.parametrize("relay", ["ring", "pool"])
EVERY_OPTION = pytest.mark.parametrize(
    "options", [{}, {"delay_sample": True}, {"wait_launch_done": False}], ids=str
)
costs = st.builds(
    lambda host, launch, sample, mask, forward, copy: CostModel(
        {"schedule": host, "process": host, "launch": launch, "launch sample": sample,
         "mask": mask},
        forward, 0, 2, copy,
    ),
    host=st.sampled_from([0, 1, 20]),
    launch=st.sampled_from([0, 3, 25]),
    sample=st.sampled_from([0, 2, 30]),
    mask=st.sampled_from([0, 4, 30]),
    forward=st.sampled_from([1, 10]),
    copy=st.sampled_from([0, 1, 9]),
)  # fmt: skip


# -- laws that test_laws.py checks with other costs -----------------------------------------------


@EVERY_RELAY
@EVERY_OPTION
@given(workload=workloads(), cost=costs)
@settings(max_examples=60, deadline=None)
def test_laws_on_sim(
    relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    device = SimDevice()
    model = hash_model("sim", workload.eos_ids)
    check_all(workload, *play(workload, LOOP, relay, options, device, model, cost))
    assert device.is_idle


@EVERY_RELAY
@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_one_row_is_wasted_for_an_end_that_nobody_foresaw(relay: str, workload: Workload) -> None:
    check_one_row_is_wasted(LOOP, relay, workload)


# -- who waits for whom ----------------------------------------------------------------------------

COST = CostModel(
    {"schedule": 5, "prepare": 2, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=20,
    sample=2,
    copy=1,
)


def some_run(cost: CostModel = COST, **options: Any) -> Trace:
    """Two requests, the second one while the first decodes."""
    requests = [
        Request("r0", [1, 2, 3], SamplingParams(max_new_tokens=9, ignore_eos=True)),
        Request("r1", [4, 5], SamplingParams(max_new_tokens=6, ignore_eos=True), arrival_time=70),
    ]
    return run_loop(LOOP, SimDevice(), HashModel(), requests, cost=cost, **options).trace


def slices(trace: Trace, lane: str, name: str) -> dict[int, Slice]:
    """The slices of that name on a lane, by step."""
    return {item.step: item for item in trace.on(lane) if item.name == name}


@EVERY_OPTION
def test_the_thread_launches_and_the_scheduler_does_not(options: dict[str, Any]) -> None:
    trace = some_run(**options)
    assert not slices(trace, "host", "launch")
    prepared = slices(trace, "host", "prepare")
    launches = slices(trace, "worker thread", "launch")
    samplings = slices(trace, "worker thread", "launch sample")
    forwards, samples = slices(trace, "forward", "forward"), slices(trace, "forward", "sample")
    assert launches.keys() == samplings.keys() == forwards.keys() == samples.keys() != set()
    for step, launch in launches.items():
        assert prepared[step].end <= launch.start  # sync_event
        assert launch.end <= forwards[step].start
        assert launch.end <= samplings[step].start and samplings[step].end <= samples[step].start
    edges = {(edge.src, edge.dst) for edge in trace.edges if edge.kind == "launch"}
    assert edges == {(launches[step].id, forwards[step].id) for step in launches}


def test_the_scheduler_waits_until_what_it_put_is_launched() -> None:
    """``launch_done`` of step N holds back the processing of N-1, and N's sampling does not."""
    for waits in (True, False):
        trace = some_run(replace(COST, forward_base=1), wait_launch_done=waits)
        launches = slices(trace, "worker thread", "launch")
        samplings = slices(trace, "worker thread", "launch sample")
        both = [
            (done, launches[step + 1], samplings[step + 1])
            for step, done in slices(trace, "host", "process").items()
            if step + 1 in launches and slices(trace, "host", "prepare")[step + 1].end <= done.start
        ]
        assert len(both) > 5
        assert all(launch.end <= done.start for done, launch, _ in both) == waits
        assert any(sampling.end > done.start for done, _, sampling in both)


def test_sampling_waits_for_the_mask_and_the_mask_for_the_tokens_before() -> None:
    trace = some_run(delay_sample=True)
    masks = slices(trace, "host", "mask")
    samplings = slices(trace, "worker thread", "launch sample")
    processed = slices(trace, "host", "process")
    assert masks.keys() == samplings.keys()
    for step, mask in masks.items():
        assert mask.end <= samplings[step].start
        assert step - 1 not in processed or processed[step - 1].end <= mask.start
    assert not slices(some_run(), "host", "mask")


def test_what_the_client_gives_back_at_once_is_what_the_next_step_reads() -> None:
    """Minus the future slots: the ids of the step's tokens until the host knows them."""
    device, seen = SimDevice(), []
    request = Request("r0", [1, 2, 3], SamplingParams(max_new_tokens=9, ignore_eos=True))
    engine = make_engine(LOOP, device, HashModel(), SchedulerConfig(), Frontend([request]), COST)
    client = TpModelWorkerClient(engine)
    engine.recv_requests()
    for _ in range(2):
        batch = engine.get_next_batch_to_run()
        assert isinstance(batch, ScheduleBatch)
        seen.append(client.forward_batch_generation(batch, needs_mask=False))
    first, second = seen
    assert not second.launch_done.query()  # nobody has launched it
    assert first.future_next_token_ids == [-1] and second.batch.ids == [(None,)]
    record = client.forward_thread.batch_lists
    second.launch_done.synchronize()
    inputs = record.batch_record_buf[record.batch_record_ct]
    assert isinstance(inputs, ForwardBatch) and inputs.ids == first.future_next_token_ids


# -- how long a step takes -------------------------------------------------------------------------


def run_steady(cost: CostModel, regex: str | None = None, **options: Any) -> list[int]:
    """The intervals of decode steps of one request, once the loop has settled."""
    params = SamplingParams(max_new_tokens=48, ignore_eos=True, regex=regex)
    request = Request("r", [1, 2, 3], params)
    run = run_loop(LOOP, SimDevice(), HashModel(VOCAB), [request], cost=cost, **options)
    return step_intervals(run.trace)[12:40]


@st.composite
def parts(draw: st.DrawFn) -> dict[str, int]:
    """What each phase and each op takes; any of them may be the slowest."""
    names = ("schedule", "prepare", "process", "output", "launch", "launch sample", "mask")
    cost = {name: 2 * draw(st.integers(0, 60)) for name in (*names, "sample", "copy")}
    return {**cost, "forward": 2 * draw(st.integers(1, 120))}


def cost_of(part: dict[str, int]) -> CostModel:
    """The cost model with these parts."""
    return CostModel(part, forward_base=part["forward"], sample=part["sample"], copy=part["copy"])


@given(part=parts())
@settings(max_examples=200, deadline=None)
def test_a_settled_step_takes_what_the_law_says(part: dict[str, int]) -> None:
    """Two steps take twice what the docstring of the loop says, exactly."""
    h = part["schedule"] + part["prepare"] + part["process"] + part["output"]
    launch, s, e, c = part["launch"], part["launch sample"], part["sample"], part["copy"]
    d = part["forward"] + e
    for waits in (True, False):
        intervals = run_steady(cost_of(part), wait_launch_done=waits)
        alone, both = h + launch if waits else h, h + launch
        law = max(2 * d, 2 * c, 2 * alone, 2 * (launch + s), d + c + both, e + c + both + s)
        assert {sum(pair) for pair in pairwise(intervals)} == {law}


@given(part=parts(), has_grammar=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_mask_chains_each_sampling_to_the_one_before(
    part: dict[str, int], has_grammar: bool
) -> None:
    """Copy, process, mask, launch and sample follow one another: no step can be shorter.

    The option only shows what a grammar takes, without having one.
    """
    known = part["process"] + part["output"] + part["mask"]
    s, e, c = part["launch sample"], part["sample"], part["copy"]
    h = known + part["schedule"] + part["prepare"]
    launch, d = part["launch"], part["forward"] + e
    chain = c + known + s + e
    turns = 2 * (h + launch), 2 * (launch + known + s)
    law = max(2 * d, 2 * c, *turns, 2 * chain, d + c + h + launch, d + c + known + s + launch)
    regex = r"[\x00-\x09]{60}" if has_grammar else None
    intervals = run_steady(cost_of(part), regex, delay_sample=not has_grammar)
    assert {sum(pair) for pair in pairwise(intervals)} == {law}


# -- nothing stays behind --------------------------------------------------------------------------


@EVERY_BACKEND
@EVERY_OPTION
@given(workload=workloads(with_aborts=False), at=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_a_failed_step_ends_only_its_own_requests(
    backend: str, options: dict[str, Any], workload: Workload, at: int
) -> None:
    case = Case(workload, LOOP, "ring", options, device=backend)
    assert not try_fault(case, ForwardRaises(at)).findings


@EVERY_BACKEND
@EVERY_OPTION
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_thread_that_fails_ends_a_step_with_its_error(
    backend: str, options: dict[str, Any], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is kept waiting for a thread that has given up, and none is left."""
    calls = [0]

    def failing(*args: Any) -> ForwardBatch:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("the thread is out of luck")
        return make(*args)

    make = tp_worker_thread.make_forward_batch
    monkeypatch.setattr(tp_worker_thread, "make_forward_batch", failing)
    model = hash_model(backend, frozenset())
    requests = some_requests()
    run = run_loop(LOOP, open_device(backend), model, requests, **options)
    assert {error.partition(":")[2] for error in run.errors.values()} == {
        " the thread is out of luck"
    }
    assert all(req.finished and req.lease is None for req in requests)
    check_no_thread_left()


@EVERY_BACKEND
@EVERY_OPTION
def test_ctrl_c_leaves_no_thread_and_no_lease(backend: str, options: dict[str, Any]) -> None:
    params = SamplingParams(max_new_tokens=500, ignore_eos=True)
    requests = [Request(f"r{i}", [1, 2], params) for i in range(3)]
    heard: list[Output] = []

    def press_ctrl_c(output: Output) -> None:
        heard.append(output)
        if len(heard) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    model = hash_model(backend, frozenset())
    run = run_loop(LOOP, open_device(backend), model, requests, on_output=press_ctrl_c, **options)
    assert run.interrupted
    assert {req.finish_reason for req in requests} == {FinishReason.ABORT}
    assert all(req.lease is None for req in requests)
    check_no_thread_left()


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_loop_that_is_dropped_in_the_middle_leaves_no_thread(backend: str) -> None:
    """The thread may be waiting for a mask that nobody will build any more."""
    device, before = open_device(backend), threading.active_count()
    request = Request("r0", [1, 2, 3], SamplingParams(max_new_tokens=9, ignore_eos=True))
    model = hash_model(backend, frozenset())
    engine = make_engine(LOOP, device, model, SchedulerConfig(), Frontend([request]))
    client = TpModelWorkerClient(engine)
    engine.recv_requests()
    steps: list[FutureStep] = []
    for _ in range(2):
        batch = engine.get_next_batch_to_run()
        assert isinstance(batch, ScheduleBatch)
        steps.append(client.forward_batch_generation(batch, needs_mask=True))
    steps[0].launch_done.synchronize()
    assert threading.active_count() > before and not client.output_queue[0].query()
    device.close()
    check_no_thread_left()
    assert all(op.query() for op in client.output_queue)  # whoever asks is not kept waiting
    try:
        said = client.resolve_last_batch_result(steps[0], None)[1].error
    except RuntimeError as error:
        said = str(error)
    assert "the device " in said and "closed" in said
