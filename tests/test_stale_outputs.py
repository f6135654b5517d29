"""Output in flight when its request is preempted: delivered all the same, and no counter moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Output, Request, SamplingParams, ScheduleBatch
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.policy.schedule_policy import SchedulePolicy
from minisched.policy.waiting_queue import WaitingQueue
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder
from tests.support import Workload, check_all, configs, hash_model, params, play, prompts, workloads
from tests.vllm_runs import marks

LOOPS = [("vllm_batch_queue", "host", 3), ("vllm_async", "prev_sampled", 2),
         ("vllm_async", "pool", 3), ("vllm_async", "pool", 5), ("vllm_pp4", "host", 4)]  # fmt: skip
EVERY_CASE = pytest.mark.parametrize(("loop", "relay", "depth"), LOOPS)


@st.composite
def tight(draw: st.DrawFn) -> Workload:
    """Requests that all come at once, in a pool that holds little more than the longest."""
    reqs = [Request(f"r{i}", draw(prompts), draw(params)) for i in range(draw(st.integers(2, 4)))]
    size = draw(st.sampled_from([1, 2]))
    longest = max(req.max_device_len for req in reqs)
    config = draw(configs(size, -(-longest // size) + draw(st.integers(0, 3))))
    config = replace(config, max_running_requests=4, schedule_conservativeness=0.0)
    eos = draw(st.sampled_from([frozenset[int](), frozenset({2, 7})]))
    return Workload(reqs, [0] * len(reqs), {}, config, eos)


class Books:
    """The counters of every request, kept a second time, and what must be true of them."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = engine.scheduler
        self.flying: list[ScheduleBatch] = []
        self.running: dict[int, ScheduleBatch] = {}
        next_batch, process = engine.scheduler.next_batch, engine.scheduler.process
        worker, model = engine.worker, cast(HashModel, engine.worker.model)
        launch_forward, forward_layer = worker.launch_forward, model.forward_layer

        def schedule() -> Any:
            batch = next_batch()
            if batch:
                self.flying.append(batch)
            self.check()
            return batch

        def update(batch: ScheduleBatch, result: Any) -> Any:
            self.flying.remove(batch)
            before = {
                req.rid: (req.computed_len, req.num_output_placeholders) for req in batch.reqs
            }
            stale = [req for req in batch.reqs if req.num_stale_output_tokens]
            outputs = process(batch, result)
            for req in stale:
                now = req.computed_len, req.num_output_placeholders
                assert before[req.rid] == now == (0, 0), "stale output moves no counter"
            self.check()
            return outputs

        def launch(batch: ScheduleBatch, inputs: ForwardBatch, *args: Any) -> Any:
            self.running[inputs.label.step] = batch
            return launch_forward(batch, inputs, *args)

        def touch(number: int, inputs: ForwardBatch, *args: Any) -> Any:
            batch = self.running[inputs.label.step]
            assert not any(lease.is_released for lease in batch.leases), "a page was given back"
            return forward_layer(number, inputs, *args)

        self.scheduler.next_batch = schedule  # type: ignore[method-assign]
        self.scheduler.process = update  # type: ignore[method-assign]
        worker.launch_forward = launch  # type: ignore[method-assign]
        model.forward_layer = touch  # type: ignore[method-assign]

    def check(self) -> None:
        """What is in flight is what is launched; what is stale waits aside."""
        in_flight: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for batch in self.flying:
            for row in batch.rows:
                in_flight[row.req.rid] += row.extend_len
                lost[row.req.rid] += row.extend_len if row.req.lease is not row.lease else 0
        for req in self.scheduler.live.values():
            assert req.num_in_flight_tokens == in_flight[req.rid] >= 0
            assert req.num_stale_output_tokens == lost[req.rid] >= 0
            if req.num_stale_output_tokens:
                assert req.lease is None, "not resumed before it is drained"
                assert req in self.scheduler.waiting_queue


def keep_books(engine: Engine) -> None:
    """Let books be kept on an engine."""
    Books(engine)


@EVERY_CASE
@given(workload=st.one_of(tight(), workloads()))
@settings(max_examples=150, deadline=None)
def test_the_laws_hold_and_the_books_agree(
    loop: str, relay: str, depth: int, workload: Workload
) -> None:
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, {"depth": depth}, device, model, patch=keep_books)
    check_all(workload, engine, outputs)
    for req in workload.requests:
        heard = [output.token for output in outputs if output.rid == req.rid]
        assert [token for token in heard if token is not None] == req.output_ids, "in order"


