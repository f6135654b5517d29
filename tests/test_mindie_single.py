"""One pipeline in place of two layers: what it saves, and what it still has to get right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import measure, step_intervals
from minisched.checks.overlap.pipelines import compare_pipelines
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.trace import Trace
from tests.mindie_laws import Books, check_ledger, settled_trace, together, wasted_rows, watched
from tests.support import VOCAB, Workload, check_all, play, workloads

RELAYS = pytest.mark.parametrize("relay", ["fill_device", "pool"])


@RELAYS
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_the_one_ledger_is_what_the_core_derives(relay: str, workload: Workload) -> None:
    def at_turn(engine: Engine, books: Books) -> None:
        check_ledger(engine, books)
        assert books.context is None, "there is no second book"
        assert engine.scheduler.batches_in_flight <= 1, "one stays on the device between turns"

    device = SimDevice()
    with watched("mindie_single", at_turn) as books:
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        engine, outputs = play(workload, "mindie_single", relay, {}, device, model)
    check_all(workload, engine, outputs)
    assert books.ledger is not None and not books.ledger.sequences


@given(workload=workloads(with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_a_stop_token_wastes_a_row_and_a_length_stop_none(workload: Workload) -> None:
    """The last token that the length allows wastes nothing either, if it is a stop token."""
    workload = together(workload)
    wasted = wasted_rows(workload, "mindie_single", "fill_device", {})
    assert wasted == {
        req.rid: 1
        for req in workload.requests
        if req.finish_reason is FinishReason.STOP
        and len(req.output_ids) < req.params.max_new_tokens
    }


@given(
    st.lists(st.integers(0, 90).map(lambda n: 10 * n), min_size=5, max_size=5),
    st.integers(11, 90),
    st.integers(0, 90),
)
@settings(max_examples=60, deadline=None)
def test_a_step_takes_what_depth_two_allows(host: list[int], device: int, copy: int) -> None:
    device, copy, work = 100 * device, 10 * copy, sum(host)
    phases = dict(zip(("schedule", "prepare", "launch", "process", "output"), host, strict=True))
    cost = CostModel(phases, forward_base=device - 100, sample=100, copy=copy)
    intervals = step_intervals(settled_trace("mindie_single", "fill_device", cost))[10:50]
    law = max(2 * device, 2 * work, 2 * copy, device + copy + work)
    assert {sum(intervals[at : at + 2]) for at in range(30)} == {law}


def traces() -> list[Trace]:
    """One workload through both: three requests of different lengths."""
    runs = []
    for loop in ("mindie_dual", "mindie_single"):
        requests = [
            Request(f"r{at}", [1, 2, 3 + at], SamplingParams(max_new_tokens=6 + 4 * at))
            for at in range(3)
        ]
        runs.append(run_loop(loop, SimDevice(), HashModel(), requests, cost=SIM_COST))
    assert runs[0].outputs == runs[1].outputs
    return [run.trace for run in runs]


def test_the_comparison_of_the_two_pipelines() -> None:
    """Every line is what the traces say, and says what the second layer costs."""
    dual, single = traces()
    lines = {row.name: row.values for row in compare_pipelines([dual, single])}
    assert lines["steps"] == (measure(dual).steps, measure(single).steps) == (15, 14)
    assert lines["makespan"] == (dual.end / 1e6, single.end / 1e6)
    assert lines["wasted rows"] == (3, 0), "one for each end; its lengths are foreseen"
    assert lines["host threads"] == (2, 1)
    assert lines["books of requests"] == (2, 1)
    assert lines["makespan"][1] < lines["makespan"][0]
    assert lines["host work a step"][1] < lines["host work a step"][0]
