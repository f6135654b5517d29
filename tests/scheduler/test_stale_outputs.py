"""Output in flight when its request is preempted: delivered all the same, and no counter moves.

That the laws hold is judged by ``tests/laws/test_every_design.py``; here are the books beside them,
and the other rule: what comes back for a lease that is gone is dropped, and computed again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.engine.engine import Engine
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import Workload, hash_model, open_device, play


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
    engine.scheduler.config = replace(engine.scheduler.config, keep_stale_outputs=False)


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


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [("unified", 18, 8, 12), ("prefill", 16, 8, 10)], ids=str)
def test_one_workload_under_both_rules(depth: int, sizes: tuple[str, int, int, int]) -> None:
    """depth - 1 rows are in flight at a preemption: all of them wasted, or none."""
    books, found = list[Books](), list[tuple[list[list[int]], int, Counter[str], Counter[str]]]()
    for rule in (lambda engine: books.append(Books(engine)), drop):
        workload, device = two_in_a_pool_for_one(*sizes), open_device("sim")
        model = hash_model("sim", workload.eos_ids)
        play(workload, "vllm_async", "pool", {"depth": depth}, device, model, patch=rule)
        trace = device.recorder.trace("", "", "", "")
        assert marks(trace, "retraction") == {"new": 1}
        outputs = [req.output_ids for req in workload.requests]
        steps = len({item.step for item in trace.on("forward")})
        found.append((outputs, steps, marks(trace, "wasted row"), marks(trace, "stale output")))
    (tokens, steps, *kept), (same_tokens, more_steps, *dropped) = found
    assert tokens == same_tokens and books[0].stale == depth - 1
    assert kept == [Counter(), Counter(new=depth - 1)]
    assert dropped == [Counter(new=depth - 1), Counter()]
    assert more_steps - steps == depth - 1, "each token dropped costs one more step"
