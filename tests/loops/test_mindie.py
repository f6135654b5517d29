"""MindIE's loops: the plugin's pipeline, the C++ scheduler's ledger and gate, both layers with a
book each, and one pipeline in place of two layers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.checks.overlap.overlap import measure
from minisched.checks.overlap.pipelines import compare_pipelines
from minisched.core import ForwardMode, Lease, Request, ScheduleBatch
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.units import ms
from minisched.export.views import draw
from minisched.loops.mindie_placeholder_ledger import PlaceholderLedger
from minisched.loops.mindie_plugin import deliver, generate_token_async
from minisched.loops.mindie_plugin_context import GenerationOutput, PluginContext
from minisched.loops.mindie_plugin_manager import PluginManager
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder, Trace
from tests.support import (
    BACKENDS,
    VOCAB,
    Picture,
    Workload,
    check_no_thread_left,
    check_picture,
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
FEW = settings(max_examples=many(8, 100))
COST = CostModel(
    {"schedule": 20, "prepare": 10, "launch": 7, "launch sample": 2, "fill": 3,
     "postprocess": 9, "process": 15},
    forward_base=100, sample=10, copy=5,
)  # fmt: skip


class Books:
    """The books that a loop keeps, caught as it makes them."""

    ledger: PlaceholderLedger | None = None
    context: PluginContext | None = None


def play_watched(
    loop: str,
    relay: str,
    workload: Workload,
    at_turn: Callable[[Engine, Books], None],
    patch: Callable[[Engine], None] = lambda engine: None,
    **options: Any,
) -> Books:
    """A workload's run, whose books are looked at after every turn."""
    books = Books()

    def keep(kind: type, name: str) -> Callable[..., None]:
        def init(self: Any, *args: Any) -> None:
            made(self, *args)
            setattr(books, name, self)

        made = kind.__init__
        return init

    def look(engine: Engine) -> None:
        at_turn(engine, books)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(PlaceholderLedger, "__init__", keep(PlaceholderLedger, "ledger"))
        monkeypatch.setattr(PluginContext, "__init__", keep(PluginContext, "context"))
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        play(workload, loop, relay, options, SimDevice(), model, patch=patch, each_turn=look)
    return books


# -- mindie_plugin: a call answers with the tokens of the call before ------------------------------


def engine_with(requests: list[Request], relay: str, backend: str = "sim") -> Engine:
    """An engine that has received the requests, for calling the plugin by hand."""
    model = hash_model(backend, frozenset())
    engine = make_engine(
        "mindie_plugin", open_device(backend), model, SchedulerConfig(), Frontend(requests),
        relay=relay,
    )  # fmt: skip
    engine.recv_requests()
    return engine


def call(engine: Engine, manager: PluginManager) -> tuple[ScheduleBatch, GenerationOutput]:
    """One call: what was put, and what came back."""
    batch = engine.get_next_batch_to_run()
    assert isinstance(batch, ScheduleBatch)
    output = generate_token_async(manager, batch)
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


def check_context(engine: Engine, books: Books) -> None:
    """Between two calls the plugin knows of everybody what the core knows: no less, no more."""
    assert books.context is not None
    decodes = engine.scheduler.decode.running_reqs
    for lease, item in books.context.contexts.items():
        assert item.pending_cleanup <= item.req.finished
        if item.req.lease is lease:
            assert item.seq_len == (
                item.req.known_len if item.req in decodes else item.req.computed_len
            )


@FILLS
@given(workload=workloads())
@FEW
def test_the_book_is_one_step_behind_and_what_is_shipped_is_not(
    relay: str, workload: Workload
) -> None:
    """Positions come from the plugin's own context; filling makes them those of the commit."""

    def watch(engine: Engine) -> None:
        launch = engine.worker.launch_forward

        def checked(batch: ScheduleBatch, inputs: ForwardBatch, *args: Any) -> Any:
            assert inputs.prefix_lens == batch.starts
            ends = [row.end for row in batch.rows]
            assert [position for _, _, position in inputs.sampling] == ends
            return launch(batch, inputs, *args)

        engine.worker.launch_forward = checked  # type: ignore[method-assign]

    books = play_watched("mindie_plugin", relay, workload, check_context, watch)
    assert books.context is not None
    for item in books.context.contexts.values():
        assert item.pending_cleanup or item.req.finished, "the next round would clear it"


