"""Placeholder fill: which rows are filled, from which rows of the step before, and where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings

from minisched.core import ForwardMode, Lease, Request, ScheduleBatch, get_model_worker_batch
from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.views import draw
from minisched.export.views.placeholder_fill import MOST_STEPS
from minisched.models.hash import HashModel
from minisched.relay.placeholder_fill import (
    PLACEHOLDER_TOKEN,
    FillDevice,
    FillHost,
    PlaceholderFill,
    prepare_masks_for_filling,
)
from tests.support import VOCAB, Picture, Workload, open_device, play, workloads

COST = CostModel({"schedule": 5, "prepare": 2}, forward_base=10, sample=1, copy=1)
LOOPS = pytest.mark.parametrize(
    ("loop", "relay"),
    [
        ("mindie_plugin", "fill_host"),
        ("mindie_plugin", "fill_device"),
        ("mindie_dual", "fill_host"),
        ("mindie_single", "fill_device"),
    ],
)


def batch_of(step: int, rows: dict[str, tuple[int | None, ...]], prompts: int = 0) -> ScheduleBatch:
    """A batch of rows with these input ids; the first ``prompts`` of them are prompts."""
    mode = ForwardMode.MIXED if prompts else ForwardMode.DECODE
    reqs = [Request(rid, [0] * 9) for rid in rows]
    leases = [Lease(at + 1) for at in range(len(rows))]
    starts = [9 - len(ids) for ids in rows.values()]
    deliver = [True] * len(rows)
    return ScheduleBatch(step, mode, prompts, reqs, leases, starts, list(rows.values()), deliver)


def test_the_row_of_each_hit() -> None:
    batch = batch_of(2, {"new": (5, 6, 7), "c": (None,), "known": (8,), "a": (None,)}, prompts=1)
    masks = prepare_masks_for_filling(batch, ("a", "b", "c"))
    assert masks.hit_rows == [1, 3]
    assert masks.update_indices == [3, 5], "tokens lie flat: the prompt has three"
    assert masks.hit_indices == [2, 0]


def test_prompts_alone_are_not_hit_even_if_their_ids_were_in_the_last_batch() -> None:
    """MindIE #75: a sequence that was preempted starts again; its row must not be filled."""
    batch = batch_of(2, {"a": (5, 6), "b": (7,)}, prompts=2)
    assert prepare_masks_for_filling(batch, ("a", "b")) == ([], [], [])


def test_a_token_that_is_not_the_last_steps_cannot_be_filled() -> None:
    relay = FillDevice(SimDevice(), 4)
    relay.bind(batch_of(1, {"a": (1,)}), None)
    with pytest.raises(KeyError, match="b"):
        relay.bind(batch_of(2, {"b": (None,)}), None)


def test_the_host_writes_the_tokens_into_the_holes_and_nothing_else() -> None:
    relay = FillHost(SimDevice())
    relay.bind(batch_of(1, {"a": (1,), "b": (2,), "c": (3,)}), None)
    batch = batch_of(2, {"new": (5, 6), "known": (9,), "c": (None,), "a": (None,)}, prompts=1)
    ids, dests = relay.bind(batch, None)
    assert ids == [5, 6, 9, PLACEHOLDER_TOKEN, PLACEHOLDER_TOKEN]
    flat = get_model_worker_batch(batch, ids, dests, 16, 1)
    relay.fill(flat, [70, 71, 72])
    assert flat.input_ids == [5, 6, 9, 72, 70]


def test_a_failed_step_leaves_no_placeholder_for_the_model_to_read() -> None:
    relay = FillHost(SimDevice())
    relay.bind(batch_of(1, {"a": (1,)}), None)
    batch = batch_of(2, {"a": (None,)})
    flat = get_model_worker_batch(batch, *relay.bind(batch, None), 16, 1)
    relay.fill(flat, ())
    assert flat.input_ids == [WRONG_TOKEN]


