"""Both FutureMaps: what is stored is what is resolved, until the ring laps it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisched.devices.sim import SimDevice
from minisched.devices.vector import Vector
from minisched.relay import FutureMapPool, FutureMapRing

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
    stored: list[tuple[list[int], Vector]] = []
    for number, size in enumerate(sizes):
        indices = list(ring.alloc_future_indices(size))
        tokens = Vector(range(100 * number, 100 * number + size))
        ring.store_to_map(Vector(indices), tokens)
        stored.append((indices, tokens))
        for slots, expected in stored[-2:]:
            assert ring.resolve_future(Vector(-slot for slot in slots)) == expected


def test_a_placeholder_that_waits_too_long_is_lapped() -> None:
    """What nothing bounds in the ring (SGLang #13713): enough launches overwrite a slot."""
    ring = FutureMapRing(SimDevice(), 1)
    slot = ring.alloc_future_indices(1)[0]
    ring.store_to_map(Vector([slot]), Vector([42]))
    for token in range(3):
        ring.store_to_map(Vector(ring.alloc_future_indices(1)), Vector([token]))
    assert ring.resolve_future(Vector([-slot])) == [2]


@given(known=st.lists(st.integers(0, 99), min_size=1, max_size=8))
def test_known_tokens_pass_through(known: list[int]) -> None:
    for relay in (FutureMapRing(SimDevice(), MOST), FutureMapPool(SimDevice(), MOST)):
        assert relay.resolve_future(Vector(known)) == known


@given(rows=st.lists(st.integers(1, MOST), min_size=1, max_size=MOST, unique=True))
def test_the_pool_keeps_one_token_for_each_row(rows: list[int]) -> None:
    pool = FutureMapPool(SimDevice(), MOST)
    for offset in (0, 50):
        tokens = Vector(row + offset for row in rows)
        pool.store_to_map(Vector(rows), tokens)
        assert pool.resolve_future(Vector(-row for row in rows)) == tokens