@FILLS
def test_who_waits_for_whom_and_where_the_token_came_from(relay: str) -> None:
    """N-1 is post-processed once N is launched; only a host that fills needs N-1's tokens first."""
    trace = run_alone(f"mindie_plugin:{relay}", 1, COST)
    launches, prepared, copies = (named(trace, name) for name in ("launch", "prepare", "copy"))
    forwards, done, verified = (
        named(trace, name) for name in ("forward", "postprocess", "verify")
    )  # fmt: skip
    assert {item.lane for item in launches.values()} == {"forward thread"}
    for step in range(3, 35):
        assert prepared[step].start < copies[step - 1].end
        assert done[step - 1].start >= launches[step].end
        assert verified[step].start >= done[step - 1].end
        gap = forwards[step].start - copies[step - 1].end
        assert gap == (3 + 7 if relay == "fill_host" else -5)
    slices = {item.id: item for item in trace.slices}
    edges = [edge for edge in trace.edges if edge.kind == "token"]
    source = "copy" if relay == "fill_host" else "sample"
    assert {(slices[e.src].name, slices[e.dst].name) for e in edges} == {(source, "forward")}
    assert len(edges) == sum(item.mode == "decode" for item in forwards.values())


@pytest.mark.parametrize("loop", ["mindie_plugin", "mindie_dual"])
def test_no_request_changes_while_the_thread_builds_a_bitmask(loop: str) -> None:
    """However slow that is; the caller would have time to tell a grammar the next token."""
    params = replace(tokens(5, regex=r"[\x00-\x05]{9}"), ignore_eos=False)
    device, request = open_device("thread"), Request("r", [1, 2], params)
    model = hash_model("thread", frozenset())
    engine = make_engine(loop, device, model, SchedulerConfig(), Frontend([request]))
    update, process = engine.worker.unsampled.update_vocab_mask, engine.process_result
    changed, seen = threading.Event(), []

    def slowly(*args: Any) -> None:
        changed.clear()
        seen.append(changed.wait(0.05))
        update(*args)

    def process_result(*args: Any) -> None:
        process(*args)
        changed.set()

    engine.worker.unsampled.update_vocab_mask = slowly  # type: ignore[method-assign]
    engine.process_result = process_result  # type: ignore[method-assign]
    try:
        drive(LOOPS[loop].start(engine), engine)
    finally:
        device.close()
    assert len(request.output_ids) == 5 and seen == [False] * 6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["launch_forward", "launch_sample"])
