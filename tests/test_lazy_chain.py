"""The lazy chain: which array feeds which step, on every device; and what it refuses."""

from __future__ import annotations

import re
import weakref
from contextlib import closing

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Lease, Request, ScheduleBatch
from minisched.devices.sim import SimDevice
from minisched.devices.vector import Vector
from minisched.export.recipes import recipes
from minisched.export.views import draw
from minisched.export.views.lazy_arrays import arrays_of
from minisched.relay import LazyChain
from minisched.trace import Trace
from tests.support import AND_CUDA, Picture, Workload, open_device, play_timed, timed_workloads


def batch(step: int, rows: list[tuple[str, tuple[int | None, ...]]]) -> ScheduleBatch:
    """A decode batch of these requests with these input ids."""
    made = ScheduleBatch(step, ForwardMode.DECODE, 0)
    for row, (rid, ids) in enumerate(rows, 1):
        made.reqs.append(Request(rid, [1]))
        made.leases.append(Lease(row))
        made.starts.append(0)
        made.ids.append(ids)
        made.delivers.append(True)
    return made


@AND_CUDA
@settings(max_examples=30, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    known=st.sets(st.integers(0, 5)),
)
def test_each_row_gets_its_own_token_of_the_previous_array(
    backend: str, tokens: list[int], order: object, known: set[int]
) -> None:
    """Whatever the order of the rows, and whichever of them the host knows."""
    rids = [f"r{i}" for i in range(len(tokens))]
    previous = batch(1, [(rid, (0,)) for rid in rids])
    places = list(range(len(tokens)))
    order.shuffle(places)  # type: ignore[attr-defined]
    rows: list[tuple[str, tuple[int | None, ...]]] = [
        (rids[at], (100 + at if at in known else None,)) for at in places
    ]
    with closing(open_device(backend)) as device:
        chain, xp = LazyChain(device), device.xp
        ids, dests = chain.bind(batch(2, rows), previous)
        resolved = chain.resolve(xp.asarray(ids), xp.asarray(tokens))
        assert [int(token) for token in resolved] == [
            100 + at if at in known else tokens[at] for at in places
        ]
    assert dests == []


def test_a_token_that_nobody_has_is_refused_by_name() -> None:
    chain = LazyChain(SimDevice())
    unknown = batch(7, [("a", (5,)), ("b", (None,))])
    with pytest.raises(ValueError, match=r"^step 7 is built on no step, which has no token of 'b'"):
        chain.bind(unknown, None)
    with pytest.raises(ValueError, match=r"^step 7 is built on step 6, .* of 'b', and the host"):
        chain.bind(unknown, batch(6, [("a", (5,))]))


def test_without_a_previous_array_the_ids_are_the_tokens() -> None:
    ids = Vector([3, 1, 2])
    assert LazyChain(SimDevice()).resolve(ids, None) is ids


def check_arrays(trace: Trace) -> int:
    """Each step is built on the one before it or on none, while that is a mere graph.

    Gives how many were built on lazy tokens.
    """
    arrays = {array.step: array for array in arrays_of(trace)}
    assert sorted(arrays) == list(range(1, len(arrays) + 1)), "every step has one array"
    for array in arrays.values():
        assert array.bound <= array.built <= array.computed <= array.read
        if array.source:
            source = arrays[array.source]
            assert array.source == array.step - 1
            assert source.rids == array.rids, "the same rows, in the same order"
            assert array.places.split() == [str(at) for at, _ in enumerate(array.rids, 1)]
            assert array.built <= source.read, "built before the host has read what it is built on"
    return sum(array.source > 0 for array in arrays.values())


@given(timed_workloads())
@settings(max_examples=40, deadline=None)
def test_whatever_is_built_on_lazy_tokens_is_built_on_the_step_before(workload: Workload) -> None:
    trace = play_timed(workload, "mlx_async", "chain", {}).trace
    assume(trace.on("forward"))  # not everybody was given up before the first step
    check_arrays(trace)


def test_the_golden_run_shows_a_chain_that_breaks_and_begins_anew() -> None:
    trace = recipes()["lazy_chain"].run()
    arrays = arrays_of(trace)
    assert check_arrays(trace) == 9
    lazy = {array.step: array for array in arrays}
    for array in arrays:  # built while the numbers did not exist: that is the point of it
        if array.source:
            assert array.bound < lazy[array.source].computed
    fresh = [array.step for array in arrays if not array.source and array.mode == "decode"]
    assert fresh == [2, 7, 12], "the first decode, the one after a's end, the one after d's prompt"


def test_the_view_shows_every_array_and_every_source() -> None:
    trace = recipes()["lazy_chain"].run()
    arrays = arrays_of(trace)
    picture = Picture(draw("lazy_chain", trace))
    assert picture.count("step", kind="promised") == {(str(a.step),): 1 for a in arrays}
    assert picture.count("source", "step", kind="read") == {
        (str(a.source), str(a.step)): 1 for a in arrays if a.source
    }
    fresh = {(str(a.step),): 1 for a in arrays if not a.source and a.mode == "decode"}
    assert picture.count("step", kind="flag-head") == fresh
    assert re.findall(r"wasted: [a-z, ]*[a-z]", picture.words) == ["wasted: a", "wasted: b, c"]


def test_a_simulated_chain_of_steps_does_not_hold_on_to_its_past() -> None:
    """As ``thread`` and ``mlx``: what a step was made from goes once the step has run."""
    with closing(SimDevice()) as device:
        stream = device.stream("forward")
        op = stream.launch(lambda: 0, name="first", cost=5)
        first = weakref.ref(op)
        for _ in range(3):
            op = stream.launch(lambda value: value + 1, op, name="next", cost=5)
        assert op.synchronize() == 3
        assert first() is None
