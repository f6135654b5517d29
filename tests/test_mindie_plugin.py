"""The plugin pipeline: one step of lag, two phases to finish, and what waits for whom."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import step_intervals
from minisched.core import ForwardMode, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.mindie_plugin import deliver, generate_token_async
from minisched.loops.mindie_plugin_context import GenerationOutput
from minisched.loops.mindie_plugin_manager import PluginManager
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.mindie_laws import Books, settled_trace, together, wasted_rows, watched
from tests.support import (
    VOCAB,
    Workload,
    check_no_thread_left,
    hash_model,
    open_device,
    play,
    workloads,
)

FILLS = pytest.mark.parametrize("relay", ["fill_host", "fill_device"])


def engine_with(requests: list[Request], relay: str) -> Engine:
    """An engine that has received the requests, for calling the plugin by hand."""
    frontend = Frontend(requests)
    model = HashModel(VOCAB, eos_ids=frozenset())
    engine = make_engine(
        "mindie_plugin", SimDevice(), model, SchedulerConfig(), frontend, relay=relay
    )
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
    requests = [Request(f"r{i}", [1, 2 + i], SamplingParams(max_new_tokens=6)) for i in range(2)]
    engine = engine_with(requests, relay)
    manager = PluginManager(engine)
    assert manager.output_queue[0] is None, "seeded with an empty output"
    answers = [call(engine, manager)[1].token_ids for _ in range(6)]
    assert answers[0] == {"r0": -1, "r1": -1}, "nothing has come back: dummies"
    assert answers[1:] == [{req.rid: req.output_ids[step] for req in requests} for step in range(5)]


@FILLS
def test_the_finishing_round_flags_and_the_next_one_clears(relay: str) -> None:
    short = Request("short", [1, 2], SamplingParams(max_new_tokens=3))
    long = Request("long", [1, 3], SamplingParams(max_new_tokens=9))
    engine = engine_with([short, long], relay)
    manager = PluginManager(engine)
    contexts = manager.context.contexts
    calls = [call(engine, manager) for _ in range(3)]
    batch, output = call(engine, manager)  # step 4 is put, and step 3 answers
    lease = batch.leases[batch.rids.index("short")]
    assert batch.rids == ("short", "long"), "the surplus row: nobody foresaw the length"
    assert output.finished == ["short"] and output.token_ids["short"] == short.output_ids[2]
    assert contexts[lease].pending_cleanup and not any(o.finished for _, o in calls)
    batch, output = call(engine, manager)
    assert batch.rids == ("long",)
    assert lease not in contexts and "short" not in output.token_ids, "cleared, its row dropped"


@pytest.mark.parametrize("relay", ["fill_host", "fill_device"])
@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=80, deadline=None)
def test_every_end_wastes_one_row_a_length_stop_too(relay: str, workload: Workload) -> None:
    assert wasted_rows(workload, "mindie_plugin", relay, {}) == {"r0": 1}


@given(workload=workloads(with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_every_request_wastes_one_row_where_all_start_together(workload: Workload) -> None:
    workload = together(workload)
    wasted = wasted_rows(workload, "mindie_plugin", "fill_host", {})
    assert wasted == {req.rid: 1 for req in workload.requests}


def check_book(engine: Engine, books: Books) -> None:
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
@settings(max_examples=80, deadline=None)
def test_the_book_is_one_step_behind_and_what_is_shipped_is_not(
    relay: str, workload: Workload
) -> None:
    """Positions come from the plugin's own context; filling makes them those of the commit."""

    def watch(engine: Engine) -> None:
        launch = engine.worker.launch_forward

        def checked(batch: ScheduleBatch, inputs: ForwardBatch, *args: Any) -> Any:
            ends = [row.end for row in batch.rows]
            assert inputs.prefix_lens == batch.starts
            assert [position for _, _, position in inputs.sampling] == ends
            return launch(batch, inputs, *args)

        engine.worker.launch_forward = checked  # type: ignore[method-assign]

    with watched("mindie_plugin", check_book) as books:
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        play(workload, "mindie_plugin", relay, {}, SimDevice(), model, patch=watch)
    assert books.context is not None
    for item in books.context.contexts.values():
        assert item.pending_cleanup or item.req.finished, "the next round would clear it"


HOST = ("schedule", "prepare", "postprocess", "process", "output")
costs = st.integers(0, 60).map(lambda n: 10 * n)


any_costs = given(
    host=st.lists(costs, min_size=5, max_size=5),
    device=st.integers(11, 90).map(lambda n: 100 * n),
    copy=costs,
    launch=st.integers(1, 20).map(lambda n: 10 * n),
    fill=costs,
)


def settled_intervals(
    relay: str, host: list[int], device: int, copy: int, launch: int, fill: int
) -> list[int]:
    phases = dict(zip(HOST, host, strict=True)) | {"launch": launch, "fill": fill}
    cost = CostModel(phases, forward_base=device - 100, sample=100, copy=copy)
    return step_intervals(settled_trace("mindie_plugin", relay, cost))[10:50]


@settings(max_examples=80, deadline=None)
@any_costs
def test_with_the_host_filling_nothing_runs_between_two_steps(
    host: list[int], device: int, copy: int, launch: int, fill: int
) -> None:
    """A step takes l + f + max(d + c, h), exactly."""
    intervals = settled_intervals("fill_host", host, device, copy, launch, fill)
    assert set(intervals) == {launch + fill + max(device + copy, sum(host))}


