"""What is each relay's own; that each row reads its own token, the law of designs sees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Lease, Request, ScheduleBatch
from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice, Vector
from minisched.models.base import flatten
from minisched.models.hash import HashModel
from minisched.recipes import RECIPES
from minisched.relay import (
    RELAYS,
    FillHost,
    FutureMapDrafts,
    FutureMapPool,
    FutureMapRing,
    PrevSampled,
    RelayShape,
    RequestState,
)
from minisched.relay.placeholder_fill import PLACEHOLDER_TOKEN, prepare_masks_for_filling
from minisched.trace import Trace
from tests.support import VOCAB, Workload, many, play, workloads

MOST = 4  # requests at once
SHAPE = RelayShape(MOST, 40)

# -- whatever the relay ----------------------------------------------------------------------------


def batch_of(step: int, rows: dict[str, tuple[int | None, ...]], prompts: int = 0,
             chunk: str = "") -> ScheduleBatch:  # fmt: skip
    """A batch of rows with these input ids; the first ``prompts`` of them are prompts."""
    reqs = [Request(rid, [0] * 9) for rid in rows]
    return ScheduleBatch(
        step, ForwardMode.MIXED if prompts else ForwardMode.DECODE, prompts,
        reqs, [Lease(at) for at, _ in enumerate(rows, 1)],
        [9 - len(ids) for ids in rows.values()], list(rows.values()),
        chunked_req=next((req for req in reqs if req.rid == chunk), None),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["host", "prev_sampled", "chain", "fill_host", "fill_device"])
def test_a_token_that_a_relay_does_not_hold_is_refused_by_name(name: str) -> None:
    """The relays of one step: what the step before did not sample, or only as a chunk's."""
    relay = RELAYS[name](SimDevice(), SHAPE)
    first, second = batch_of(1, {"a": (1,)}), batch_of(2, {"b": (1,)})
    relay.bind(first, None)
    relay.bind(second, first)
    with pytest.raises((ValueError, KeyError), match=r"\ba\b|cannot run ahead"):
        relay.bind(batch_of(3, {"a": (None,)}), second)


# -- future_map: rings, and a slot for each row ----------------------------------------------------


@given(sizes=st.lists(st.integers(1, MOST), min_size=1, max_size=40))
def test_a_batch_takes_slots_in_a_row_inside_the_buffer(sizes: list[int]) -> None:
    """And a slot is not taken again before two full batches more have been."""
    ring, taken = FutureMapRing(SimDevice(), SHAPE), list[set[int]]()
    assert ring.most_in_flight == 4, "a step, two in between, and the one that reads it"
    for size in sizes:
        indices = ring.alloc_future_indices(size)
        assert len(indices) == size and indices.step == 1
        assert indices[0] >= 1 and indices[-1] < len(ring.token_ids_map.values)
        assert 0 <= ring.future_ct < ring.future_limit == 3 * MOST
        assert not any({*indices} & before for before in taken[-2:])
        taken.append({*indices})


def test_a_placeholder_that_waits_too_long_is_lapped() -> None:
    """What nothing bounds in the ring (SGLang #13713): enough launches overwrite a slot."""
    ring = FutureMapRing(SimDevice(), RelayShape(1))
    slot = ring.alloc_future_indices(1)[0]
    ring.store_to_map(Vector([slot]), Vector([42]))
    for token in range(3):
        assert ring.resolve_future(Vector([-slot])) == [42], "two more batches do no harm"
        ring.store_to_map(Vector(ring.alloc_future_indices(1)), Vector([token]))
    assert ring.resolve_future(Vector([-slot])) == [2]


