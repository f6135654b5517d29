"""Output in flight when its request is preempted: delivered all the same, and no counter moves.

That the laws hold is judged by ``tests/laws/test_every_design.py``; here are the books beside them,
and the other rule: what comes back for a lease that is gone is dropped, and computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from minisched.checks.case import Case
from minisched.checks.draw.designs import read_design
from minisched.checks.judge import judge
from minisched.core import Output, Request, SamplingParams, ScheduleBatch
from minisched.engine.engine import Engine
from minisched.policy.schedule_policy import SchedulePolicy
from minisched.policy.waiting_queue import WaitingQueue
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder, Trace
from tests.support import VOCAB, Workload, check_all, hash_model, many, open_device, play

LOOPS = ("vllm_batch_queue:host:depth=3", "vllm_async:prev_sampled", "vllm_async:pool:depth=3",
         "vllm_async:pool:depth=5", "vllm_pp4")  # fmt: skip


class Books:
    """The counters of every request, kept a second time, and what must be true of them."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = engine.scheduler
        self.flying: list[ScheduleBatch] = []
        self.stale = 0
        next_batch, process = engine.scheduler.next_batch, engine.scheduler.process

        def schedule() -> Any:
            batch = next_batch()
            self.flying += [batch] if isinstance(batch, ScheduleBatch) else []
            self.check()
            return batch

        def update(batch: ScheduleBatch, result: Any) -> Any:
            self.flying.remove(batch)
            stale = [req for req in batch.reqs if req.num_stale_output_tokens]
            before = [(req.computed_len, req.num_output_placeholders) for req in stale]
            outputs = process(batch, result)
            after = [(req.computed_len, req.num_output_placeholders) for req in stale]
            assert before == after == [(0, 0)] * len(stale), "stale output moves no counter"
            self.stale += len(stale)
            self.check()
            return outputs

        self.scheduler.next_batch = schedule  # type: ignore[method-assign]
        self.scheduler.process = update  # type: ignore[method-assign]

    def check(self) -> None:
        """What is in flight is what is launched; what is stale waits aside."""
        in_flight, lost = Counter[str](), Counter[str]()
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


def drop(engine: Engine) -> None:
    """The other rule."""
    engine.scheduler.config = replace(engine.scheduler.config, keep_stale_outputs=False)


def tight(seed: int, loop: str) -> Case:
    """Requests that all come at once, in a pool that holds little more than the longest."""
    rng, design = Random(seed), read_design(loop)
    requests = [
        Request(
            f"r{at}",
            [rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))],
            SamplingParams(rng.choice((0.0, 0.7)), max_new_tokens=rng.randint(8, 14), seed=at),
        )
        for at in range(rng.randint(2, 4))
    ]
    page_size = rng.choice((1, 2))
    longest = max(req.max_device_len for req in requests)
    config = SchedulerConfig(
        kv_tokens=(-(-longest // page_size) + rng.randrange(3)) * page_size,
        page_size=page_size,
        max_running_requests=4,
        chunked_prefill_size=rng.choice((-1, 2 * page_size)),
        run_first=rng.choice(("prefill", "unified")),
        disable_radix_cache=rng.random() < 0.5,
        schedule_conservativeness=0.0,
        context_len=32,
    )
    workload = Workload(requests, [0] * len(requests), {}, config, frozenset())
    return Case(workload, design.loop, design.relay, design.options)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_books_agree_where_output_is_stale_and_dropping_it_is_right_as_well(loop: str) -> None:
    books = list[Books]()
    for seed in range(many(6, 300)):
        kept = judge(tight(seed, loop), lambda engine: books.append(Books(engine)))
        assert kept.holds, (seed, kept.findings)
        dropped = judge(tight(seed, loop), drop)
        assert dropped.holds, (seed, dropped.findings)
        assert not marks(dropped.trace, "stale output")
    assert sum(book.stale for book in books) > 3


def marks(trace: Trace, name: str) -> Counter[str]:
    """How many marks of a name there are, by request."""
    return Counter(str(mark.attrs["rid"]) for mark in trace.marks if mark.name == name)


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
    device, model = open_device("sim"), hash_model("sim", workload.eos_ids)
    play(workload, "vllm_async", "pool", {"depth": depth}, device, model, patch=rule)
    trace = device.recorder.trace("", "", "", "")
    assert marks(trace, "retraction") == {"new": 1}
    steps = {item.step for item in trace.on("forward")}
    outputs = [req.output_ids for req in workload.requests]
    return Found(outputs, len(steps), marks(trace, "wasted row"), marks(trace, "stale output"))


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

        def watched(*args: Any, **more: Any) -> list[Output]:
            outputs = late(*args, **more)
            ended.extend(item.rid for item in outputs if item.finish_reason)
            return outputs

        engine.scheduler._late = watched  # type: ignore[method-assign]

    for count in range(4, 10):
        workload = two_in_a_pool_for_one("unified", 18, 14, count)
        device, model = open_device("sim"), hash_model("sim", workload.eos_ids)
        options = {"depth": 3}
        engine, outputs = play(workload, "vllm_async", "pool", options, device, model, patch=watch)
        check_all(workload, engine, outputs)
        assert not list(engine.scheduler.waiting_queue)
    assert set(ended) == {"new"}


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