@settings(max_examples=80, deadline=None)
@any_costs
def test_a_bitmask_adds_its_time_to_every_launch(
    host: list[int], device: int, copy: int, launch: int, fill: int
) -> None:
    """It stands between the filling and the forward pass; nothing else is hidden any less."""
    mask = 70
    phases = dict(zip(HOST, host, strict=True)) | {"launch": launch, "fill": fill, "mask": mask}
    cost = CostModel(phases, forward_base=device - 100, sample=100, copy=copy)
    trace = settled_trace("mindie_plugin", "fill_host", cost, "([a-m][n-z]){40}")
    law = launch + mask + fill + max(device + copy, sum(host))
    assert set(step_intervals(trace)[10:50]) == {law}


@settings(max_examples=80, deadline=None)
@any_costs
def test_with_the_device_filling_it_is_a_loop_of_depth_two(
    host: list[int], device: int, copy: int, launch: int, fill: int
) -> None:
    """Two steps take max(2 d, 2 (h + l), 2 c, d + c + h + l); what a host fill costs is saved."""
    intervals = settled_intervals("fill_device", host, device, copy, launch, fill)
    work = sum(host) + launch
    law = max(2 * device, 2 * work, 2 * copy, device + copy + work)
    assert {sum(intervals[at : at + 2]) for at in range(30)} == {law}


COST = CostModel(
    {"schedule": 20, "prepare": 10, "launch": 7, "launch sample": 2, "fill": 3,
     "postprocess": 9, "process": 15},
    forward_base=100, sample=10, copy=5,
)  # fmt: skip


@FILLS
def test_who_waits_for_whom(relay: str) -> None:
    """N-1 is post-processed once N is launched; only a host that fills needs N-1's tokens first."""
    trace = settled_trace("mindie_plugin", relay, COST)
    by_name = {
        name: {item.step: item for item in trace.slices if item.name == name}
        for name in ("prepare", "fill", "launch", "forward", "copy", "postprocess", "verify")
    }
    launches = by_name["launch"]
    assert {item.lane for item in launches.values()} == {"forward thread"}
    for step in range(3, 60):
        assert by_name["prepare"][step].start < by_name["copy"][step - 1].end
        assert by_name["postprocess"][step - 1].start >= launches[step].end
        assert by_name["verify"][step].start >= by_name["postprocess"][step - 1].end
        gap = by_name["forward"][step].start - by_name["copy"][step - 1].end
        assert gap == (3 + 7 if relay == "fill_host" else -5)


@FILLS
def test_where_the_token_came_from(relay: str) -> None:
    """The edges say it: by way of the copy to the host, or from the sample on the device."""
    trace = settled_trace("mindie_plugin", relay, COST)
    slices = {item.id: item for item in trace.slices}
    edges = [edge for edge in trace.edges if edge.kind == "token"]
    sources = {(slices[edge.src].name, slices[edge.dst].name) for edge in edges}
    by_host = {("copy", "forward")}
    assert sources == (by_host if relay == "fill_host" else {("sample", "forward")})
    decodes = [s for s in trace.on("forward") if s.mode == ForwardMode.DECODE.value]
    assert len(edges) == len([s for s in decodes if s.name == "forward"])
    launched = {slices[edge.dst].step for edge in trace.edges if edge.kind == "launch"}
    assert launched == {item.step for item in trace.on("forward")}


@pytest.mark.parametrize("loop", ["mindie_plugin", "mindie_dual"])
def test_no_request_changes_while_the_thread_builds_a_bitmask(loop: str) -> None:
    """However slow that is; the caller would have time to tell a grammar the next token."""
    params = SamplingParams(max_new_tokens=5, regex=r"[\x00-\x05]{9}")
    device, request = open_device("thread"), Request("r", [1, 2], params)
    model = hash_model("thread", frozenset())
    engine = make_engine(loop, device, model, SchedulerConfig(), Frontend([request]))
    update, process = engine.worker.unsampled.update_vocab_mask, engine.process_result
    changed, seen = threading.Event(), []

    def slowly(*args: Any) -> None:
        changed.clear()
        seen.append(changed.wait(0.1))
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


@pytest.mark.parametrize("backend", ["sim", "thread", "mlx"])
@pytest.mark.parametrize("method", ["launch_forward", "launch_sample"])
@FILLS
def test_an_error_on_the_forward_thread_is_the_steps_and_nobody_waits_for_ever(
    backend: str, method: str, relay: str
) -> None:
    device = open_device(backend)
    model = hash_model(backend, frozenset())
    request = Request("r", [1, 2], SamplingParams(max_new_tokens=9))
    calls = 0

    def patched(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of luck")
        return original(*args)

    engine = make_engine(
        "mindie_plugin", device, model, SchedulerConfig(), Frontend([request]), relay=relay
    )
    original = getattr(engine.worker, method)
    setattr(engine.worker, method, patched)
    engine.recv_requests()
    manager = PluginManager(engine)
    try:
        while not request.finished:
            call(engine, manager)
    finally:
        device.close()
    assert request.error == "step 3 failed: out of luck" and len(request.output_ids) == 2
    check_no_thread_left()


@FILLS
def test_a_postprocess_that_fails_lets_the_forward_thread_go_on(relay: str) -> None:
    """As in the original: ``postprocess_done`` is said whatever happens, or closing would hang."""
    device = open_device("thread")
    engine = make_engine(
        "mindie_plugin", device, hash_model("thread", frozenset()), SchedulerConfig(),
        Frontend([Request("r", [1, 2], SamplingParams(max_new_tokens=9))]), relay=relay,
    )  # fmt: skip
    engine.recv_requests()
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
    device.close()
    check_no_thread_left()


def test_another_relay_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="relay 'ring' does not fit loop 'mindie_plugin'"):
        run_loop("mindie_plugin", SimDevice(), HashModel(), [], relay="ring")
