"""Output in flight when its request is preempted: delivered all the same, and no counter moves.

That the laws hold is judged by ``tests/laws/test_every_design.py``; here it is set beside the other
rule: what comes back for a lease that is gone is dropped, and computed again.
"""

from __future__ import annotations

from collections import Counter

import pytest

from minisched.checks.case import Case, Failure
from minisched.checks.judge import judge
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
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


def test_a_stale_output_from_pages_of_a_failed_step_is_computed_again() -> None:
    """r2 reads a page that r0 fills in step 1, and is preempted before step 1 fails."""
    prompt = [13, 6, 14, 8, 11, 12, 12, 13, 8, 12, 18, 13, 13, 13, 6, 13, 2, 16, 15, 12, 15, 8]
    prompts = {"r0": (prompt[:2], 2), "r1": (prompt[:3], 1), "r2": (prompt, 2)}
    requests = [
        Request(rid, ids, SamplingParams(max_new_tokens=count))
        for rid, (ids, count) in prompts.items()
    ]
    workload = Workload(
        requests, [0, 0, 1], {},
        SchedulerConfig(kv_tokens=26, page_size=2, max_running_requests=16), vocab_size=19,
        failures=(Failure("", 0, "out of device memory", "shares cached pages"),),
    )  # fmt: skip
    verdict = judge(Case(workload, "vllm_async", "pool", {"depth": 5}, SIM_COST))
    stale = [mark for mark in verdict.trace.marks if mark.name == "wasted row"]
    assert verdict.holds and "r2" in [mark.attrs["rid"] for mark in stale]
