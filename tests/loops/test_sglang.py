"""SGLang's overlap, on one thread and with a worker thread: what disables it, what sampling waits
for, who hands what to whom, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from itertools import count, pairwise, product
from typing import Any

import pytest

import minisched.loops.overlap_thread_worker as tp_worker_thread
from minisched.core import FinishReason, ForwardMode, NoBatch, Output, Request, ScheduleBatch
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.overlap_rules import is_disable_overlap_for_batch
from minisched.loops.overlap_thread_client import TpModelWorkerClient
from minisched.loops.overlap_thread_worker import FutureStep
from minisched.loops.run import make_engine, run_loop
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import (
    BACKENDS,
    VOCAB,
    Workload,
    check_identity,
    check_no_thread_left,
    hash_model,
    marked,
    named,
    open_device,
    play,
    some_requests,
    tokens,
)

COST = CostModel(
    {"schedule": 5, "prepare": 2, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=20, sample=2, copy=1,
)  # fmt: skip


def some_run(loop: str, cost: CostModel = COST, **options: Any) -> Trace:
    """Two requests, the second one while the first decodes."""
    requests = [
        Request("r0", [1, 2, 3], tokens(9)),
        Request("r1", [4, 5], tokens(6), arrival_time=70),
    ]
    return run_loop(loop, SimDevice(), HashModel(), requests, cost=cost, **options).trace


# -- overlap: what keeps a batch from overlapping --------------------------------------------------

BATCHES = {
    "none": NoBatch.WAIT,
    "extend": ScheduleBatch(1, ForwardMode.EXTEND, 1),
    "decode": ScheduleBatch(1, ForwardMode.DECODE, 0),
    "verify": ScheduleBatch(1, ForwardMode.TARGET_VERIFY, 0),
    "mixed": ScheduleBatch(1, ForwardMode.MIXED, 1),
}


def test_overlap_is_disabled_for_two_reasons_and_no_other() -> None:
    for kind, last, results, option, speculates, missing in product(
        BATCHES, BATCHES, range(3), (False, True), (False, True), ("", "grammar", "penalty")
    ):
        disabled = is_disable_overlap_for_batch(
            BATCHES[kind], BATCHES[last], results, disable_consecutive_prefill_overlap=option,
            is_speculative=speculates, missing_history=missing,
        )  # fmt: skip
        prefills = option and {kind, last} <= {"extend", "mixed"}  # prompts are in both
        blind_draft = kind in ("decode", "verify") and speculates and results > 0
        assert disabled == ("prefill" if prefills else missing if blind_draft else "")


@pytest.mark.parametrize("loop", ["overlap", "mixed"])
@pytest.mark.parametrize("rule", [True, False])
def test_steps_with_prompts_overlap_unless_the_rule_says_no(loop: str, rule: bool) -> None:
    """Prompts alone, or beside rows that decode: SGLang's ``is_extend`` says yes to both."""
    late = Request("b", [3] * 24, tokens(3), arrival_time=60 * MILLISECOND)
    run = run_loop(
        loop, SimDevice(), HashModel(), [Request("a", [1] * 14, tokens(20)), late],
        SchedulerConfig(chunked_prefill_size=6), SIM_COST, disable_consecutive_prefill_overlap=rule,
    )  # fmt: skip
    launches, done = (named(run.trace, name, "host") for name in ("launch", "process"))
    pairs, overlapped = set(), 0
    for before, after in pairwise(launches[step] for step in sorted(launches)):
        if {before.mode, after.mode} <= {"extend", "mixed"}:
            pairs.add((before.mode, after.mode))
            overlapped += done[before.step].end > after.start
    assert (overlapped == 0) is rule
    assert pairs >= {("extend", "extend")} | ({("mixed", "mixed")} if loop == "mixed" else set())