@FILLS
def test_an_error_on_the_forward_thread_is_the_steps_and_nobody_waits_for_ever(
    backend: str, method: str, relay: str
) -> None:
    request = Request("r", [1, 2], tokens(9))
    engine, calls = engine_with([request], relay, backend), count(1)
    original = getattr(engine.worker, method)

    def patched(*args: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("out of luck")
        return original(*args)

    setattr(engine.worker, method, patched)
    manager = PluginManager(engine)
    try:
        while not request.finished:
            call(engine, manager)
    finally:
        engine.device.close()
    assert request.error == "step 3 failed: out of luck" and len(request.output_ids) == 2
    check_no_thread_left()


@FILLS
def test_a_postprocess_that_fails_lets_the_forward_thread_go_on(relay: str) -> None:
    """As in the original: ``postprocess_done`` is said whatever happens, or closing would hang."""
    engine = engine_with([Request("r", [1, 2], tokens(9))], relay, "thread")
    manager = PluginManager(engine)
    call(engine, manager)

    def fail(*args: Any) -> Any:
        raise RuntimeError("out of luck")

    manager.context.update = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of luck"):
        call(engine, manager)
    output = manager.output_queue[0]
    assert output is not None
    output.verified.synchronize()  # the thread was not left waiting
    engine.device.close()
    check_no_thread_left()


# -- mindie_placeholder: the ledger by itself ------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 4])
def test_a_token_needs_a_placeholder_and_there_are_never_more_than_steps(steps: int) -> None:
    ledger, req = PlaceholderLedger(2, NullRecorder()), Request("a", [1, 2, 3, 4])
    req.lease = Lease(1)
    row = [req], [req.lease], [0], [(None,) * 4]
    ledger.prepare_next_schedule(ScheduleBatch(1, ForwardMode.EXTEND, 1, *row, [False]))
    assert ledger.sequences["a"].output_token_ids == [], "a chunk that is not the last"
    for step in range(2, 2 + steps):
        ledger.prepare_next_schedule(ScheduleBatch(step, ForwardMode.DECODE, 0, *row, [True]))
    ledger.fetch_seq_generated_tokens({"a": -1}, 0)  # a dummy leaves all of them standing
    with pytest.raises(RuntimeError, match=f"has {steps} placeholders; .* from 1 to 3"):
        ledger.fetch_seq_generated_tokens({"a": 7}, 1)


# -- mindie_placeholder: the gate ------------------------------------------------------------------


def check_ledger(engine: Engine, books: Books) -> None:
    """At the end of a turn the ledger is what the core derives, for everybody who has a lease."""
    ledger = books.ledger
    assert ledger is not None
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


@pytest.mark.parametrize(("loop", "relay", "gate"), [
    ("mindie_placeholder", "host", 1), ("mindie_placeholder", "fill_device", 2),
    ("mindie_placeholder", "pool", 2), ("mindie_single", "fill_device", 0),
    ("mindie_single", "pool", 0),
])  # fmt: skip
@given(workload=workloads())
@FEW
def test_the_ledger_is_what_the_core_derives(
    loop: str, relay: str, gate: int, workload: Workload
) -> None:
    def at_turn(engine: Engine, books: Books) -> None:
        check_ledger(engine, books)
        assert engine.scheduler.batches_in_flight <= (gate or 1)
        assert books.context is None, "there is no second book"

    options = {"max_async_schedule_times": gate} if gate else {}
    books = play_watched(loop, relay, workload, at_turn, **options)
    assert books.ledger is not None and not books.ledger.sequences


def lists_of(trace: Trace) -> list[tuple[str, str]]:
    """What the ledger's marks say, one after the other."""
    marks = [mark for mark in trace.marks if mark.name == "ledger"]
    return [(str(mark.attrs["after"]), str(mark.attrs["lists"])) for mark in marks]


@pytest.mark.parametrize(("relay", "gate", "said"), [
    ("fill_device", 3, "is 3, .* 1 or 2"), ("host", 2, "is 2, .* over the host"),
])  # fmt: skip
def test_a_gate_that_cannot_be_is_refused(relay: str, gate: int, said: str) -> None:
    requests, more = [Request("r", [1])], {"max_async_schedule_times": gate}
    with pytest.raises(ValueError, match=said):
        run_loop("mindie_placeholder", SimDevice(), HashModel(), requests, relay=relay, **more)


@pytest.mark.parametrize("loop", ["mindie_placeholder", "mindie_dual", "mindie_single"])
def test_the_view_shows_every_list(loop: str) -> None:
    """A box for each token of each list, at its place: read back and compared with the marks."""
    requests = [Request(f"r{at}", [1, 2 + at], tokens(5)) for at in range(2)]
    cost = CostModel({"schedule": 10_000, "process": 10_000}, 100_000, copy=10_000)
    trace = run_loop(loop, SimDevice(), HashModel(), requests, cost=cost).trace
    picture = Picture(draw("mindie_placeholder", trace))
    check_picture(picture)
    shown = picture.count("entry", "rid", "place", "token", tag="rect")
    expected: Counter[tuple[str, ...]] = Counter()
    for mark in (mark for mark in trace.marks if mark.name == "ledger"):
        for item in filter(None, str(mark.attrs["lists"]).split("; ")):
            rid, said = item.split(":")
            places = enumerate(said.split())
            expected.update((ms(mark.time), rid, str(place), token) for place, token in places)
    assert shown == expected
    promised = sum(times for (*_, token), times in expected.items() if token == "-1")
    assert len(picture.shapes("rect", "promised")) == 1 + promised


# -- mindie_dual: both layers, and two books -------------------------------------------------------


@FILLS
def test_the_lists_are_always_one_ahead_of_what_has_come(relay: str) -> None:
    """[-1]; a dummy; [-1, -1]; t1: [t1, -1]; and so on."""
    request = Request("a", [1, 2, 3], tokens(4))
    run = run_loop("mindie_dual", SimDevice(), HashModel(), [request], relay=relay)
    expected = [("schedule", "a: -1"), ("dummy", "a: -1"), ("schedule", "a: -1 -1")]
    for at in range(1, 5):
        known = " ".join(map(str, run.outputs["a"][:at]))
        expected += [("response", f"a: {known} -1"), ("schedule", f"a: {known} -1 -1")]
    assert lists_of(run.trace) == [*expected[:-1], ("response", "")]  # its surplus row is dropped


@FILLS
def test_a_placeholder_is_booked_when_the_call_is_on_its_way_and_nothing_is_known_of_it(
    relay: str,
) -> None:
    """PrepareNextSchedule comes after the asynchronous execute, and before any answer."""
    trace = run_alone(f"mindie_dual:{relay}", 1, SIM_COST)
    put, begun = named(trace, "fill"), named(trace, "forward")
    marks = [mark for mark in trace.marks if mark.name == "ledger"]
    booked = {mark.attrs["step"]: mark.time for mark in marks if mark.attrs["after"] == "schedule"}
    assert booked.keys() == put.keys() and len(put) > 30
    assert all(put[step].end <= booked[step] <= begun[step].start for step in put)


def check_books(engine: Engine, books: Books) -> None:
    """The ledger is what the core derives, and the plugin's context says the same as both.

    The plugin is ahead of the ledger by the response that C++ has not fetched, and behind it by
    the step that it has just put.
    """
    check_ledger(engine, books)
    ledger, context = books.ledger, books.context
    assert ledger is not None and context is not None
    batch = engine.scheduler.cur_batch
    for lease, item in context.contexts.items():
        req = item.req
        if req.lease is not lease or req.rid not in ledger.sequences or item.pending_cleanup:
            continue
        data = ledger.sequences[req.rid]
        committed = len(req.prompt) + len(data.output_token_ids)
        if req not in engine.scheduler.decode.running_reqs:
            assert item.seq_len == data.num_computed_tokens  # a prompt in chunks
        else:
            is_put = isinstance(batch, ScheduleBatch) and req in batch.reqs
            in_flight = is_put and engine.scheduler.batches_in_flight > 0
            assert item.seq_len == committed - in_flight


@FILLS
@given(workload=workloads())
@FEW
def test_the_two_books_agree_at_every_turn(relay: str, workload: Workload) -> None:
    books = play_watched("mindie_dual", relay, workload, check_books)
    assert books.ledger is not None and not books.ledger.sequences


# -- mindie_single: what one layer saves -----------------------------------------------------------


def test_the_comparison_of_the_two_pipelines() -> None:
    """Every line is what the traces say, and says what the second layer costs."""
    dual, single = (
        run_loop(
            loop, SimDevice(), HashModel(),
            [Request(f"r{at}", [1, 2, 3 + at], tokens(6 + 4 * at)) for at in range(3)],
            cost=SIM_COST,
        )
        for loop in ("mindie_dual", "mindie_single")
    )  # fmt: skip
    assert dual.outputs == single.outputs
    lines = {row.name: row.values for row in compare_pipelines([dual.trace, single.trace])}
    assert lines["steps"] == (measure(dual.trace).steps, measure(single.trace).steps) == (15, 14)
    assert lines["makespan"] == (dual.trace.end / 1e6, single.trace.end / 1e6)
    assert lines["wasted rows"] == (3, 0), "one for each end; its lengths are foreseen"
    assert lines["host threads"] == lines["books of requests"] == (2, 1)
    assert lines["makespan"][1] < lines["makespan"][0]
    assert lines["host work a step"][1] < lines["host work a step"][0]