@given(row=st.integers(1, MOST), drafts=st.integers(0, 3), length=st.integers(1, 9))
def test_a_row_releases_the_cells_that_its_steps_touch(row: int, drafts: int, length: int) -> None:
    """So the next request of the row gets no cell that a step may still write."""
    kind = FutureMapDrafts if drafts else FutureMapPool
    relay = kind(SimDevice(), RelayShape(MOST, 40, drafts))
    batch = ScheduleBatch(1, ForwardMode.DECODE, 0, [], [Lease(row)], [], [], {})
    touches = relay.writes(batch, [row])
    if isinstance(relay, FutureMapDrafts):
        touches += relay.writes_drafts(batch)
    touched = {(touch.resource, cell) for touch in touches for cell in touch.cells}
    released = [(name, cell) for name, cells in relay.of_row(row, length) for cell in cells]
    assert sorted(released) == sorted(touched)


@given(drafts=st.integers(1, 3))
def test_tokens_and_drafts_share_no_future_slot(drafts: int) -> None:
    """And the slots fill the buffer."""
    relay = FutureMapDrafts(SimDevice(), RelayShape(MOST, 40, drafts))
    slots = [relay.future_slot(row, at) for row in range(MOST + 1) for at in range(drafts + 1)]
    assert sorted(slots) == list(range(len(relay.token_ids_map.values)))


# -- token_pool: every token of every request, ordered by streams alone ----------------------------

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 4)


@pytest.mark.parametrize("loop", ["mini_normal", "mini_overlap", "overlap"])
@given(workload=workloads())
@settings(max_examples=many(12, 150))
def test_only_prompts_travel_and_streams_are_the_order(loop: str, workload: Workload) -> None:
    """A step starts when the last of three has ended: its launch, the step before, its upload."""
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, "token_pool", {}, device, model, COST)
    trace = Trace.of(device.recorder, loop, "sim", "hash", "virtual")
    uploads = {item.step: item for item in trace.slices if item.name == "upload"}
    forwards = [item for item in trace.slices if item.name == "forward"]
    ends = {(item.name, item.step): item.end for item in trace.slices}
    assert sorted(uploads) == sorted(item.step for item in forwards if item.mode != "decode")
    lane = "forward" if loop == "mini_normal" else "scheduler"
    assert {item.lane for item in uploads.values()} <= {lane}
    for item in forwards:
        before = ends.get(("sample", item.step - 1), 0), ends.get(("upload", item.step), 0)
        assert item.start == max(ends["launch", item.step], *before)


# -- prev_sampled: the cheapest of three paths -----------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "path"),
    [
        ({"a": (5,), "b": (6, 7)}, "full"),  # nothing of the step before is needed
        ({"a": (None,), "b": (None,)}, "slice"),  # row i goes on where row i was
        ({"a": (None,), "b": (5,)}, "slice"),  # and what is known comes after
        ({"b": (None,), "a": (None,)}, "scatter"),
        ({"new": (5,), "a": (None,)}, "scatter"),
        ({"a": (5,), "b": (None,)}, "scatter"),
    ],
)
def test_the_path_is_the_cheapest_that_will_do(rows: Any, path: str) -> None:
    relay = PrevSampled(SimDevice(), SHAPE)
    first = batch_of(1, {"a": (1,), "b": (1,), "chunk": (2, 3)}, chunk="chunk")
    relay.bind(first, None)
    assert relay.prev_req_id_to_index == {"a": 0, "b": 1}, "what a chunk samples means nothing"
    relay.bind(batch_of(2, rows), first)
    assert [plan.path for plan in relay.plans] == ["full", path]


# -- request_state: slots that stay while rows move ------------------------------------------------


def test_the_host_sends_the_tokens_of_a_prompt_and_then_none() -> None:
    relay = RequestState(SimDevice(), SHAPE)
    batch = batch_of(1, {"a": (5, 6), "b": (7,)}, chunk="a")
    lease, other = batch.leases
    relay.bind(batch, None)
    assert relay.num_sent == [2, 1]
    for rows, sent in (
        ({"b": (None,), "a": (8,)}, [0, 1]),  # the last chunk of a
        ({"a": (None,), "b": (4,)}, [0, 0]),  # also a token that the host has learnt
    ):
        batch = batch_of(2, rows)
        batch.leases = [{"a": lease, "b": other}[rid] for rid in rows]
        relay.bind(batch, None)
        assert relay.num_sent == sent
    batch = batch_of(4, {"c": (3,)})  # a new lease of the slot
    relay.bind(batch, None)
    assert relay.num_sent == [1]


