"""MindIE's loops: the plugin's pipeline, the C++ scheduler's ledger and gate, both layers with a
book each, and one pipeline in place of two layers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.checks.draw import read_design
from minisched.checks.overlap import measure
from minisched.core import ForwardMode, Lease, Request, ScheduleBatch
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.design import LOOPS
from minisched.loops.mindie_placeholder import PlaceholderLedger
from minisched.loops.mindie_plugin import (
    GenerationOutput,
    PluginContext,
    PluginManager,
    deliver,
)
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder
from minisched.trace.events import is_host
from tests.support import (
    VOCAB,
    Workload,
    hash_model,
    many,
    named,
    open_device,
    play,
    run_alone,
    tokens,
    workloads,
)

FILLS = pytest.mark.parametrize("relay", ["fill_host", "fill_device"])

# -- mindie_plugin: a call answers with the tokens of the call before ------------------------------


def engine_with(requests: list[Request], relay: str, backend: str = "sim") -> Engine:
    model = hash_model(backend, frozenset())
    engine = make_engine(
        "mindie_plugin", open_device(backend), model, SchedulerConfig(), Frontend(requests),
        relay=relay,
    )  # fmt: skip
    engine.recv_requests()
    return engine


def call(engine: Engine, manager: PluginManager) -> tuple[ScheduleBatch, GenerationOutput]:
    batch = engine.get_next_batch_to_run()
    assert isinstance(batch, ScheduleBatch)
    output = manager.generate_token_async(batch)
    deliver(engine, output)
    return batch, output


@FILLS
def test_a_call_answers_with_the_tokens_of_the_call_before(relay: str) -> None:
    requests = [Request(f"r{i}", [1, 2 + i], tokens(6)) for i in range(2)]
    engine = engine_with(requests, relay)
    manager = PluginManager(engine)
    assert manager.output_queue[0] is None, "seeded with an empty output"
    answers = [call(engine, manager)[1].token_ids for _ in range(6)]
    assert answers[0] == {"r0": -1, "r1": -1}, "nothing has come back: dummies"
    assert answers[1:] == [{req.rid: req.output_ids[step] for req in requests} for step in range(5)]


@FILLS
def test_the_finishing_round_flags_and_the_next_one_clears(relay: str) -> None:
    short, long = Request("short", [1, 2], tokens(3)), Request("long", [1, 3], tokens(9))
    engine = engine_with([short, long], relay)
    manager = PluginManager(engine)
    contexts = manager.context.contexts
    assert not any(call(engine, manager)[1].finished for _ in range(3))
    batch, output = call(engine, manager)  # step 4 is put, and step 3 answers
    lease = batch.leases[batch.rids.index("short")]
    assert batch.rids == ("short", "long"), "the surplus row: nobody foresaw the length"
    assert output.finished == ["short"] and output.token_ids["short"] == short.output_ids[2]
    assert contexts[lease].pending_cleanup
    batch, output = call(engine, manager)
    assert batch.rids == ("long",)
    assert lease not in contexts and "short" not in output.token_ids, "cleared, its row dropped"


def test_no_request_changes_while_the_thread_builds_a_bitmask() -> None:
    params = replace(tokens(5, regex=r"[\x00-\x05]{9}"), ignore_eos=False)
    device, request = open_device("thread"), Request("r", [1, 2], params)
    model = hash_model("thread", frozenset())
    engine = make_engine("mindie_plugin", device, model, SchedulerConfig(), Frontend([request]))
    update, process = engine.worker.update_vocab_mask, engine.process_result
    changed, seen = threading.Event(), []

    def slowly(*args: Any) -> None:
        changed.clear()
        seen.append(changed.wait(0.05))
        update(*args)

    def process_result(*args: Any) -> None:
        process(*args)
        changed.set()

    engine.worker.update_vocab_mask = slowly  # type: ignore[method-assign]
    engine.process_result = process_result  # type: ignore[method-assign]
    try:
        drive(LOOPS["mindie_plugin"].start(engine), engine)
    finally:
        device.close()
    assert len(request.output_ids) == 5 and seen == [False] * 6


# -- mindie_placeholder: the ledger, and the gate --------------------------------------------------


@pytest.mark.parametrize("steps", [0, 4])
def test_a_token_needs_a_placeholder_and_there_are_never_more_than_steps(steps: int) -> None:
    ledger, req = PlaceholderLedger(2, NullRecorder()), Request("a", [1, 2, 3, 4])
    req.lease = Lease(1)
    row = [req], [req.lease], [0], [(None,) * 4]
    ledger.prepare_next_schedule(ScheduleBatch(1, ForwardMode.EXTEND, 1, *row, {}, req))
    assert ledger.sequences["a"].output_token_ids == [], "a chunk that is not the last"
    for step in range(2, 2 + steps):
        ledger.prepare_next_schedule(ScheduleBatch(step, ForwardMode.DECODE, 0, *row))
    ledger.fetch_seq_generated_tokens({"a": -1}, 0)  # a dummy leaves all of them standing
    with pytest.raises(RuntimeError, match=f"has {steps} placeholders; .* from 1 to 3"):
        ledger.fetch_seq_generated_tokens({"a": 7}, 1)


# -- mindie_dual: both layers, and two books -------------------------------------------------------


@FILLS
def test_the_lists_are_always_one_ahead_of_what_has_come(relay: str) -> None:
    request = Request("a", [1, 2, 3], tokens(4))
    run = run_loop("mindie_dual", SimDevice(), HashModel(), [request], relay=relay)
    marks = [mark.attrs for mark in run.trace.marks if mark.name == "ledger"]
    expected = [("schedule", (-1,)), ("dummy", (-1,)), ("schedule", (-1, -1))]
    for at in range(1, 5):
        known = tuple(run.outputs["a"][:at])
        expected += [("response", (*known, -1)), ("schedule", (*known, -1, -1))]
    expected[-1] = "response", ()  # its surplus row is dropped
    assert [(mark["after"], mark["tokens"]) for mark in marks] == expected
    held = [(mark["rids"], mark["lengths"]) for mark in marks]
    assert held == [(("a",), (len(tokens),)) for _, tokens in expected[:-1]] + [((), ())]


@FILLS
def test_a_placeholder_is_booked_when_the_call_is_on_its_way_and_nothing_is_known_of_it(
    relay: str,
) -> None:
    trace = run_alone(f"mindie_dual:{relay}", 1, SIM_COST)
    put, begun = named(trace, "fill"), named(trace, "forward")
    marks = [mark for mark in trace.marks if mark.name == "ledger"]
    booked = {mark.attrs["step"]: mark.time for mark in marks if mark.attrs["after"] == "schedule"}
    assert booked.keys() == put.keys() and len(put) > 30
    assert all(put[step].end <= booked[step] <= begun[step].start for step in put)


def check_ledger(engine: Engine, ledger: PlaceholderLedger) -> None:
    for req in engine.scheduler.live.values():
        data = ledger.sequences.get(req.rid)
        if data is None:
            assert req.num_output_placeholders == 0 and not req.output_ids
            continue
        placeholders = data.trailing_placeholder_count
        assert placeholders == req.num_output_placeholders
        assert data.output_token_ids == req.output_ids + [-1] * placeholders
        if req.lease is data.lease:
            assert data.num_computed_tokens == req.computed_len
    assert ledger.sequences.keys() <= engine.scheduler.live.keys()


def check_context(engine: Engine, ledger: PlaceholderLedger, context: PluginContext) -> None:
    """It is ahead of the ledger by the response that C++ has not fetched, and behind it by the step
    that it has just put.
    """
    for lease, item in context.contexts.items():
        req = item.req
        if req.lease is not lease or req.rid not in ledger.sequences or item.pending_cleanup:
            continue
        data = ledger.sequences[req.rid]
        committed = len(req.prompt) + len(data.output_token_ids)
        if req not in engine.scheduler.decode.running_reqs:
            assert item.seq_len == data.num_computed_tokens  # a prompt in chunks
        else:
            is_put = lease.last_step == engine.scheduler.leases.launched_step
            in_flight = is_put and engine.scheduler.batches_in_flight > 0
            assert item.seq_len == committed - in_flight


@pytest.mark.parametrize(("design", "in_flight"), [
    ("mindie_placeholder", 1), ("mindie_placeholder:pool", 1),
    ("mindie_single", 1), ("mindie_single:pool", 1), ("mindie_dual", 2),
    ("mindie_dual:fill_device", 2),
])  # fmt: skip
@given(workload=workloads())
@settings(max_examples=many(8, 40))
def test_every_book_is_what_the_core_derives_at_every_turn(
    design: str, in_flight: int, workload: Workload
) -> None:
    books = dict[type, Any]()

    def keep(kind: type) -> Callable[..., None]:
        def init(self: Any, *args: Any) -> None:
            made(self, *args)
            books[kind] = self

        made = kind.__init__
        return init

    def look(engine: Engine) -> None:
        check_ledger(engine, books[PlaceholderLedger])
        assert engine.scheduler.batches_in_flight <= in_flight
        assert (PluginContext in books) == design.startswith("mindie_dual"), "a second book"
        if PluginContext in books:
            check_context(engine, books[PlaceholderLedger], books[PluginContext])

    with pytest.MonkeyPatch.context() as monkeypatch:
        for kind in (PlaceholderLedger, PluginContext):
            monkeypatch.setattr(kind, "__init__", keep(kind))
        model, one = HashModel(VOCAB, eos_ids=workload.eos_ids), read_design(design)
        play(workload, one.loop, one.relay, {**one.options}, SimDevice(), model, each_turn=look)
    assert not books[PlaceholderLedger].sequences


# -- mindie_single: what one layer saves -----------------------------------------------------------


def test_the_comparison_of_the_two_pipelines() -> None:
    dual, single = (
        run_loop(
            loop, SimDevice(), HashModel(),
            [Request(f"r{at}", [1, 2, 3 + at], tokens(6 + 4 * at)) for at in range(3)],
            cost=SIM_COST,
        )
        for loop in ("mindie_dual", "mindie_single")
    )  # fmt: skip
    assert dual.outputs == single.outputs
    two, one = (measure(run.trace) for run in (dual, single))
    assert (two.steps, one.steps) == (15, 14)
    assert (two.wasted_rows, one.wasted_rows) == (3, 0), "an end each; one pipeline knows lengths"
    for run, count in ((dual, 2), (single, 1)):
        assert len({item.lane for item in run.trace.slices if is_host(item.lane)}) == count
        assert len({mark.name for mark in run.trace.marks} & {"ledger", "context"}) == count
    assert one.makespan_ns < two.makespan_ns
    assert one.host_busy_ns / one.steps < two.host_busy_ns / two.steps
