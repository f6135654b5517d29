"""What overlapping wastes: one row for each end that the schedule could not foresee."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisched.loops.overlap as overlap_module
from minisched.checks.draw.designs import Design
from minisched.checks.draw.draw import draw
from minisched.checks.judge import judge
from minisched.checks.overlap.overlap import step_intervals
from minisched.core import ForwardMode, NoBatch, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.overlap_rules import is_disable_overlap_for_batch
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB, Workload, check_all, check_identity, play, workloads

LOOPS = [("overlap", "ring"), ("overlap", "pool"), ("overlap_pool_indexed", "pool")]


def wasted_by(device: SimDevice) -> Counter[str]:
    """Wasted rows by request."""
    marks = device.recorder.trace("", "", "", "virtual").marks
    return Counter(str(mark.attrs["rid"]) for mark in marks if mark.name == "wasted row")


def check_one_row_is_wasted(loop: str, relay: str, workload: Workload) -> None:
    """One request: whatever ends it, it is launched once more."""
    device = SimDevice()
    play(workload, loop, relay, {}, device, HashModel(VOCAB, eos_ids=workload.eos_ids))
    assert wasted_by(device) == {"r0": 1}


@pytest.mark.parametrize(("loop", "relay"), LOOPS)
@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_one_row_is_wasted_for_an_end_that_nobody_foresaw(
    loop: str, relay: str, workload: Workload
) -> None:
    check_one_row_is_wasted(loop, relay, workload)


@given(workload=workloads(with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_a_foreseen_length_wastes_nothing(workload: Workload) -> None:
    def foresee(engine: Engine) -> None:
        engine.scheduler.decode.overrun = 0

    workload.config = SchedulerConfig(kv_tokens=200, chunked_prefill_size=100, context_len=32)
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "overlap", "ring", {}, device, model, patch=foresee)
    wasted = wasted_by(device)
    for req in workload.requests:
        reached_its_length = len(req.output_ids) == req.params.max_new_tokens
        assert wasted[req.rid] == 0 if reached_its_length else wasted[req.rid] <= 1


# -- what keeps a batch from overlapping -----------------------------------------------------------

BATCHES = {
    "none": NoBatch.WAIT,
    "extend": ScheduleBatch(1, ForwardMode.EXTEND, 1),
    "decode": ScheduleBatch(1, ForwardMode.DECODE, 0),
    "verify": ScheduleBatch(1, ForwardMode.TARGET_VERIFY, 0),
    "mixed": ScheduleBatch(1, ForwardMode.MIXED, 1),
}
kinds = st.sampled_from(sorted(BATCHES))


reasons = st.sampled_from(["", "grammar", "penalty"])


@given(kinds, kinds, st.integers(0, 2), st.booleans(), st.booleans(), reasons)
@settings(max_examples=300)
def test_overlap_is_disabled_for_two_reasons_and_no_other(
    kind: str, last: str, num_results: int, option: bool, speculates: bool, missing: str
) -> None:
    disabled = is_disable_overlap_for_batch(
        BATCHES[kind],
        BATCHES[last],
        num_results,
        disable_consecutive_prefill_overlap=option,
        is_speculative=speculates,
        missing_history=missing,
    )
    prefills = option and {kind, last} <= {"extend", "mixed"}  # prompts are in both
    blind_draft = kind in ("decode", "verify") and speculates and num_results > 0
    assert disabled == ("prefill" if prefills else missing if blind_draft else "")


@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_a_loop_that_must_know_the_last_token_before_a_decode_has_one_in_flight(
    workload: Workload,
) -> None:
    """The second condition in the loop: laws hold, and no decode row is wasted on it."""
    device = SimDevice()

    def always(*args: Any, **options: Any) -> str:
        return is_disable_overlap_for_batch(
            *args, **{**options, "is_speculative": True, "missing_history": "grammar"}
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_module, "is_disable_overlap_for_batch", always)
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        check_all(workload, *play(workload, "overlap", "ring", {}, device, model, COST))
    trace = device.recorder.trace("", "", "", "virtual")
    processed = {item.step: item.end for item in trace.on("host") if item.name == "process"}
    for item in trace.on("host"):
        if item.name == "launch" and item.mode == ForwardMode.DECODE.value and item.step > 1:
            assert processed[item.step - 1] <= item.start


# -- sampling that waits for the result before it --------------------------------------------------

COST = CostModel(
    {"schedule": 5, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=20,
    sample=2,
    copy=1,
)


@given(
    workload=workloads(with_aborts=False),
    relay=st.sampled_from(["ring", "pool", "token_pool"]),
)
@settings(max_examples=100, deadline=None)
def test_delayed_sampling_follows_the_result_before_it_and_the_forward_pass_does_not(
    workload: Workload, relay: str
) -> None:
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    options = {"delay_sample": True}
    check_all(workload, *play(workload, "overlap", relay, options, device, model, COST))
    trace = device.recorder.trace("", "", "", "virtual")
    host = {(item.name, item.step): item for item in trace.on("host")}
    masks = {item.step: item for item in trace.on("host") if item.name == "mask"}
    launches = {item.step: item for item in reversed(trace.on("host")) if item.name == "launch"}
    samples = {item.step: item for item in trace.on("forward") if item.name == "sample"}
    assert masks.keys() == launches.keys() == samples.keys() != set()
    for step, mask in masks.items():
        assert launches[step].end <= mask.start < samples[step].start
        before = host.get(("process", step - 1))
        assert before is None or before.end <= mask.start


@given(
    part=st.fixed_dictionaries(
        {
            name: st.integers(0, 60).map(lambda half: 2 * half)
            for name in ("schedule", "prepare", "launch", "process", "output", "mask",
                         "launch sample", "forward", "sample", "copy")
        }
    ),
    delay=st.sampled_from(["", "option", "grammar", "penalty"]),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_delayed_sampling_costs_a_chain_through_every_step(
    part: dict[str, int], delay: str
) -> None:
    """Copy, process, mask, launch and sample follow one another: no step can be shorter.

    The option only shows what a grammar and penalties take, without having any.
    """
    forward, e, c = part["forward"] + 2, part["sample"], part["copy"]
    known = part["process"] + part["output"]
    h, d = known + part["schedule"] + part["prepare"] + part["launch"], forward + e
    late = part["mask"] + part["launch sample"] if delay else 0
    chain = c + known + late + e if delay else 0
    law = max(2 * d, 2 * c, 2 * (h + late), d + c + h + late, 2 * chain)
    cost = CostModel(part, forward_base=forward, sample=e, copy=c)
    params = SamplingParams(
        max_new_tokens=48,
        ignore_eos=True,
        regex=r"[\x00-\x09]{60}" if delay == "grammar" else None,
        presence_penalty=float(delay == "penalty"),
    )
    request = Request("r", [1, 2, 3], params)
    run = run_loop("overlap", SimDevice(), HashModel(VOCAB), [request], cost=cost,
                   delay_sample=delay == "option")  # fmt: skip
    assert len(request.output_ids) == 48
    intervals = step_intervals(run.trace)[12:40]
    assert {sum(pair) for pair in pairwise(intervals)} == {law}


@given(chunks=st.integers(2, 6), rule=st.booleans())
@settings(max_examples=30, deadline=None)
def test_consecutive_prefills_overlap_unless_the_rule_says_no(chunks: int, rule: bool) -> None:
    cost = CostModel({"schedule": 5, "process": 5}, forward_base=20, sample=1, copy=1)
    device = SimDevice()
    run = run_loop(
        "overlap",
        device,
        HashModel(VOCAB, eos_ids=frozenset()),
        [Request("r0", [1] * (4 * chunks), SamplingParams(max_new_tokens=2))],
        SchedulerConfig(chunked_prefill_size=4, context_len=64),
        cost,
        disable_consecutive_prefill_overlap=rule,
    )
    prefills = [
        item
        for item in run.trace.on("forward")
        if item.name == "forward" and item.mode == ForwardMode.EXTEND.value
    ]
    samples = {item.step: item.end for item in run.trace.on("forward") if item.name == "sample"}
    gaps = [after.start - samples[before.step] for before, after in pairwise(prefills)]
    assert all(gap > 0 for gap in gaps) if rule else all(gap == 0 for gap in gaps)


@pytest.mark.parametrize("loop", ["overlap", "mixed"])
@pytest.mark.parametrize("rule", [True, False])
def test_steps_with_prompts_overlap_unless_the_rule_says_no(loop: str, rule: bool) -> None:
    """Prompts alone, or beside rows that decode: SGLang's ``is_extend`` says yes to both."""
    design = Design(loop, "ring", {"disable_consecutive_prefill_overlap": rule})
    pairs, overlapped = set(), 0
    for seed in range(24):
        trace = judge(draw(seed).on(design)).trace
        host = trace.on("host")
        done = {item.step: item.end for item in host if item.name == "process"}
        steps = {item.step: item for item in host if item.name == "launch"}
        for before, after in pairwise(steps.values()):
            kinds = before.mode, after.mode
            if set(kinds) <= {"extend", "mixed"} and after.step == before.step + 1:
                pairs.add(kinds)
                overlapped += done[before.step] > after.start
    assert (overlapped == 0) is rule
    assert pairs >= {("extend", "extend")} | ({("mixed", "mixed")} if loop == "mixed" else set())


@pytest.mark.parametrize("loop", ["overlap", "overlap_thread"])
def test_a_step_that_fails_before_it_reads_leaves_the_page_table_to_the_step_behind_it(
    loop: str,
) -> None:
    """That one is in flight already, and would write through cells of whoever had the row."""
    params = SamplingParams(max_new_tokens=1)
    prompts = [7, 7, 11, 2, 7, 7, 0, 0, 0], [0], [0] * 5
    requests = [Request(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)]
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
