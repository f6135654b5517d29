"""Both FutureMaps: what is stored is what is resolved, until the ring laps it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.judge import judge
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.base import Device
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.devices.vector import Vector
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.relay import FutureMapPool, FutureMapRing
from minisched.relay.registry import RELAYS, RelayShape
from minisched.scheduler import SchedulerConfig

MOST = 6  # max_running_requests
batch_sizes = st.lists(st.integers(1, MOST), min_size=1, max_size=40)


@given(sizes=batch_sizes)
def test_a_batch_takes_slots_in_a_row_inside_the_buffer(sizes: list[int]) -> None:
    ring = FutureMapRing(SimDevice(), MOST)
    for size in sizes:
        indices = ring.alloc_future_indices(size)
        assert len(indices) == size and indices.step == 1
        assert indices[0] >= 1, "slot 0 would read as a known token"
        assert indices[-1] < len(ring.token_ids_map.values)
        assert 0 <= ring.future_ct < ring.future_limit == 3 * MOST


@given(sizes=batch_sizes)
def test_tokens_live_for_two_full_batches_more(sizes: list[int]) -> None:
    """Three times the most that can run: a token is still there after two launches in between."""
    ring = FutureMapRing(SimDevice(), MOST)
    assert ring.most_in_flight == 4, "a step, two in between, and the one that reads it"
    stored: list[tuple[list[int], Vector]] = []
    for number, size in enumerate(sizes):
        indices = list(ring.alloc_future_indices(size))
        tokens = Vector(range(100 * number, 100 * number + size))
        ring.store_to_map(Vector(indices), tokens)
        stored.append((indices, tokens))
        for slots, expected in stored[-3:]:
            assert ring.resolve_future(Vector(-slot for slot in slots)) == expected


def test_four_steps_in_flight_lap_a_ring_that_is_a_third_as_long() -> None:
    """While the chunks of b's prompt take slots, a's token is read three steps after its own."""
    requests = [
        Request("a", [17], SamplingParams(max_new_tokens=3)),
        Request("b", [18, 16], SamplingParams(max_new_tokens=1)),
    ]
    config = SchedulerConfig(kv_tokens=64, max_running_requests=2, chunked_prefill_size=1)
    workload = Workload(requests, [0, 2], {}, config)
    case = Case(workload, "vllm_async", "ring", {"depth": 4}, SIM_COST)
    long, short = "= 3 * max_running_requests", "= max_running_requests"
    with put_in([Edit("relay.future_map:FutureMapRing.__init__", long, short)]):
        assert judge(case).broke("identity")
    assert judge(case).holds


def test_a_placeholder_that_waits_too_long_is_lapped() -> None:
    """What nothing bounds in the ring (SGLang #13713): enough launches overwrite a slot."""
    ring = FutureMapRing(SimDevice(), 1)
    slot = ring.alloc_future_indices(1)[0]
    ring.store_to_map(Vector([slot]), Vector([42]))
    for token in range(3):
        assert ring.resolve_future(Vector([-slot])) == [42], "two more batches do no harm"
        ring.store_to_map(Vector(ring.alloc_future_indices(1)), Vector([token]))
    assert ring.resolve_future(Vector([-slot])) == [2]


@given(known=st.lists(st.integers(0, 99), min_size=1, max_size=8))
def test_known_tokens_pass_through(known: list[int]) -> None:
    for debug in (False, True):
        pool = FutureMapPool(SimDevice(), MOST, debug)
        assert pool.resolve_forward_inputs(Vector(known)) == known
    assert FutureMapRing(SimDevice(), MOST).resolve_future(Vector(known)) == known


@given(rows=st.lists(st.integers(1, MOST), min_size=1, max_size=MOST, unique=True))
def test_the_pool_keeps_one_token_for_each_row(rows: list[int]) -> None:
    pool = FutureMapPool(SimDevice(), MOST)
    for offset in (0, 50):
        tokens = Vector(row + offset for row in rows)
        pool.stash(Vector(rows), tokens)
        assert pool.resolve_forward_inputs(Vector(-row for row in rows)) == tokens


@given(row=st.integers(1, MOST), drafts=st.integers(0, 3), length=st.integers(1, 9))
def test_what_a_row_gives_back_is_what_its_steps_touch(row: int, drafts: int, length: int) -> None:
    """So whoever has the row next is told of every cell that may still be written."""
    pool = FutureMapPool(SimDevice(), MOST, drafts)
    touched = {("future map", cell) for cell in [pool.cell(row, 0)]}
    if drafts:
        for touch in (pool.touch_drafts([row]), pool.touch_lens("write", [row])):
            touched |= {(touch.resource, cell) for cell in touch.cells}
    assert {(name, cell) for name, cells in pool.of_row(row, length) for cell in cells} == touched


def test_debug_mode_catches_a_gather_without_a_stash() -> None:
    pool = FutureMapPool(SimDevice(), MOST, debug=True)
    with pytest.raises(RuntimeError, match=r"rows \[2\] were gathered, but nothing was stashed"):
        pool.resolve_forward_inputs(Vector([-2]))
    pool.stash(Vector([2, 3]), Vector([0, 42]))
    assert pool.resolve_forward_inputs(Vector([-2, 7])) == [0, 7]
    with pytest.raises(RuntimeError, match=r"rows \[2\]"):
        pool.resolve_forward_inputs(Vector([-2, -3]))
    assert pool.resolve_forward_inputs(Vector([-3])) == [42], "nobody has gathered it before"


def run_in_debug_mode(monkeypatch: pytest.MonkeyPatch, stash: bool) -> Run:
    """A run of the overlap loop, which stashes its tokens or forgets to."""

    def make(device: Device, shape: RelayShape) -> FutureMapPool:
        pool = FutureMapPool(device, shape.max_running_requests, debug=True)
        if not stash:
            pool.stash = lambda *args: None  # type: ignore[method-assign]
        return pool

    monkeypatch.setitem(RELAYS, "pool", RELAYS["pool"]._replace(make=make))
    requests = [Request(f"r{i}", [i + 1] * 3) for i in range(3)]
    return run_loop("overlap", SimDevice(), HashModel(), requests, relay="pool")


def test_a_whole_run_gathers_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_in_debug_mode(monkeypatch, stash=True).errors
    lost = run_in_debug_mode(monkeypatch, stash=False).errors
    assert lost and all("nothing was stashed" in error for error in lost.values())
