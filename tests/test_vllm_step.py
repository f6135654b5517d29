"""vLLM's step: the forward pass is launched, the mask is built beside it, then it samples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import num_waits
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB, Workload, play, workloads
from tests.vllm_runs import cost_of, marks, run_alone, settled_sums

MASKED: list[dict[str, Any]] = [{"regex": "[^a]{60}"}, {"repetition_penalty": 1.3}]


@pytest.mark.parametrize("params", MASKED, ids=str)
@given(mask=st.integers(1, 300), forward=st.integers(1, 200), host=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_the_mask_is_hidden_behind_the_forward_pass(
    params: dict[str, Any], mask: int, forward: int, host: int
) -> None:
    """max(forward, mask) + sample + copy + host, exactly; and nothing waits."""
    cost = cost_of(10 * host, mask, forward_base=forward, sample=7, copy=5)
    trace = run_alone("vllm_step", 1, cost, params=params)
    assert not num_waits(trace)
    assert settled_sums(trace, 1) == {max(forward, mask) + 7 + 5 + 10 * host}
    forwards = {s.step: s for s in trace.on("forward") if s.name == "forward"}
    samples = {s.step: s for s in trace.on("forward") if s.name == "sample"}
    for item in trace.on("host"):
        if item.name == "mask":
            assert item.start <= forwards[item.step].start, "the pass is launched before the mask"
            assert item.end <= samples[item.step].start, "the mask is there before the sampling"


def hear_an_abort(loop: str) -> list[Output]:
    """What a client hears who gives up in the middle of the third step."""
    heard: list[Output] = []
    request = Request("r", [1, 2, 3], SamplingParams(max_new_tokens=9, ignore_eos=True))
    frontend = Frontend([request], heard.append)
    frontend.abort("r", at=2 * 200 + 105)
    cost = cost_of(100, forward_base=90, copy=10)
    engine = make_engine(loop, SimDevice(), HashModel(), SchedulerConfig(), frontend, cost)
    turns = LOOPS[loop].start(engine)
    while not engine.is_done:
        next(turns)
    return heard


def test_an_abort_goes_before_the_tokens_of_the_step_that_ran_meanwhile() -> None:
    aborted = hear_an_abort("vllm_step")
    assert [item.token is None for item in aborted] == [False, False, True]
    assert aborted[-1].finish_reason is FinishReason.ABORT
    serial = hear_an_abort("serial")
    assert [item.token is None for item in serial] == [False, False, False, True]


@given(workload=workloads(with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_no_row_is_wasted(workload: Workload) -> None:
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "vllm_step", "host", {}, device, model)
    assert not marks(device, "wasted row") and not marks(device, "stale output")
