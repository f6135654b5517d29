"""Both layers: a gate at 1, run-ahead from the lag of the layer below, and two books."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import step_intervals
from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from tests.mindie_laws import (
    Books,
    check_ledger,
    lists_of,
    settled_trace,
    together,
    wasted_rows,
    watched,
)
from tests.support import VOCAB, Workload, check_all, play, workloads

FILLS = pytest.mark.parametrize("relay", ["fill_host", "fill_device"])


@FILLS
def test_the_published_lists(relay: str) -> None:
    """[-1]; a dummy; [-1, -1]; t1: [t1, -1]; and so on, always one ahead of what has come."""
    request = Request("a", [1, 2, 3], SamplingParams(max_new_tokens=4, ignore_eos=True))
    run = run_loop("mindie_dual", SimDevice(), HashModel(), [request], relay=relay)
    a, b, c, d = run.outputs["a"]
    assert lists_of(run.trace) == [
        ("schedule", "a: -1"),
        ("dummy", "a: -1"),
        ("schedule", "a: -1 -1"),
        ("response", f"a: {a} -1"),
        ("schedule", f"a: {a} -1 -1"),
        ("response", f"a: {a} {b} -1"),
        ("schedule", f"a: {a} {b} -1 -1"),
        ("response", f"a: {a} {b} {c} -1"),
        ("schedule", f"a: {a} {b} {c} -1 -1"),
        ("response", f"a: {a} {b} {c} {d} -1"),  # it ends, and its surplus row is on its way
        ("response", ""),
    ]


@FILLS
def test_a_placeholder_is_booked_when_the_call_is_on_its_way_and_nothing_is_known_of_it(
    relay: str,
) -> None:
    """PrepareNextSchedule comes after the asynchronous execute, and before any answer."""
    trace = settled_trace("mindie_dual", relay, SIM_COST)
    put = {item.step: item.end for item in trace.slices if item.name == "fill"}
    begun = {item.step: item.start for item in trace.on("forward") if item.name == "forward"}
    marks = [mark for mark in trace.marks if mark.name == "ledger"]
    booked = {mark.attrs["step"]: mark.time for mark in marks if mark.attrs["after"] == "schedule"}
    assert booked.keys() == put.keys() and len(put) > 60
    assert all(put[step] <= booked[step] <= begun[step] for step in put)


def check_books(engine: Engine, books: Books) -> None:
    """The ledger is what the core derives, and the plugin's context says the same as both.

    The plugin is ahead of the ledger by the response that C++ has not fetched, and behind it by
    the step that it has just put.
    """
    check_ledger(engine, books)
    ledger, context = books.ledger, books.context
    assert ledger is not None and context is not None
    batch = engine.scheduler.cur_batch
    assert batch is None or isinstance(batch, ScheduleBatch)
    for lease, item in context.contexts.items():
        req = item.req
        if req.lease is not lease or req.rid not in ledger.sequences or item.pending_cleanup:
            continue
        data = ledger.sequences[req.rid]
        committed = len(req.prompt) + len(data.output_token_ids)
        if req not in engine.scheduler.decode.running_reqs:
            assert item.seq_len == data.num_computed_tokens  # a prompt in chunks
        else:
            in_flight = batch is not None and req in batch.reqs and is_on_its_way(engine)
            assert item.seq_len == committed - in_flight


def is_on_its_way(engine: Engine) -> bool:
    """Whether the plugin holds a step: all that came before it has been post-processed."""
    return engine.scheduler.batches_in_flight > 0


@FILLS
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_the_two_books_agree_at_every_turn(relay: str, workload: Workload) -> None:
    device = SimDevice()
    with watched("mindie_dual", check_books) as books:
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        engine, outputs = play(workload, "mindie_dual", relay, {}, device, model)
    check_all(workload, engine, outputs)
    assert books.ledger is not None and not books.ledger.sequences


@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_every_end_wastes_one_row(workload: Workload) -> None:
    assert wasted_rows(workload, "mindie_dual", "fill_host", {}) == {"r0": 1}


@given(workload=workloads(with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_so_does_every_request_where_all_start_together(workload: Workload) -> None:
    workload = together(workload)
    wasted = wasted_rows(workload, "mindie_dual", "fill_host", {})
    assert wasted == {req.rid: 1 for req in workload.requests}


HOST = ("schedule", "prepare", "postprocess", "process", "output")


@given(
    st.lists(st.integers(0, 60).map(lambda n: 10 * n), min_size=5, max_size=5),
    st.integers(11, 90),
    st.integers(0, 60),
    st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_a_step_takes_what_it_takes_in_the_plugin(
    host: list[int], device: int, copy: int, launch: int
) -> None:
    """C++ adds no overlap: while it schedules Python has nothing to do, and the other way round."""
    device, copy, launch, fill = 100 * device, 10 * copy, 10 * launch, 30
    phases = dict(zip(HOST, host, strict=True)) | {"launch": launch, "fill": fill}
    cost = CostModel(phases, forward_base=device - 100, sample=100, copy=copy)
    one, two = (
        step_intervals(settled_trace(loop, "fill_host", cost))[10:50]
        for loop in ("mindie_dual", "mindie_plugin")
    )
    assert set(one) == set(two) == {launch + fill + max(device + copy, sum(host))}