@pytest.mark.parametrize("relay", ["ring", "pool", "token_pool"])
def test_delayed_sampling_follows_the_result_before_it_and_the_forward_pass_does_not(
    relay: str,
) -> None:
    trace = some_run("overlap", relay=relay, delay_sample=True)
    launches, masks, processed = (
        named(trace, name, "host") for name in ("launch", "mask", "process")
    )
    samples = named(trace, "sample")
    assert masks.keys() == launches.keys() == samples.keys() != set()
    for step, mask in masks.items():
        assert launches[step].end <= mask.start < samples[step].start
        if step > 1:
            assert launches[step].end <= processed[step - 1].start, "the pass waits for nothing"
            assert processed[step - 1].end <= mask.start


@pytest.mark.parametrize("loop", ["overlap", "overlap_thread"])
def test_a_step_that_fails_before_it_reads_leaves_the_page_table_to_the_step_behind_it(
    loop: str,
) -> None:
    """That one is in flight already, and would write through cells of whoever had the row."""
    prompts = [7, 7, 11, 2, 7, 7, 0, 0, 0], [0], [0] * 5
    requests = [Request(f"r{i}", prompt, tokens(1)) for i, prompt in enumerate(prompts)]
    requests[2].priority = 1  # it takes the row, and the error, while r0 has a prefix cached
    config = SchedulerConfig(
        kv_tokens=16, page_size=4, max_running_requests=1, chunked_prefill_size=4,
        schedule_policy="priority", priority_scheduling_preemption_threshold=0, context_len=32,
    )  # fmt: skip
    workload = Workload(requests, [0, 0, 1], {}, config)

    def fail(engine: Engine) -> None:
        resolve, calls = engine.worker.relay.resolve, count(1)

        def failing(*args: Any) -> Any:
            if next(calls) == 5:
                raise RuntimeError("the relay is out of luck")
            return resolve(*args)

        engine.worker.relay.resolve = failing  # type: ignore[method-assign]

    play(workload, loop, "ring", {}, SimDevice(), HashModel(VOCAB, eos_ids=frozenset()), patch=fail)
    assert "out of luck" in requests[2].error
    requests.pop()
    check_identity(workload)


# -- overlap_thread: who waits for whom ------------------------------------------------------------

EVERY_OPTION = pytest.mark.parametrize(
    "options", [{}, {"delay_sample": True}, {"wait_launch_done": False}], ids=str
)


@EVERY_OPTION
def test_the_thread_launches_and_the_scheduler_does_not(options: dict[str, Any]) -> None:
    trace = some_run("overlap_thread", **options)
    assert not named(trace, "launch", "host")
    prepared = named(trace, "prepare", "host")
    launches = named(trace, "launch", "worker thread")
    samplings = named(trace, "launch sample", "worker thread")
    forwards, samples = named(trace, "forward"), named(trace, "sample")
    assert launches.keys() == samplings.keys() == forwards.keys() == samples.keys() != set()
    for step, launch in launches.items():
        assert prepared[step].end <= launch.start  # sync_event
        assert launch.end <= forwards[step].start
        assert launch.end <= samplings[step].start and samplings[step].end <= samples[step].start
    edges = {(edge.src, edge.dst) for edge in trace.edges if edge.kind == "launch"}
    assert edges == {(launches[step].id, forwards[step].id) for step in launches}


@pytest.mark.parametrize("waits", [True, False])
def test_the_scheduler_waits_until_what_it_put_is_launched(waits: bool) -> None:
    """``launch_done`` of step N holds back the processing of N-1, and N's sampling does not."""
    trace = some_run("overlap_thread", replace(COST, forward_base=1), wait_launch_done=waits)
    launches = named(trace, "launch", "worker thread")
    samplings = named(trace, "launch sample", "worker thread")
    prepared = named(trace, "prepare", "host")
    both = [
        (done, launches[step + 1], samplings[step + 1])
        for step, done in named(trace, "process", "host").items()
        if step + 1 in launches and prepared[step + 1].end <= done.start
    ]
    assert len(both) > 5
    assert all(launch.end <= done.start for done, launch, _ in both) == waits
    assert any(sampling.end > done.start for done, _, sampling in both)


