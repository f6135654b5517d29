"""mini-sglang's overlap: one step of lag, a row wasted by a stop token, none by a length."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.trace import Trace
from tests.support import VOCAB, Workload, check_all, play, workloads
from tests.test_overlap_check import C, D, run_steady

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 20, 0, 2, 4)
RELAYS = ["token_pool", "ring", "pool"]


def play_traced(workload: Workload, relay: str) -> Trace:
    """Plays on sim, under every law."""
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, "mini_overlap", relay, {}, device, model, COST)
    check_all(workload, engine, outputs)
    return device.recorder.trace("mini_overlap", "sim", "hash", "virtual")


def wasted_by(trace: Trace) -> Counter[str]:
    """Wasted rows by request."""
    return Counter(str(mark.attrs["rid"]) for mark in trace.marks if mark.name == "wasted row")


@pytest.mark.parametrize("relay", RELAYS)
@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_one_row_is_wasted_for_a_stop_token_and_none_for_a_length(
    relay: str, workload: Workload
) -> None:
    """``complete_one`` foresees the length; what a stop token ends is in the next step already."""
    trace = play_traced(workload, relay)
    (req,) = workload.requests
    is_foreseen = len(req.output_ids) == req.params.max_new_tokens
    assert wasted_by(trace)["r0"] == (0 if is_foreseen else 1)
    assert is_foreseen or req.finish_reason is FinishReason.STOP


@given(workload=workloads(with_aborts=False))
@settings(max_examples=150, deadline=None)
def test_a_wasted_row_is_that_of_the_step_after_the_last_token(workload: Workload) -> None:
    """In a crowd: at most one row for each end; none where the next step is somebody's prompt."""
    trace = play_traced(workload, "token_pool")
    wasted = {(m.attrs["step"], m.attrs["rid"]) for m in trace.marks if m.name == "wasted row"}
    retracted = {m.attrs["rid"] for m in trace.marks if m.name == "retraction"}
    steps: dict[str, list[int]] = {req.rid: [] for req in workload.requests}
    for item in trace.slices:
        for rid in item.rids if item.name == "forward" else ():
            steps[rid].append(item.step)
    for req in workload.requests:
        if req.rid in retracted or req.finish_reason is FinishReason.ERROR:
            continue
        mine = [step for step, rid in wasted if rid == req.rid]
        assert mine in ([], steps[req.rid][-1:])
        if len(req.output_ids) == req.params.max_new_tokens:
            assert mine == []


@given(count=st.integers(1, 4), length=st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_a_result_is_processed_while_the_next_step_runs(count: int, length: int) -> None:
    """Each step but the last is processed after the next one's launch, and before its end."""
    params = SamplingParams(max_new_tokens=length, ignore_eos=True)
    requests = [Request(f"r{i}", [i, 2, 3], params) for i in range(count)]
    trace = run_loop("mini_overlap", SimDevice(), HashModel(), requests, cost=COST).trace
    at = {(item.name, item.step): item for item in trace.slices}
    last = max(step for _, step in at)
    assert last == length
    for step in range(1, last):
        assert at["launch", step + 1].end <= at["process", step].start
        assert at["process", step].end <= at["sample", step + 1].end


def test_receiving_never_blocks_while_a_result_is_to_be_processed() -> None:
    """The last step's result is taken first; then the host rests until the next request comes."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    late = Request("b", [4, 5], params, arrival_time=1000)
    run = run_loop(
        "mini_overlap", SimDevice(), HashModel(), [Request("a", [1, 2, 3], params), late], cost=COST
    )
    ends = [item.end for item in run.trace.on("host") if item.end < late.arrival_time]
    process = [item for item in run.trace.on("host") if item.name == "process"]
    assert process[3].rids == ("a",) and process[3].end < late.arrival_time
    receive = next(item for item in run.trace.on("host") if item.rids == ("b",))
    assert receive.name == "receive" and receive.start == late.arrival_time > max(ends)


@pytest.mark.parametrize("tenths", range(1, 21))
def test_a_settled_step_takes_what_the_law_says(tenths: int) -> None:
    """max(d, h, (d + h + c) / 2): once the prompts are in the pool, nothing else is waited for."""
    host = D * tenths // 10
    intervals = run_steady("mini_overlap", host, D, C)
    law = max(2 * D, 2 * host, D + host + C)  # of two steps
    assert {sum(intervals[at : at + 2]) for at in range(len(intervals) - 1)} == {law}
