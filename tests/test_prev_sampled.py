"""Previous-sampled scatter: every row gets the token of its own request, by the cheapest path."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Lease, Request, SamplingParams, ScheduleBatch
from minisched.devices.base import Device
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.relay import PrevSampled
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import EVERY_BACKEND, open_device
from tests.vllm_runs import cost_of

MOST, LONGEST = 6, 8  # requests, and tokens of each


def a_batch(
    step: int, rows: dict[str, tuple[int | None, ...]], chunks: tuple[str, ...] = ()
) -> ScheduleBatch:
    """A batch of requests with their input tokens; those of ``chunks`` deliver nothing."""
    reqs = [Request(rid, [0]) for rid in rows]
    return ScheduleBatch(
        step, ForwardMode.MIXED, 0, reqs, [Lease(at) for at, _ in enumerate(reqs, 1)],
        [0] * len(reqs), list(rows.values()), [rid not in chunks for rid in rows],
    )  # fmt: skip


def run_step(device: Device, relay: PrevSampled, batch: ScheduleBatch, sampled: list[int]) -> Any:
    """What a step reads as its input, before it samples ``sampled``."""
    ids, dests = relay.bind(batch, None)
    assert ids == [-1 if token is None else token for row in batch.ids for token in row]
    shipped, stored = device.xp.asarray(ids), device.xp.asarray(dests)
    tokens = device.xp.asarray(sampled)

    def forward() -> Any:
        return relay.resolve(shipped, None)

    def sample(read: Any) -> Any:
        relay.store(stored, tokens)
        return read

    stream = device.stream("forward")
    read = stream.launch(forward, name="forward", cost=3)
    done = stream.launch(sample, read, name="sample", cost=1)
    device.flush(read, done)
    return read


def paths(trace: Trace) -> list[str]:
    """The path that each step took."""
    return [str(mark.attrs["path"]) for mark in trace.marks if mark.name == "prev sampled"]


@st.composite
def two_batches(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, tuple[int | None, ...]]]]:
    """The tokens sampled for each request of a step, and the rows of the step after it.

    Most rows stay where they were; some end, some make room for a newcomer, and sometimes all
    move. A row that stays may be one that the host has learnt the token of.
    """
    before = [f"r{i}" for i in range(draw(st.integers(1, MOST)))]
    sampled = {rid: draw(st.integers(0, 99)) for rid in before}
    fates = [draw(st.sampled_from(["stays", "stays", "ends", "makes room"])) for _ in before]
    after = [
        f"new {rid}" if fate == "makes room" else rid
        for rid, fate in zip(before, fates, strict=True) if fate != "ends"
    ] or ["new"]  # fmt: skip
    if draw(st.booleans()):
        after = draw(st.permutations(after))
    known = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple)
    unknown: st.SearchStrategy[tuple[int | None, ...]] = st.just((None,))
    rows = [(rid, draw(st.one_of(unknown, unknown, known) if rid in sampled else known))
            for rid in after]  # fmt: skip
    return sampled, rows


@EVERY_BACKEND
@given(batches=two_batches())
@settings(max_examples=60, deadline=None)
def test_every_row_reads_its_own_token(backend: str, batches: Any) -> None:
    sampled, rows = batches
    device = open_device(backend)
    try:
        relay = PrevSampled(device, MOST, LONGEST)
        first = a_batch(1, {rid: (7,) for rid in sampled})
        run_step(device, relay, first, list(sampled.values()))
        read = run_step(device, relay, a_batch(2, dict(rows)), [0] * len(rows)).synchronize()
        wanted = [sampled[rid] if token is None else token for rid, row in rows for token in row]
        assert read.tolist() == wanted
    finally:
        device.close()


@given(batches=two_batches())
def test_the_path_is_the_cheapest_that_will_do(batches: Any) -> None:
    sampled, rows = batches
    device = SimDevice()
    relay = PrevSampled(device, MOST, LONGEST)
    run_step(device, relay, a_batch(1, {rid: (7,) for rid in sampled}), list(sampled.values()))
    run_step(device, relay, a_batch(2, dict(rows)), [0] * len(rows))
    first, second = paths(device.recorder.trace("", "", "", "virtual"))
    assert first == "full"
    ids = [token for _, row in rows for token in row]
    wanted = [rid for rid, row in rows if None in row]
    if not wanted:
        assert second == "full", "nothing of the step before is needed"
    elif ids[: len(wanted)] == [None] * len(wanted) and wanted == list(sampled)[: len(wanted)]:
        assert second == "slice", "row i goes on where row i was, and what is known comes after"
    else:
        assert second == "scatter"


def test_what_the_step_before_did_not_sample_is_refused() -> None:
    relay = PrevSampled(SimDevice(), MOST, LONGEST)
    relay.bind(a_batch(1, {"a": (1,)}), None)
    relay.bind(a_batch(2, {"b": (1,)}), None)
    with pytest.raises(ValueError, match="request a needs a token that the step before did not"):
        relay.bind(a_batch(3, {"a": (None,)}), None)


def test_what_a_chunk_sampled_is_not_in_the_map() -> None:
    relay = PrevSampled(SimDevice(), MOST, LONGEST)
    relay.bind(a_batch(1, {"a": (1,), "chunk": (2, 3)}, chunks=("chunk",)), None)
    assert relay.prev_req_id_to_index == {"a": 0}


def test_the_buffer_holds_one_step_and_no_more() -> None:
    """Why at most two steps may be in flight: the tokens of step 1 are gone after step 2."""
    device = SimDevice()
    relay = PrevSampled(device, MOST, LONGEST)
    for step, token in ((1, 41), (2, 42)):
        run_step(device, relay, a_batch(step, {"a": (7,)}), [token])
    read = run_step(device, relay, a_batch(3, {"a": (None,)}), [0])
    assert read.synchronize() == [42]


def test_the_paths_of_a_run() -> None:
    """A change of the batch costs one scatter, and every step after it one slice."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [Request("a", [1, 2, 3], params), Request("b", [4, 5], params, arrival_time=350)]
    cost = cost_of(10, forward_base=90, sample=10, copy=5)
    run = run_loop("vllm_async", SimDevice(), HashModel(), requests, SchedulerConfig(), cost)
    taken = [path for path, _ in groupby(paths(run.trace))]
    assert taken == [
        "full", "slice",  # a's prompt, a alone
        "full", "scatter", "slice",  # b's prompt; b, which was row 0 of that, is row 1; both
        "scatter", "slice",  # a has ended: b is row 0; b alone
    ]  # fmt: skip


def test_a_mixed_step_scatters_or_copies_and_ships_the_prompt() -> None:
    """vLLM's own policy: who runs comes after the prompts here, so that rows move."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [Request("a", [1, 2, 3], params), Request("b", [4] * 9, params, arrival_time=350)]
    config = SchedulerConfig(run_first="unified", chunked_prefill_size=4)
    cost = CostModel({"schedule": 5}, forward_base=95, copy=5)
    run = run_loop("vllm_async", SimDevice(), HashModel(), requests, config, cost)
    mixed = {s.step for s in run.trace.on("forward") if s.mode == ForwardMode.MIXED.value}
    found = {int(m.attrs["step"]): m.attrs for m in run.trace.marks if m.name == "prev sampled"}
    assert mixed and all(found[step]["path"] == "scatter" for step in mixed)
    assert all(found[step]["new"] == 3 for step in mixed), "a chunk of 3 beside one that decodes"
