"""A failed step, an abort, a bad request, Ctrl-C: none of them costs another request anything."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.oracle import hash_oracle
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.sim import Deadlock, SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig

from .backends import SOME_LOOPS, check_no_thread_left, hash_model, open_device
from .laws import check_ends, check_leaks, play
from .workloads import VOCAB, Workload, workloads


def fail_once(engine: Engine, at: int) -> None:
    """Let the forward pass of the ``at``-th step raise."""
    model, forward, calls = engine.worker.model, engine.worker.model.forward, [0]

    def failing(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("the device is out of luck")
        return forward(*args)

    model.forward = failing  # type: ignore[method-assign]


def check_failed_step(
    backend: str, loop: str, relay: str, options: dict[str, Any], workload: Workload, at: int
) -> None:
    """The requests of the failed step end with its error, all others as if nothing happened."""
    model = hash_model(backend, workload.eos_ids)
    device = open_device(backend)
    engine, outputs = play(
        workload, loop, relay, options, device, model, patch=lambda e: fail_once(e, at)
    )
    check_ends(workload, outputs)
    check_leaks(engine)
    check_no_thread_left()
    for req in workload.requests:
        truth = hash_oracle(list(req.prompt), req.params, req.sampling_key, VOCAB, workload.eos_ids)
        if req.finish_reason is FinishReason.ERROR:
            assert "out of luck" in req.error
            truth = truth[: len(req.output_ids)]
        assert req.output_ids == truth


@SOME_LOOPS
@given(workload=workloads(with_aborts=False), at=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_a_failed_step_ends_only_its_own_requests_on_sim(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, at: int
) -> None:
    check_failed_step("sim", loop, relay, options, workload, at)


@SOME_LOOPS
@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(workload=workloads(with_aborts=False), at=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_failed_step_ends_only_its_own_requests_in_real_time(
    backend: str,
    loop: str,
    relay: str,
    options: dict[str, Any],
    workload: Workload,
    at: int,
) -> None:
    check_failed_step(backend, loop, relay, options, workload, at)


GOOD = SamplingParams(max_new_tokens=4, ignore_eos=True)
BAD_REQUESTS = [
    (Request("bad", []), "the prompt is empty"),
    (Request("bad", [1, 99, 2]), "token id 99 is outside the vocabulary, which ends at 18"),
    (Request("bad", [1, -1]), "token id -1 is outside the vocabulary"),
    (Request("bad", [1], SamplingParams(max_new_tokens=0)), "max_new_tokens is 0"),
    (Request("bad", [1], SamplingParams(temperature=-1)), "temperature is -1"),
    (Request("bad", [1], SamplingParams(top_p=0)), "top_p is 0"),
    (Request("bad", [1], SamplingParams(top_k=0)), "top_k is 0"),
    (Request("bad", [1] * 40, GOOD), "the prompt has 40 tokens"),
    (Request("bad", [1] * 25, GOOD), "more than the KV pool of 24 slots"),
    (Request("good", [1], GOOD), "request id 'good' is already in use"),
]


@SOME_LOOPS
@pytest.mark.parametrize(("bad", "sentence"), BAD_REQUESTS, ids=lambda value: str(value)[:30])
def test_a_bad_request_ends_with_its_reason_and_the_others_finish(
    loop: str, relay: str, options: dict[str, Any], bad: Request, sentence: str
) -> None:
    good = Request("good", [1, 2, 3], GOOD)
    bad = Request(bad.rid, bad.prompt, bad.params)
    config = SchedulerConfig(kv_tokens=24, context_len=32)
    heard: list[Output] = []
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=frozenset())
    run_loop(
        loop, device, model, [good, bad], config, relay=relay, on_output=heard.append, **options
    )
    assert sentence in bad.error and bad.error.count(".") <= 2
    assert bad.finish_reason is FinishReason.ERROR
    assert good.finish_reason is FinishReason.LENGTH and len(good.output_ids) == 4
    assert [output.error for output in heard if output.error] == [bad.error]


@SOME_LOOPS
def test_ctrl_c_aborts_every_request_and_leaves_nothing_behind(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    params = SamplingParams(max_new_tokens=500, ignore_eos=True)
    requests = [Request(f"r{i}", [1, 2], params, arrival_time=i) for i in range(3)]
    requests.append(Request("late", [1], params, arrival_time=10**15))
    count = 0

    def press_ctrl_c(output: Output) -> None:
        nonlocal count
        count += 1
        if count == 20:
            os.kill(os.getpid(), signal.SIGINT)

    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=frozenset())
    run = run_loop(loop, device, model, requests, relay=relay, on_output=press_ctrl_c, **options)
    assert run.interrupted and device.is_idle
    assert {req.finish_reason for req in requests} == {FinishReason.ABORT}
    assert all(req.lease is None for req in requests)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_waiting_for_an_op_that_can_never_run_is_a_named_deadlock() -> None:
    device = SimDevice()
    first, second = device.stream("first"), device.stream("second")
    blocker = second.launch(lambda: 0, name="never")
    first_op = first.launch(lambda: 1, name="runs")
    assert first_op.synchronize() == 1 and blocker.synchronize() == 0
    first.queue.append(("wait", type(blocker)(second, lambda: 0, ())))  # an op nobody launched
    stuck = first.launch(lambda: 2, name="stuck")
    with pytest.raises(Deadlock, match="waits for stuck"):
        stuck.synchronize()


@pytest.mark.parametrize(
    "name",
    [
        "page_size",
        "max_running_requests",
        "max_prefill_tokens",
        "chunked_prefill_size",
    ],
)
def test_a_size_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, but it must be at least 1"):
        SchedulerConfig(**{name: 0})


def test_a_pool_holds_at_least_one_page() -> None:
    with pytest.raises(ValueError, match="kv_tokens is 3, but it must be at least one page of 4"):
        SchedulerConfig(kv_tokens=3, page_size=4, chunked_prefill_size=4)
