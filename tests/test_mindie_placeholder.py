"""The C++ scheduler: its ledger is what the core derives, and what its gate costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import step_intervals
from minisched.core import ForwardMode, Lease, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.units import ms
from minisched.export.views import draw
from minisched.loops.mindie_placeholder_ledger import PlaceholderLedger
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.trace import NullRecorder
from tests.mindie_laws import Books, check_ledger, lists_of, settled_trace, wasted_rows, watched
from tests.support import (
    VOCAB,
    Picture,
    Workload,
    check_all,
    check_no_thread_left,
    check_picture,
    hash_model,
    open_device,
    play,
    workloads,
)

LOOP = "mindie_placeholder"
GATES = pytest.mark.parametrize(
    ("relay", "gate"),
    [("host", 1), ("fill_device", 1), ("fill_device", 2), ("pool", 2)],
    ids=str,
)


def gate_of(gate: int) -> dict[str, Any]:
    return {"max_async_schedule_times": gate}


# -- the ledger by itself --------------------------------------------------------------------------


class Scene:
    """A ledger and one request, whose steps are told by hand."""

    def __init__(self, prompt_len: int = 4) -> None:
        self.ledger = PlaceholderLedger(2, NullRecorder())
        self.req = Request("a", list(range(prompt_len)))
        self.req.lease = Lease(1)
        self.step = 0

    def schedule(self, start: int, length: int, deliver: bool = True) -> None:
        self.step += 1
        assert self.req.lease is not None
        batch = ScheduleBatch(
            self.step, ForwardMode.DECODE, 0, [self.req], [self.req.lease], [start],
            [(None,) * length], [deliver],
        )  # fmt: skip
        self.ledger.prepare_next_schedule(batch)

    def respond(self, token: int) -> None:
        self.ledger.fetch_seq_generated_tokens({"a": token}, self.step)

    @property
    def output(self) -> list[int]:
        return self.ledger.sequences["a"].output_token_ids

    @property
    def computed(self) -> int:
        return self.ledger.sequences["a"].num_computed_tokens


def test_the_published_lists() -> None:
    """After the prefill, a dummy response, the decode scheduled, the first token, the second."""
    scene = Scene()
    scene.schedule(0, 4)
    assert scene.output == [-1] and scene.computed == 4
    scene.respond(-1)
    assert scene.output == [-1], "a dummy leaves the placeholder pending"
    scene.schedule(4, 1)
    assert scene.output == [-1, -1] and scene.computed == 5
    scene.respond(71)
    assert scene.output == [71, -1], "the first of the trailing placeholders is filled"
    scene.schedule(5, 1)
    scene.respond(72)
    assert scene.output == [71, 72, -1]


def test_a_chunk_that_is_not_the_last_has_no_placeholder() -> None:
    scene = Scene(prompt_len=5)
    scene.schedule(0, 3, deliver=False)
    assert scene.output == [] and scene.computed == 3
    scene.schedule(3, 2)
    assert scene.output == [-1] and scene.computed == 5


def test_a_token_without_its_placeholder_is_an_error() -> None:
    scene = Scene()
    scene.schedule(0, 4)
    scene.respond(5)
    with pytest.raises(RuntimeError, match=r"has 0 placeholders; it must have from 1 to 3\."):
        scene.respond(6)


def test_more_placeholders_than_steps_are_an_error() -> None:
    full = Scene()
    for step in range(3):
        full.schedule(4 + step, 1)
    full.respond(6)
    assert full.output == [6, -1, -1], "as many as there may be"
    scene = Scene()
    for step in range(4):
        scene.schedule(4 + step, 1)
    with pytest.raises(RuntimeError, match=r"has 4 placeholders; it must have from 1 to 3\."):
        scene.respond(6)


def test_preemption_takes_the_placeholders_and_leaves_the_tokens() -> None:
    scene = Scene()
    scene.schedule(0, 4)
    scene.schedule(4, 1)
    scene.respond(7)
    scene.schedule(5, 1)
    scene.respond(8)
    scene.req.lease = None
    scene.ledger.clear_terminated()
    assert scene.output == [7, 8]
    scene.req.lease = Lease(2)
    scene.schedule(0, 6)
    assert scene.output == [7, 8, -1] and scene.computed == 6


# -- the loop --------------------------------------------------------------------------------------


@GATES
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_the_ledger_is_what_the_core_derives(relay: str, gate: int, workload: Workload) -> None:
    def at_turn(engine: Engine, books: Books) -> None:
        check_ledger(engine, books)
        assert engine.scheduler.batches_in_flight <= gate

    device = SimDevice()
    with watched(LOOP, at_turn) as books:
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        engine, outputs = play(workload, LOOP, relay, gate_of(gate), device, model)
    check_all(workload, engine, outputs)
    assert books.ledger is not None and not books.ledger.sequences
    assert device.is_idle


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(workload=workloads())
@settings(max_examples=30, deadline=None)
def test_a_gate_of_two_in_real_time(backend: str, workload: Workload) -> None:
    model, device = hash_model(backend, workload.eos_ids), open_device(backend)
    check_all(workload, *play(workload, LOOP, "fill_device", gate_of(2), device, model))
    check_no_thread_left()


@given(workload=workloads(with_aborts=False))
@settings(max_examples=80, deadline=None)
def test_with_one_call_outstanding_nothing_is_wasted(workload: Workload) -> None:
    assert not wasted_rows(workload, LOOP, "host", gate_of(1))


@given(workload=workloads(max_requests=1, with_aborts=False))
@settings(max_examples=80, deadline=None)
def test_with_two_every_end_wastes_a_row(workload: Workload) -> None:
    """A length stop too: only the text generator counts tokens."""
    assert wasted_rows(workload, LOOP, "fill_device", gate_of(2)) == {"r0": 1}


HOST = ("schedule", "prepare", "launch", "process", "output")


@given(
    st.lists(st.integers(0, 90).map(lambda n: 10 * n), min_size=5, max_size=5),
    st.integers(11, 90),
    st.integers(0, 90),
)
@settings(max_examples=80, deadline=None)
def test_what_the_gate_costs(host: list[int], device: int, copy: int) -> None:
    """A gate of 1 makes the loop a serial one: d + h + c. With 2 it is a loop of depth 2."""
    device, copy = 100 * device, 10 * copy
    cost = CostModel(
        dict(zip(HOST, host, strict=True)), forward_base=device - 100, sample=100, copy=copy
    )
    work = sum(host)
    one = step_intervals(settled_trace(LOOP, "host", cost))[10:50]
    assert set(one) == {device + work + copy}
    two = step_intervals(settled_trace(LOOP, "fill_device", cost, **gate_of(2)))[10:50]
    law = max(2 * device, 2 * work, 2 * copy, device + copy + work)
    assert {sum(two[at : at + 2]) for at in range(30)} == {law}


@pytest.mark.parametrize(("relay", "gate", "deepest"), [("host", 1, 1), ("fill_device", 2, 2)])
def test_how_many_placeholders_stand(relay: str, gate: int, deepest: int) -> None:
    trace = settled_trace(LOOP, relay, CostModel({}, 10), **gate_of(gate))
    depths = [lists.split(": ")[1].split().count("-1") for _, lists in lists_of(trace) if lists]
    assert max(depths) == deepest


def test_a_gate_that_cannot_be_is_refused() -> None:
    def run(relay: str, gate: int) -> None:
        run_loop(LOOP, SimDevice(), HashModel(), [Request("r", [1])], relay=relay, **gate_of(gate))

    with pytest.raises(ValueError, match="max_async_schedule_times is 3, but it must be 1 or 2"):
        run("fill_device", 3)
    with pytest.raises(ValueError, match="is 2, but the relay brings every token over the host"):
        run("host", 2)


@pytest.mark.parametrize("loop", ["mindie_placeholder", "mindie_dual", "mindie_single"])
def test_the_view_shows_every_list(loop: str) -> None:
    """A box for each token of each list, at its place: read back and compared with the marks."""
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    requests = [Request(f"r{at}", [1, 2 + at], params) for at in range(2)]
    cost = CostModel({"schedule": 10_000, "process": 10_000}, 100_000, copy=10_000)
    trace = run_loop(loop, SimDevice(), HashModel(), requests, cost=cost).trace
    picture = Picture(draw("mindie_placeholder", trace))
    check_picture(picture)
    shown = picture.count("entry", "rid", "place", "token", tag="rect")
    expected: Counter[tuple[str, ...]] = Counter()
    for mark in (mark for mark in trace.marks if mark.name == "ledger"):
        for item in filter(None, str(mark.attrs["lists"]).split("; ")):
            rid, tokens = item.split(":")
            expected.update(
                (ms(mark.time), rid, str(place), token)
                for place, token in enumerate(tokens.split())
            )
    assert shown == expected
    assert len(picture.shapes("rect", "promised")) == 1 + sum(
        count for (_, _, _, token), count in expected.items() if token == "-1"
    )