def test_sampling_waits_for_the_mask_and_the_mask_for_the_tokens_before() -> None:
    trace = some_run("overlap_thread", delay_sample=True)
    masks, processed = (named(trace, name, "host") for name in ("mask", "process"))
    samplings = named(trace, "launch sample", "worker thread")
    assert masks.keys() == samplings.keys()
    for step, mask in masks.items():
        assert mask.end <= samplings[step].start
        assert step - 1 not in processed or processed[step - 1].end <= mask.start
    assert not named(some_run("overlap_thread"), "mask")


def client_of(device: Any, model: Any, cost: CostModel = COST) -> TpModelWorkerClient:
    """A client by hand, with one request that has come."""
    frontend = Frontend([Request("r0", [1, 2, 3], tokens(9))])
    engine = make_engine("overlap_thread", device, model, SchedulerConfig(), frontend, cost)
    engine.recv_requests()
    return TpModelWorkerClient(engine)


def put(client: TpModelWorkerClient, needs_mask: bool) -> FutureStep:
    """The next batch."""
    batch = client.engine.get_next_batch_to_run()
    assert isinstance(batch, ScheduleBatch)
    return client.forward_batch_generation(batch, needs_mask)


def test_what_the_client_gives_back_at_once_is_what_the_next_step_reads() -> None:
    """Minus the future slots: the ids of the step's tokens until the host knows them."""
    client = client_of(SimDevice(), HashModel())
    first, second = put(client, False), put(client, False)
    assert not second.launch_done.query()  # nobody has launched it
    assert first.future_next_token_ids == [-1] and second.batch.ids == [(None,)]
    record = client.forward_thread.batch_lists
    second.launch_done.synchronize()
    inputs = record.batch_record_buf[record.batch_record_ct]
    assert isinstance(inputs, ForwardBatch) and inputs.ids == first.future_next_token_ids


# -- overlap_thread: nothing stays behind ----------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@EVERY_OPTION
@pytest.mark.parametrize("at", [1, 5])
def test_a_thread_that_fails_ends_a_step_with_its_error(
    backend: str, options: dict[str, Any], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is kept waiting for a thread that has given up, and none is left."""
    make, calls = tp_worker_thread.make_forward_batch, count(1)

    def failing(*args: Any) -> ForwardBatch:
        if next(calls) == at:
            raise RuntimeError("the thread is out of luck")
        return make(*args)

    monkeypatch.setattr(tp_worker_thread, "make_forward_batch", failing)
    requests = some_requests(9)
    model = hash_model(backend, frozenset())
    run = run_loop("overlap_thread", open_device(backend), model, requests, **options)
    assert {error.partition(": ")[2] for error in run.errors.values()} == {
        "the thread is out of luck"
    }
    assert all(req.finished and req.lease is None for req in requests)
    check_no_thread_left()


@pytest.mark.parametrize("loop", ["serial", "overlap_thread", "mindie_plugin", "multi_step"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_ends_every_request_and_leaves_no_thread_and_no_lease(
    backend: str, loop: str
) -> None:
    """The signal itself, which also whoever is still to come hears."""
    requests = [Request(f"r{i}", [1, 2], tokens(500)) for i in range(3)]
    requests.append(Request("late", [1], tokens(500), arrival_time=10**15))
    calls = count(1)

    def press_ctrl_c(output: Output) -> None:
        if next(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    model = hash_model(backend, frozenset())
    run = run_loop(loop, open_device(backend), model, requests, on_output=press_ctrl_c)
    assert run.interrupted and not marked(run.trace, "stopped")
    assert {req.finish_reason for req in requests} == {FinishReason.ABORT}
    assert all(req.lease is None for req in requests)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    check_no_thread_left()


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_loop_that_is_dropped_in_the_middle_leaves_no_thread(backend: str) -> None:
    """The thread may be waiting for a mask that nobody will build any more."""
    device, before = open_device(backend), threading.active_count()
    client = client_of(device, hash_model(backend, frozenset()), CostModel())
    steps = [put(client, True) for _ in range(2)]
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
