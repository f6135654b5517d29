"""Output in flight when its request is preempted: delivered all the same, and no counter moves.

That the laws hold is judged by ``tests/laws/test_every_design.py``; here it is set beside the other
rule: what comes back for a lease that is gone is dropped, and computed again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from minisched.core import Request, SamplingParams
from minisched.engine.engine import Engine
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import Workload, hash_model, open_device, play


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
    found = list[tuple[list[list[int]], int, Counter[str], Counter[str]]]()
    for rule in (lambda engine: None, drop):
        workload, device = two_in_a_pool_for_one(*sizes), open_device("sim")
        model = hash_model("sim", workload.eos_ids)
        play(workload, "vllm_async", "pool", {"depth": depth}, device, model, patch=rule)
        trace = device.recorder.trace("", "", "", "")
        assert marks(trace, "retraction") == {"new": 1}
        outputs = [req.output_ids for req in workload.requests]
        steps = len({item.step for item in trace.on("forward")})
        found.append((outputs, steps, marks(trace, "wasted row"), marks(trace, "stale output")))
    (tokens, steps, *kept), (same_tokens, more_steps, *dropped) = found
    assert tokens == same_tokens
    assert kept == [Counter(), Counter(new=depth - 1)]
    assert dropped == [Counter(new=depth - 1), Counter()]
    assert more_steps - steps == depth - 1, "each token dropped costs one more step"
