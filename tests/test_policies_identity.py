"""Identity under every policy, page and chunk size, where memory is so short that it hurts.

The pools hold the longest request and hardly more, so that in most examples something is evicted
and somebody is retracted; each test counts and asserts that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.policy.schedule_policy import POLICIES
from minisched.scheduler import SchedulerConfig
from tests.support import LOOP_OPTIONS, VOCAB, LoopOptions, Workload, check_all, hash_model, play
from tests.test_speculation import DRAFT_MODELS, SPECULATIVE

WHO_RUNS: dict[str, dict[str, Any]] = {
    "prefill first": {"run_first": "prefill"},
    "mixed chunk": {"run_first": "prefill", "enable_mixed_chunk": True},
    "decode first": {"run_first": "decode"},
    "unified": {"run_first": "unified"},
}
FEATURES = {"plain": 40, "grammar and penalties": 8, "drafts": 8}  # examples of each
CELLS = [
    (who_runs, feature)
    for who_runs in WHO_RUNS
    for feature in FEATURES
    if (who_runs, feature) != ("mixed chunk", "drafts")  # refused
]
Example = tuple[Workload, LoopOptions]
COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 1, 2, 1)
PREFIXES = [[1] * 12, [1] * 6 + [2] * 6, [3] * 12]


@st.composite
def tight_workloads(draw: st.DrawFn, policy: str, who_runs: str) -> Workload:
    """Many requests that share prefixes, and a pool for hardly more than one of them."""
    page_size = draw(st.sampled_from([1, 2, 4]))
    chunk = page_size * draw(st.sampled_from([4, 8, 16]))
    if not WHO_RUNS[who_runs].get("enable_mixed_chunk"):
        chunk = draw(st.sampled_from([-1, chunk]))
    requests = []
    for index in range(8):
        own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))
        shared = draw(st.sampled_from(PREFIXES))[: draw(st.sampled_from([4, 8, 8, 12]))]
        params = SamplingParams(max_new_tokens=draw(st.integers(18, 24)), ignore_eos=True)
        priority = draw(st.integers(0, 3))
        requests.append(Request(f"r{index}", shared + own, params, priority=priority))
    longest = max(-(-req.max_device_len // page_size) for req in requests)
    config = SchedulerConfig(
        kv_tokens=longest * page_size + draw(st.sampled_from([12, 16, 20])),
        page_size=page_size,
        max_running_requests=4,
        chunked_prefill_size=chunk,
        schedule_policy=policy,
        priority_scheduling_preemption_threshold=0,
        schedule_conservativeness=0.0,
        context_len=64,
        **WHO_RUNS[who_runs],
    )
    arrivals = [0] * 4 + [draw(st.integers(0, 9)) for _ in requests[4:]]
    return Workload(requests, arrivals, {}, config)


@st.composite
def demanding(draw: st.DrawFn, plain: st.SearchStrategy[Workload]) -> Workload:
    """The same, each request with a grammar or penalties; the grammars never end by themselves."""
    workload = draw(plain)
    for req in workload.requests:
        regex = draw(st.sampled_from(REGEXES))
        penalties = draw(st.sampled_from(PENALTIES if regex is None else [{}, *PENALTIES]))
        req.params = replace(req.params, regex=regex, **penalties)
    workload.config = replace(workload.config, late_penalties=draw(st.booleans()))
    return workload


@st.composite
def drafting(draw: st.DrawFn, plain: st.SearchStrategy[Workload], algorithm: str) -> Workload:
    """The same, with drafts; the pool has room for those of the longest request."""
    workload, k = draw(plain), draw(st.integers(1, 4))
    size = workload.config.page_size
    workload.config = replace(
        workload.config,
        kv_tokens=workload.config.kv_tokens + -(-3 * k // size) * size,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=k,
        speculative_draft_model_path=draw(st.sampled_from(DRAFT_MODELS[algorithm])),
    )
    return workload


REGEXES = [None, r"[\x00-\x09]*", r"([\x01\x03][\x02-\x12])*", r"(\x05|\x06[\x07-\x0a]){30}"]
PENALTIES = [{"frequency_penalty": 0.4}, {"presence_penalty": -1.0}, {"repetition_penalty": 1.3}]
TAKE_HISTORY = [
    item
    for item in LOOP_OPTIONS
    if not {"grammar", "penalties"} & LOOPS[item[0]].refusals(item[1]).keys()
]


@st.composite
def examples(draw: st.DrawFn, policy: str, who_runs: str, feature: str) -> Example:
    """A workload with a feature, and a loop that takes it."""
    plain = tight_workloads(policy, who_runs)
    if feature == "drafts":
        *loop, algorithm = draw(st.sampled_from(SPECULATIVE))
        return draw(drafting(plain, algorithm)), tuple(loop)
    if feature == "grammar and penalties":
        return draw(demanding(plain)), draw(st.sampled_from(TAKE_HISTORY))
    return draw(plain), draw(st.sampled_from(LOOP_OPTIONS))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("who_runs", "feature"), CELLS)
def test_identity_where_memory_is_short(policy: str, who_runs: str, feature: str) -> None:
    happened: Counter[str] = Counter()

    @given(examples(policy, who_runs, feature))
    @settings(
        max_examples=FEATURES[feature],
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def law(example: Example) -> None:
        (workload, spec), device = example, SimDevice()
        model = hash_model("sim", frozenset())
        engine, outputs = play(workload, *spec, device, model, COST)
        marks = device.recorder.trace("", "", "", "").marks
        happened.update({mark.name for mark in marks} | {"example"})
        reasons = {mark.attrs["reason"] for mark in marks if mark.name == "retraction"}
        config = engine.scheduler.config
        foreseen = (config.run_ahead or LOOPS[spec[0]].depth == 1) and not config.draft_slack
        happened["retraction for memory"] += "memory" in reasons and foreseen
        happened["hit"] += any(mark.attrs.get("hit_len") for mark in marks)
        check_all(workload, engine, outputs)

    law()
    half = happened["example"] / 2
    assert happened["radix evict"] > half and happened["hit"] > half, happened
    # It admits only while nobody can decode, and then all that they may need. Where steps of
    # different requests are in flight (pipelines), nobody can decode while all of them are; and
    # drafts in flight reach past a request's length (``draft_slack``), which admission ignores.
    if who_runs == "decode first":
        assert not happened["retraction for memory"], happened
    else:
        assert happened["retraction"] > half, happened