@given(order=st.lists(st.permutations(["a", "b", "c"]), min_size=1, max_size=6))
def test_a_row_reads_the_token_that_its_own_slot_sampled_last(order: list[list[str]]) -> None:
    """Wherever the row is in the batch; and the ids that are sent have no token in them."""
    relay = RequestState(SimDevice(), SHAPE)
    leases = {rid: Lease(at) for at, rid in enumerate("abc", 1)}
    last = {rid: (at,) for at, rid in enumerate("abc", 90)}
    for step, rids in enumerate([["a", "b", "c"], *order], 1):
        batch = batch_of(step, {rid: last[rid] if step == 1 else (None,) for rid in rids})
        batch.leases = [leases[rid] for rid in rids]
        batch.starts = [step - 1] * 3
        ids, slots = relay.bind(batch, None)
        assert max(ids) < 0 and slots == [leases[rid].row for rid in rids]
        assert relay.resolve_future(Vector(ids)) == [last[rid][0] for rid in rids]
        last = {rid: (100 * step + leases[rid].row,) for rid in rids}
        relay.store_to_map(Vector(slots), Vector([last[rid][0] for rid in rids]))


# -- placeholder_fill: which rows are filled, from which, and where --------------------------------


def test_prompts_alone_are_not_hit_even_if_their_ids_were_in_the_last_batch() -> None:
    """MindIE #75: a sequence that was preempted starts again; its row must not be filled."""
    batch = batch_of(2, {"a": (5, 6), "b": (7,)}, prompts=2)
    assert prepare_masks_for_filling(batch, ("a", "b")) == ([], [], [])


def test_a_failed_step_leaves_no_placeholder_for_the_model_to_read() -> None:
    relay = FillHost(SimDevice(), SHAPE)
    relay.bind(batch_of(1, {"a": (1,)}), None)
    batch = batch_of(2, {"a": (None,)})
    flat = flatten(batch, *relay.bind(batch, None), 16, 1)
    assert flat.ids == [PLACEHOLDER_TOKEN]
    relay.fill(flat, ())
    assert flat.ids == [WRONG_TOKEN]


@pytest.mark.parametrize("name", ["fill_host", "fill_device"])
def test_after_a_flush_nobody_can_be_filled(name: str) -> None:
    relay: Any = RELAYS[name](SimDevice(), SHAPE)
    relay.bind(batch_of(1, {"a": (1,)}), None)
    relay.reset()
    with pytest.raises(KeyError, match="a"):
        relay.bind(batch_of(2, {"a": (None,)}), None)


# -- lazy_chain: which array feeds which step ------------------------------------------------------


def test_a_step_is_built_on_the_one_before_it_or_on_none_and_the_chain_begins_anew() -> None:
    trace = RECIPES["lazy_chain"].run()
    marks = {int(m.attrs["step"]): m for m in trace.marks if m.name == "lazy tokens"}
    by_name = {name: {item.step: item for item in trace.slices if item.name == name}
               for name in ("launch", "forward", "sample", "process")}  # fmt: skip
    ran = by_name["forward"]
    assert [*marks] == [*ran] == list(range(1, len(ran) + 1)), "every step has one array"
    sources = {step: int(m.attrs["source"]) for step, m in marks.items() if m.attrs["source"]}
    for step, source in sources.items():
        assert source == step - 1 and ran[source].rids == ran[step].rids, "the same rows"
        assert marks[step].attrs["places"] == tuple(range(1, len(ran[step].rids) + 1))
        assert marks[step].time < by_name["sample"][source].end, "while it is a mere graph"
        built = by_name["launch"][step].end
        assert built <= by_name["process"][source].start, "before the host has read its tokens"
    decodes = {step for step, item in ran.items() if item.mode == "decode"}
    assert decodes - sources.keys() == {2, 7, 12}, "a's end, and d's prompt"
