"""The state as stays: at every moment it is what the engine's own books say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.state import Panel, panels
from minisched.export.state.ring import ring
from minisched.export.state.side import one_side
from minisched.export.state.tree import tree
from minisched.export.views.future_slots import stays_of
from minisched.export.views.radix_tree import Node, moments_of, tree_at
from minisched.loops.pd import Pair
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from tests.engine_truth import Books, Truth
from tests.pd_runs import links, play_pd, timed
from tests.stepper_page import traces
from tests.support import LOOP_OPTIONS, VOCAB, Workload, play, workloads
from tests.test_speculation import SPECULATIVE, speculative_workloads
from tests.test_views import COST

law = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Seen:
    """One scheduler's run, its panels, and its own books."""

    panels: dict[str, Panel]
    trace: Trace  # of this scheduler
    truths: dict[int, Truth]
    page_size: int

    def __repr__(self) -> str:
        return f"a run through {self.trace.loop} up to {self.trace.end} ns"


@st.composite
def seen(draw: st.DrawFn) -> Seen:
    """A run of any kind, whose books were looked into whenever time passed."""
    scarce = st.builds(crowd, st.integers(2, 4), st.integers(4, 9), st.integers(2, 6))
    workload = draw(st.one_of(workloads(max_requests=5), scarce))
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    device, books = SimDevice(), Books()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, options, device, model, COST, books.patch(device))
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    truths = books.up_to(trace.end)
    return Seen({p.name: p for p in panels(trace)}, trace, truths, workload.config.page_size)


def crowd(count: int, most: int, spare: int) -> Workload:
    """Requests that need more memory than there is, all at once: some are retracted."""
    params = SamplingParams(max_new_tokens=most, ignore_eos=True)
    requests = [Request(f"r{at}", [at, 1, 2], params) for at in range(count)]
    config = SchedulerConfig(kv_tokens=4 + most + spare, schedule_conservativeness=0.0)
    return Workload(requests, [0] * count, {}, config)


def pair_seen(workload: Workload, options: dict[str, Any]) -> list[Seen]:
    """Both sides of a pair."""
    prefill, decode = Books(), Books()

    def patch(pair: Pair) -> None:
        prefill.follow(pair.prefill.sim, pair.prefill.scheduler)
        decode.follow(pair.decode.sim, pair.decode.scheduler)

    trace, size = play_pd(workload, options, patch).trace, workload.config.page_size
    found = panels(trace)
    return [
        Seen({p.name: p for p in found if p.side == side}, one_side(trace, side),
             books.up_to(trace.end), size)
        for side, books in (("prefill", prefill), ("decode", decode))
    ]  # fmt: skip


def whose(panel: Panel, time: int) -> dict[int, tuple[str, str]]:
    """Kind and request of each page or row."""
    return {int(s.place.split()[1]): (s.kind, s.rid) for s in panel.at(time).values()}


def check_state(run: Seen) -> None:
    """Every panel, at every moment up to the last: what the engine's own books say.

    The queue are those who live and have no memory: SGLang's ``waiting_queue``, and in a pair
    also those whose other side is not so far. The set are those with memory, who decode or whose
    prompt is being computed; and the leases that are closed, and that a launched step still names.
    """
    of, end = run.panels, run.trace.end
    assert max(run.truths) == end
    for time, truth in run.truths.items():
        queue, there = of["queue"].at(time), of["set"].at(time).values()
        assert {stay.rid for stay in queue.values()} == truth.live - truth.holding, time
        assert truth.waiting <= truth.live - truth.holding
        alive = {stay.rid for stay in there if stay.kind != "wasted"}
        held = {stay.rid for stay in there if stay.kind == "sending"}  # maybe after its end
        assert truth.holding <= alive <= truth.holding | held, time
        assert {*truth.running} | truth.chunked <= truth.holding
        zombies = sorted(stay.rid for stay in there if stay.kind == "wasted")
        assert zombies == [rid for rid, _ in truth.zombies], time
        assert whose(of["rows"], time) == truth.rows, time
        pages = whose(of["pages"], time)
        assert pages == truth.pages, time
        kinds = Counter(kind for kind, _ in pages.values())
        assert kinds["evictable"] * run.page_size == truth.cached
        assert (kinds.total() - kinds["evictable"]) * run.page_size == truth.used
        nodes = {int(s.place.split()[1]): s.about for s in of["tree"].at(time).values()}
        assert {at: f"lock_ref {count}:" in nodes[at] for at, count in truth.locks.items()} == (
            dict.fromkeys(nodes, True)
        )


@settings(max_examples=100, deadline=None)
@given(seen())
def test_every_panel_is_what_the_engine_s_books_say(run: Seen) -> None:
    check_state(run)
    counted = {c.name: c.value for c in run.trace.counters}  # the last of each, at the end
    now = {name: panel.at(run.trace.end) for name, panel in run.panels.items()}
    pages = Counter(stay.kind for stay in now["pages"].values())
    assert pages["evictable"] * run.page_size == counted["kv cached"]
    assert (pages.total() - pages["evictable"]) * run.page_size == counted["kv used"]
    assert (len(now["queue"]), len(now["set"])) == (counted["waiting"], counted["running"])


@settings(max_examples=40, deadline=None)
@given(seen(), st.data())
def test_a_run_that_is_cut_off_ends_with_what_was_there(run: Seen, data: st.DataObject) -> None:
    """At its last moment everything is still there, also what nobody has ended."""
    time, whole = data.draw(st.sampled_from(sorted(run.truths))), run.trace
    part = replace(
        whole,
        slices=(*(s for s in whole.slices if s.end <= time), Slice(0, "end", "end", time, time)),
        marks=tuple(mark for mark in whole.marks if mark.time <= time),
    )
    for panel in panels(part):
        if panel.name != "ring":  # whose tokens are those of steps that have begun
            there, then = panel.at(part.end), run.panels[panel.name].at(time)
            assert {p: (s.kind, s.rid) for p, s in there.items()} == (
                {p: (s.kind, s.rid) for p, s in then.items()}
            )


@settings(max_examples=40, deadline=None)
@given(timed, links)
def test_both_sides_of_a_pair_are_what_their_books_say(
    workload: Workload, options: dict[str, Any]
) -> None:
    for run in pair_seen(workload, options):
        check_state(run)


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
                assert (stay.kind, stay.rid) == (kind, token.rid)
                assert stay.end == end or (stay.end == trace.end + 1 and end == trace.end)
    last = {f"slot {token.slot}": token for token in tokens}
    for place, stay in panel.at(trace.end).items():
        token = last.pop(place)
        assert (stay.rid, stay.kind) == (token.rid, "stale" if token.sampled else "promised")
    assert not last, "each slot still has its last token when the run has ended"
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
    assert not any(panel.side for panel in found)
    for panel in found:
        assert_one_at_a_time(panel)
        assert all(0 <= stay.start < stay.end <= trace.end + 1 for stay in panel.stays)


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