@pytest.mark.parametrize("backend", ["sim", "thread", "mlx"])
def test_the_device_scatters_the_last_steps_tokens(backend: str) -> None:
    device = open_device(backend)
    relay = FillDevice(device, 4)
    xp = device.xp
    _, dests = relay.bind(batch_of(1, {"a": (1,), "b": (2,), "c": (3,)}), None)
    relay.store(xp.asarray(dests), xp.asarray([70, 71, 72]))
    batch = batch_of(2, {"new": (5, 6), "c": (None,), "a": (None,), "known": (9,)}, prompts=1)
    ids, _ = relay.bind(batch, None)
    assert ids == [5, 6, PLACEHOLDER_TOKEN - 2, PLACEHOLDER_TOKEN, 9]
    assert relay.resolve(xp.asarray(ids), None).tolist() == [5, 6, 72, 70, 9]
    device.close()


@LOOPS
@given(workload=workloads())
@settings(max_examples=60, deadline=None)
def test_a_hit_is_a_decode_that_was_in_the_last_batch(
    loop: str, relay: str, workload: Workload
) -> None:
    """The published rule: ids that were in the last batch, prompts left out. And no -1 gets in.

    A flush of the single pipeline brings tokens to the host that could still be filled.
    """

    def watch(engine: Engine) -> None:
        made = engine.worker.relay
        assert isinstance(made, PlaceholderFill)
        bind, forward = made.bind, engine.worker.model.forward

        def checked_bind(batch: ScheduleBatch, previous: ScheduleBatch | None) -> Any:
            last = made.last_sequence_ids
            decodes = range(batch.num_extend_reqs, len(batch.reqs))
            in_last = [row for row in decodes if batch.rids[row] in last]
            bound = bind(batch, previous)
            masks = made.filling_masks
            unknown = [row for row in in_last if None in batch.ids[row]]
            assert masks.hit_rows == (unknown if loop == "mindie_single" else in_last)
            assert [last[row] for row in masks.hit_indices] == [
                batch.rids[row] for row in masks.hit_rows
            ]
            return bound

        def checked_forward(inputs: Any, ids: Any, *args: Any) -> Any:
            assert min(ids) >= 0, "a placeholder reached the model"
            return forward(inputs, ids, *args)

        made.bind = checked_bind  # type: ignore[method-assign]
        engine.worker.model.forward = checked_forward  # type: ignore[method-assign]

    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, {}, SimDevice(), model, patch=watch)


@LOOPS
@given(workload=workloads())
@settings(max_examples=40, deadline=None)
def test_the_view_joins_each_hit_to_the_row_it_is_filled_from(
    loop: str, relay: str, workload: Workload
) -> None:
    """Against the token edges, which the masks have no part in; and no other row is joined."""
    device = SimDevice()
    play(workload, loop, relay, {}, device, HashModel(VOCAB, eos_ids=workload.eos_ids), COST)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    forwards = {item.step: item for item in trace.on("forward") if item.name == "forward"}
    sources = {item.id: item.step for item in trace.slices if item.name in ("sample", "copy")}
    assume(forwards)  # an abort may come before the first step
    edges = {edge.dst for edge in trace.edges if edge.kind == "token" and edge.src in sources}
    picture = Picture(draw("placeholder_fill", trace))
    joined = picture.shapes("line", "line", step="*", row="*", source="*")
    for shape in joined:
        step, row, source = (int(shape[f"data-{name}"]) for name in ("step", "row", "source"))
        assert forwards[step].rids[row] == forwards[step - 1].rids[source]
        assert forwards[step].id in edges
    shown = [step for step in sorted(forwards)][:MOST_STEPS]
    assert {int(shape["data-step"]) for shape in joined} == {
        step for step in shown if forwards[step].id in edges
    }
    boxes = picture.count("step", "rid", tag="rect")
    assert boxes == {(str(step), rid): 1 for step in shown for rid in forwards[step].rids}
