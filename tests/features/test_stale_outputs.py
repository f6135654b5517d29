"""Output in flight when its request is preempted: delivered all the same, and no counter moves.

That the laws hold is judged by ``tests/laws/test_every_design.py``; here it is set beside the other
rule: what comes back for a lease that is gone is dropped, and computed again.
"""

from __future__ import annotations

from collections import Counter

import pytest

from minisched.core import Request, SamplingParams
from minisched.engine.engine import Engine
from minisched.features.stale import StaleOutputs
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import Workload, hash_model, open_device, play


def drop(engine: Engine) -> None:
    kept = [
        one
        for one in engine.scheduler.input_processor.features
        if not isinstance(one, StaleOutputs)
    ]
    engine.scheduler.input_processor.features = tuple(kept)


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("run_first", "slots", "most"), [("unified", 18, (8, 12)), ("prefill", 16, (8, 10))]
)
def test_one_workload_under_both_rules(
    depth: int, run_first: str, slots: int, most: tuple[int, int]
) -> None:
    """Both decode until the pool is full; then the newer one is preempted, once.

    depth - 1 rows are in flight at that: all of them wasted, or none.
    """
    config = SchedulerConfig(
        kv_tokens=slots, schedule_conservativeness=0.0, context_len=32,
        disable_radix_cache=True, run_first=run_first,
    )  # fmt: skip
    params = [SamplingParams(max_new_tokens=count) for count in most]  # nobody says EOS
    names = ("retraction", "wasted row", "stale output")
    found = list[tuple[list[list[int]], int, list[int]]]()
    for rule in (lambda engine: None, drop):
        device, model = open_device("sim"), hash_model("sim", frozenset())
        reqs = [Request("old", [1, 2], params[0]), Request("new", [3, 4], params[1])]
        workload = Workload(reqs, [0, 0], {}, config)
        play(workload, "vllm_async", "pool", {"depth": depth}, device, model, patch=rule)
        trace = Trace.of(device.recorder, "", "", "", "")
        assert not any(mark.attrs.get("rid") == "old" for mark in trace.marks if mark.name in names)
        counts = Counter(mark.name for mark in trace.marks)
        steps = len({item.step for item in trace.on("forward")})
        found.append(([req.output_ids for req in reqs], steps, [counts[name] for name in names]))
    (tokens, steps, kept), (same_tokens, more_steps, dropped) = found
    assert tokens == same_tokens
    assert (kept, dropped) == ([1, 0, depth - 1], [1, depth - 1, 0])
    assert more_steps - steps == depth - 1, "each token dropped costs one more step"
