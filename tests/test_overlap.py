"""What overlapping wastes: one row for each end that the schedule could not foresee."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig

from .laws import play
from .workloads import VOCAB, Workload, workloads


def wasted_by(device: SimDevice) -> Counter[str]:
    """Wasted rows by request."""
    marks = device.recorder.trace("", "", "", "virtual").marks
    return Counter(str(mark.attrs["rid"]) for mark in marks if mark.name == "wasted row")


@pytest.mark.parametrize(("loop", "relay"), [("overlap", "ring"), ("overlap", "pool")])
@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_one_row_is_wasted_for_an_end_that_nobody_foresaw(
    loop: str, relay: str, workload: Workload
) -> None:
    device = SimDevice()
    play(workload, loop, relay, {}, device, HashModel(VOCAB, eos_ids=workload.eos_ids))
    assert wasted_by(device) == {"r0": 1}


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