def drop(engine: Engine) -> None:
    """The other rule: what comes back for a lease that is gone is dropped, and recomputed."""
    engine.scheduler.config = replace(engine.scheduler.config, keep_stale_outputs=False)


@EVERY_CASE
@given(workload=tight())
@settings(max_examples=100, deadline=None)
def test_dropping_them_instead_is_right_as_well(
    loop: str, relay: str, depth: int, workload: Workload
) -> None:
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, {"depth": depth}, device, model, patch=drop)
    check_all(workload, engine, outputs)
    assert not marks(device, "stale output")


def two_in_a_pool_for_one(run_first: str, kv_tokens: int, old: int, new: int) -> Workload:
    """Both decode until the pool is full; then the newer one is preempted, once."""
    reqs = [
        Request(rid, prompt, SamplingParams(max_new_tokens=count, ignore_eos=True))
        for rid, prompt, count in (("old", [1, 2], old), ("new", [3, 4], new))
    ]
    config = SchedulerConfig(
        kv_tokens=kv_tokens, schedule_conservativeness=0.0, context_len=32,
        disable_radix_cache=True, run_first=run_first,
    )  # fmt: skip
    return Workload(reqs, [0, 0], {}, config)


class Found(NamedTuple):
    """What a run under one of the rules gave and cost."""

    outputs: list[list[int]]
    steps: int
    wasted: Counter[str]
    stale: Counter[str]


def run_under(rule: Callable[[Engine], None], depth: int, workload: Workload) -> Found:
    """Async scheduling at a depth, and one preemption."""
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    play(workload, "vllm_async", "pool", {"depth": depth}, device, model, patch=rule)
    assert marks(device, "retraction") == {"new": 1}
    steps = {item.step for item in device.recorder.trace("", "", "", "").on("forward")}
    outputs = [req.output_ids for req in workload.requests]
    return Found(outputs, len(steps), marks(device, "wasted row"), marks(device, "stale output"))


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [("unified", 18, 8, 12), ("prefill", 16, 8, 10)], ids=str)
def test_one_workload_under_both_rules(depth: int, sizes: tuple[str, int, int, int]) -> None:
    """depth - 1 rows are in flight at a preemption: all of them wasted, or none."""
    kept = run_under(lambda engine: None, depth, two_in_a_pool_for_one(*sizes))
    dropped = run_under(drop, depth, two_in_a_pool_for_one(*sizes))
    assert kept.outputs == dropped.outputs, "the tokens are the same"
    assert (kept.wasted, kept.stale) == (Counter(), Counter(new=depth - 1))
    assert (dropped.wasted, dropped.stale) == (Counter(new=depth - 1), Counter())
    assert dropped.steps - kept.steps == depth - 1, "each token dropped costs one more step"


def test_a_stale_token_can_be_the_last_one() -> None:
    """It ends its request while that waits to be resumed: once, and nothing is left behind."""
    ended: list[str] = []

    def watch(engine: Engine) -> None:
        late = engine.scheduler._late

        def watched(*args: Any) -> list[Output]:
            outputs = late(*args)
            ended.extend(item.rid for item in outputs if item.finish_reason)
            return outputs

        engine.scheduler._late = watched  # type: ignore[method-assign]

    for count in range(4, 10):
        workload = two_in_a_pool_for_one("unified", 18, 14, count)
        device, model = SimDevice(), hash_model("sim", workload.eos_ids)
        options = {"depth": 3}
        engine, outputs = play(workload, "vllm_async", "pool", options, device, model, patch=watch)
        check_all(workload, engine, outputs)
        assert not list(engine.scheduler.waiting_queue)
    assert set(ended) == {"new"}


# -- the waiting queue ---------------------------------------------------------------------------


def test_who_waits_aside_stops_nobody_and_comes_back_to_its_place() -> None:
    queue = WaitingQueue(SchedulePolicy("fcfs", None), NullRecorder())
    first, second = Request("first", [1], order=0), Request("second", [2], order=1)
    first.num_stale_output_tokens = 1
    queue.add(first)
    queue.add(second)
    assert len(queue) == 2 and list(queue) == [first, second] and first in queue
    assert queue.first() is second and next(queue.in_order()) is second
    first.num_stale_output_tokens = 0
    queue.add(first)
    assert len(queue) == 2 and queue.first() is first
    first.num_stale_output_tokens = 1
    queue.remove(first)
    queue.add(first)
    queue.remove(first)
    assert first not in queue and list(queue) == [second]
