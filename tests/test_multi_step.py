"""Multi-step scheduling: what a burst costs, and what it saves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import step_intervals
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.multi_step import NUM_STEPS
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import VOCAB, Workload, check_all, play, workloads

COST = CostModel(
    {"schedule": 50, "prepare": 10, "advance step": 4, "launch": 6, "process": 20, "output": 5},
    forward_base=90, sample=10, copy=7,
)  # fmt: skip
FIRST, AGAIN, DEVICE, COPY, RESULT = 66, 10, 100, 7, 25  # a, b, d, c, p of COST


def tokens(count: int) -> SamplingParams:
    """Exactly so many."""
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


def run(*requests: Request, cost: CostModel = COST, **options: Any) -> Run:
    """A run with an end-of-text token that is never sampled."""
    model = HashModel(VOCAB, eos_ids=frozenset())
    return run_loop("multi_step", SimDevice(), model, requests, cost=cost, **options)


def wasted_by(trace: Trace) -> Counter[str]:
    """Wasted rows by request."""
    return Counter(str(mark.attrs["rid"]) for mark in trace.marks if mark.name == "wasted row")


def with_steps(monkeypatch: pytest.MonkeyPatch, num_steps: int) -> None:
    """Give the loop as many output buffers, and as much overrun, as ``num_steps`` needs."""
    spec = replace(
        LOOPS["multi_step"],
        depth=num_steps,
        overrun=num_steps - 1,
        options={"num_steps": num_steps},
    )
    monkeypatch.setitem(LOOPS, "multi_step", spec)


@pytest.mark.parametrize("num_steps", range(1, 9))
@pytest.mark.parametrize("relay", LOOPS["multi_step"].relays)
def test_a_burst_takes_what_the_law_says(
    monkeypatch: pytest.MonkeyPatch, num_steps: int, relay: str
) -> None:
    with_steps(monkeypatch, num_steps)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.integers(0, 200), min_size=6, max_size=6), st.integers(0, 300))
    def law(host: list[int], copy: int) -> None:
        phases = dict(zip(COST.host, host, strict=True))
        cost = replace(COST, host=phases, copy=copy)
        schedule, prepare, advance, launch, process, output = host
        first, again, result = schedule + prepare + launch, advance + launch, process + output
        burst = first + DEVICE + (num_steps - 1) * max(again, DEVICE, copy) + copy
        burst += num_steps * result
        length = 1 + 6 * num_steps  # the first one comes with the prompt
        trace = run(Request("r", [1, 2], tokens(length)), cost=cost, relay=relay).trace
        intervals = step_intervals(trace)[1:]
        sums = [sum(intervals[at : at + num_steps]) for at in range(4 * num_steps)]
        assert set(sums) == {burst}

    law()


@given(length=st.integers(1, 14), num_steps=st.integers(1, NUM_STEPS))
@settings(max_examples=60, deadline=None)
def test_a_row_that_ends_is_computed_to_the_end_of_its_burst(length: int, num_steps: int) -> None:
    """Decoded tokens come N at a time, so what is missing to a multiple of N is wasted."""
    trace = run(Request("r", [1, 2], tokens(length)), num_steps=num_steps).trace
    assert wasted_by(trace)["r"] == -(length - 1) % num_steps < num_steps


@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_a_stop_token_wastes_as_much_as_a_length(workload: Workload) -> None:
    workload.config = SchedulerConfig(kv_tokens=200, chunked_prefill_size=100, context_len=32)
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "multi_step", "pool", {}, device, model)
    count = len(workload.requests[0].output_ids)
    trace = device.recorder.trace("", "", "", "")
    assert wasted_by(trace)["r0"] == -(count - 1) % NUM_STEPS


def test_whoever_comes_in_a_burst_waits_for_its_end() -> None:
    """The burst is taken from its first forward to its last output; the newcomer comes after."""
    busy = Request("busy", [1, 2], tokens(1 + 3 * NUM_STEPS))
    alone = run(busy).trace
    decodes = [item for item in alone.on("forward") if item.mode == "decode"]
    ends = [item.end for item in alone.on("host") if item.name == "output"]
    begin = decodes[0].start
    end = ends[NUM_STEPS]  # of the prompt's token, and then of the whole burst
    for arrival in (begin + 1, begin + DEVICE, end - 1):
        late = Request("late", [3, 4], tokens(2), arrival_time=arrival)
        found = run(Request("busy", [1, 2], tokens(1 + 3 * NUM_STEPS)), late)
        prefill = next(item for item in found.trace.on("forward") if "late" in item.rids)
        assert prefill.start == end + FIRST, "admitted at once after the burst, and never in it"
        ttft = next(m.ttft_ns for m in found.metrics.ended if m.rid == "late")
        assert ttft == end - arrival + FIRST + DEVICE + COPY + RESULT


def test_outputs_come_n_at_a_time() -> None:
    """N - 1 short gaps, then one as long as the rest of the burst."""
    found = run(Request("r", [1, 2], tokens(1 + 5 * NUM_STEPS)))
    itls = list(found.metrics.ended[0].itls)
    long = FIRST + DEVICE + (NUM_STEPS - 1) * DEVICE + COPY + RESULT
    assert itls == ([long] + [RESULT] * (NUM_STEPS - 1)) * 5


def test_an_abort_in_a_burst_is_heard_after_it() -> None:
    heard: list[tuple[int, Output]] = []
    device = SimDevice()
    request = Request("r", [1, 2], tokens(40))
    frontend = Frontend([request], lambda output: heard.append((device.now(), output)))
    model = HashModel(VOCAB, eos_ids=frozenset())
    engine = make_engine("multi_step", device, model, SchedulerConfig(), frontend, COST)
    turns = LOOPS["multi_step"].start(engine)
    next(turns)  # the prompt
    frontend.abort("r", at=device.now() + FIRST + 2 * DEVICE)  # in the middle of the first burst
    while not engine.is_done:
        next(turns)
    assert len(request.output_ids) == 1 + NUM_STEPS, "its burst was computed, and heard"
    times = [time for time, _ in heard]
    assert heard[-1][1].finish_reason is FinishReason.ABORT
    assert times[-1] - times[0] == FIRST + NUM_STEPS * DEVICE + COPY + NUM_STEPS * RESULT + 5


def test_nothing_is_processed_before_the_whole_burst_is_there() -> None:
    trace = run(Request("r", [1, 2], tokens(1 + 2 * NUM_STEPS))).trace
    copies = [item.end for item in trace.on("copy")][1:]
    processes = [item.start for item in trace.on("host") if item.name == "process"][1:]
    for at in range(0, 2 * NUM_STEPS, NUM_STEPS):
        assert min(processes[at : at + NUM_STEPS]) >= max(copies[at : at + NUM_STEPS])


def test_a_burst_is_scheduled_once() -> None:
    trace = run(Request("r", [1, 2], tokens(1 + 5 * NUM_STEPS))).trace
    scheduled = [item for item in trace.on("host") if item.name == "schedule"]
    assert len(scheduled) == 1 + 5, "one for the prompt, one for each burst"
    assert len(trace.on("forward")) == 2 * (1 + 5 * NUM_STEPS)


def test_a_burst_ends_where_memory_does() -> None:
    """Two requests in a pool that has no room for N more positions of both."""
    config = SchedulerConfig(kv_tokens=15, disable_radix_cache=True, schedule_conservativeness=0)
    requests = [Request(rid, [1, 2], tokens(7)) for rid in "ab"]
    model = HashModel(VOCAB, eos_ids=frozenset())
    found = run_loop("multi_step", SimDevice(), model, requests, config, COST)
    both = [s for s in found.trace.on("forward") if s.rids == ("a", "b") and s.mode == "decode"]
    starts = [s.start for s in both if s.name == "forward"]
    gaps = [after - before for before, after in pairwise(starts)]
    lengths = [1]
    for gap in gaps:
        lengths[-1:] = [lengths[-1] + 1] if gap == DEVICE else [lengths[-1], 1]
    assert lengths[0] == NUM_STEPS and 0 < lengths[1] < NUM_STEPS, lengths
    assert all(len(tokens) == 7 for tokens in found.outputs.values())


@given(workload=workloads())
@settings(max_examples=60, deadline=None)
def test_a_failed_step_ends_its_rows_and_nothing_else(workload: Workload) -> None:
    """The third step fails: whoever is in it ends with its reason, the rest goes on."""
    failing = 3

    def fail(engine: Engine) -> None:
        forward = engine.worker._forward

        def broken(batch: Any, inputs: Any, previous: Any) -> Any:
            if inputs.label.step == failing:
                raise RuntimeError("the device says no")
            return forward(batch, inputs, previous)

        engine.worker._forward = broken  # type: ignore[method-assign]

    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, "multi_step", "pool", {}, SimDevice(), model, patch=fail)
    for req in workload.requests:  # whose tokens are the beginning of the truth
        if "the device says no" in req.error:
            workload.struck[req.name] = {"the device says no"}
    check_all(workload, engine, outputs)


@pytest.mark.parametrize("num_steps", [-1, 0, NUM_STEPS + 1])
def test_a_number_of_steps_without_buffers_is_refused(num_steps: int) -> None:
    with pytest.raises(ValueError, match=f"num_steps is {num_steps}, .* between 1 and {NUM_STEPS}"):
        run(Request("r", [1], tokens(2)), num_steps=num_steps)
