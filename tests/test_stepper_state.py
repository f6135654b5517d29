"""The ring and the tree as stays: at every moment they are what the trace's own reader rebuilds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.state import Panel, panels
from minisched.export.state.ring import ring
from minisched.export.state.tree import tree
from minisched.export.views.future_slots import stays_of
from minisched.export.views.radix_tree import Node, moments_of, tree_at
from minisched.models.hash import HashModel
from minisched.trace import Trace

from .laws import play
from .stepper_page import traces
from .test_speculation import SPECULATIVE, VOCAB, speculative_workloads

law = settings(max_examples=60, deadline=None)


def told(node: Node) -> tuple[str, str, str, str]:
    """What a stay of this node must say."""
    pages = f"{node.pages} page{'s' * (node.pages != 1)}"
    parent = f"node {node.parent}" if node.parent else "root"
    return parent, node.state, node.tokens, f"{pages}, lock_ref {node.lock_ref}: {node.state}"


@law
@given(traces())
def test_the_tree_at_any_moment_is_the_tree_rebuilt_up_to_it(trace: Trace) -> None:
    panel = tree(trace)
    for moment in moments_of(trace):
        if moment.time == trace.end:
            continue
        rebuilt = tree_at(trace, moment.time).nodes.values()
        wanted = {f"node {node.id}": told(node) for node in rebuilt if not node.evicted}
        now = panel.at(moment.time)
        assert {s.place: (s.parent, s.kind, s.label, s.about) for s in now.values()} == wanted


@law
@given(traces())
def test_whoever_holds_a_node_is_counted_on_the_way_to_the_root(trace: Trace) -> None:
    panel = tree(trace)
    for moment in moments_of(trace):
        now, locks = panel.at(moment.time), Counter[str]()
        for stay in now.values():
            place = stay.place
            while place != "root":
                locks[place] += len(stay.holders)
                place = now[place].parent
        assert {place: f"lock_ref {locks[place]}:" in s.about for place, s in now.items()} == (
            dict.fromkeys(now, True)
        )


@law
@given(traces())
def test_a_node_stands_after_the_one_it_hangs_on(trace: Trace) -> None:
    panel = tree(trace)
    at = {place: number for number, place in enumerate(panel.places)}
    assert set(at) >= {stay.place for stay in panel.stays}
    for moment in moments_of(trace):
        now = panel.at(moment.time)
        path: list[str] = []  # depth first: each hangs on one of those that are still open
        for place in sorted(now, key=at.__getitem__):
            while path and path[-1] != now[place].parent:
                path.pop()
            assert path or now[place].parent == "root"
            path.append(place)


@law
@given(traces())
def test_the_ring_has_every_token_in_its_slot(trace: Trace) -> None:
    panel, tokens = ring(trace), stays_of(trace)
    for token in tokens:
        for kind, start, end in token.phases:
            for time in (start, end - 1):
                stay = panel.at(time)[f"slot {token.slot}"]
                assert (stay.kind, stay.rid, stay.end) == (kind, token.rid, end)
    assert len(panel.stays) == sum(len(list(token.phases)) for token in tokens)
    assert_one_at_a_time(panel)


def assert_one_at_a_time(panel: Panel) -> None:
    """No two stays of a place overlap."""
    for place in panel.places:
        stays = [stay for stay in panel.stays if stay.place == place]
        assert all(before.end <= after.start for before, after in pairwise(stays)), place


@law
@given(traces())
def test_no_place_is_taken_twice_and_every_stay_takes_time(trace: Trace) -> None:
    found = panels(trace)
    assert [panel.name for panel in found] == ["queue", "set", "ring", "pages", "rows", "tree"]
    for panel in found:
        assert_one_at_a_time(panel)
        assert all(0 <= stay.start < stay.end <= trace.end for stay in panel.stays)


@pytest.mark.parametrize(("loop", "relay", "options", "algorithm"), SPECULATIVE, ids=str)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_with_drafts_a_token_is_read_from_its_slot_as_well(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any
) -> None:
    """Drafts lie in cells of their own, which are no future slots; the page can be made."""
    workload = data.draw(speculative_workloads(algorithm, history=True))
    engine, _ = play(workload, loop, relay, options, SimDevice(), HashModel(VOCAB), SIM_COST)
    trace = engine.device.recorder.trace(loop, "sim", "hash", "virtual")
    slots = {stay.slot for stay in stays_of(trace)} if ring(trace).stays else set()
    assert slots <= set(range(1, workload.config.max_running_requests + 1))
    assert to_html([trace])
    for panel in panels(trace):
        assert_one_at_a_time(panel)
