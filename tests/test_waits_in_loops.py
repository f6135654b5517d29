"""Where each loop waits for history: exactly there, marked once, and with nothing but that op."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.checks.overlap.waits import num_waits, waits
from minisched.core import NoBatch, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    LoopOptions,
    Workload,
    demanding,
    hash_model,
    play,
)
from tests.test_history_laws import costs

LENGTH = 30
WISHES: dict[str, dict[str, Any]] = {
    "grammar": {"regex": "[a-z]{60}"},
    "penalty": {"frequency_penalty": 0.5},
}
EVERY_WISH = pytest.mark.parametrize("reason", WISHES)
HOST_FIRST = CostModel(
    {"schedule": 5, "prepare": 2, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=90, sample=7, copy=2,
)  # fmt: skip


def run_one(
    loop: str, relay: str, options: dict[str, Any], reason: str, **config: Any
) -> tuple[Request, Trace]:
    """One request that decodes for a while."""
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, **WISHES[reason])
    request = Request("r", [1, 2, 3], params)
    run = run_loop(
        loop, SimDevice(), HashModel(), [request], SchedulerConfig(**config), HOST_FIRST, relay,
        **options,
    )  # fmt: skip
    return request, run.trace


# -- how often, in steady decode -------------------------------------------------------------------


def steps_that_wait(loop: str, relay: str, options: dict[str, Any]) -> dict[str, int]:
    """How many of a request's steps wait, by op: all but the prompt's, where one runs ahead.

    A step past its end, which nobody foresaw, waits as well. MLX chains nothing: what waits is the
    whole step, but the second, which is never chained. Where the plugin's host fills, its bitmask
    is in front of the forward pass. On ``pd`` the first token comes with the prompt's KV.
    """
    if loop in ("mlx_async", "pd"):
        return {"forward" if loop == "mlx_async" else "sample": LENGTH - 2 + (loop == "pd")}
    runs_ahead = relay != "host" and options.get("depth") != 1
    if loop == "mindie_placeholder":
        runs_ahead = options.get("max_async_schedule_times") == 2
    op = "forward" if relay == "fill_host" else "sample"
    return {op: LENGTH - 1 + LOOPS[loop].overrun} if runs_ahead else {}


def taken(loop: str, relay: str) -> list[str]:
    """Which of both the loop takes."""
    refuses = LOOPS[loop].refusals(relay)
    features = {"grammar": "grammar", "penalty": "penalties"}
    return [reason for reason in WISHES if features[reason] not in refuses]


TAKEN: list[tuple[str, str, dict[str, Any], str]] = [
    (*item, reason)
    for item in [*LOOP_OPTIONS, ("vllm_async", "pool", {"depth": 1}), ("pd", "pool", {})]
    for reason in taken(*item[:2])
]


@pytest.mark.parametrize(("loop", "relay", "options", "reason"), TAKEN, ids=str)
def test_every_step_waits_that_has_to(
    loop: str, relay: str, options: dict[str, Any], reason: str
) -> None:
    request, trace = run_one(loop, relay, options, reason)
    assert len(request.output_ids) == LENGTH
    marks = [mark for mark in waits(trace) if mark.attrs["reason"] != "prefill"]
    assert Counter(str(mark.attrs["op"]) for mark in marks) == steps_that_wait(loop, relay, options)
    assert {mark.attrs["reason"] for mark in marks} <= {reason}
    steps = [mark.attrs["step"] for mark in marks]
    assert sorted(set(steps)) == steps, "once each, in order"


@pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS, ids=str)
def test_late_penalties_wait_for_nothing_with_two_steps_in_flight(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    if "penalty" in taken(loop, relay):
        _, trace = run_one(loop, relay, options, "penalty", late_penalties=True)
        deep = options.get("depth", 2) > 2
        assert bool(num_waits(trace)) == (deep and relay != "host")


@pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS, ids=str)
def test_who_wants_nothing_waits_for_nothing(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    request = Request("r", [1, 2, 3], SamplingParams(logit_bias={5: 1.0}, max_new_tokens=9))
    run = run_loop(loop, SimDevice(), HashModel(), [request], None, HOST_FIRST, relay, **options)
    assert not num_waits(run.trace)
    has_masks = any(item.name == "mask" for item in run.trace.slices)
    assert has_masks == bool(options.get("delay_sample")), "a bias reads nothing"


# -- in any workload: a step waits if the host lacks a token for it, and else not ------------------


def lacks(batch: ScheduleBatch, late: bool) -> str:
    """What a step that was just committed has to wait for, from nothing but its rows."""
    reasons = set()
    for row in batch.rows:
        missing = row.end - len(row.req.prompt) - len(row.req.output_ids)
        if row.deliver and missing > 0:
            if row.req.params.has_grammar:
                reasons.add("grammar")
            elif row.req.params.has_penalties and missing > late:
                reasons.add("penalty")
    return min(reasons, default="")


class Watch:
    """What each step lacked when it was committed, or chained."""

    def __init__(self) -> None:
        self.lacked: dict[int, str] = {}
        self.chained: dict[int, str] = {}

    def patch(self, engine: Engine) -> None:
        """Look at every batch that the scheduler commits."""
        late, next_batch = engine.scheduler.config.late_penalties, engine.scheduler.next_batch
        chain = engine.scheduler.chain

        def scheduled() -> ScheduleBatch | NoBatch:
            batch = next_batch()
            if batch and (reason := lacks(batch, late)):
                self.lacked[batch.step] = reason
            return batch

        def once_more(batch: ScheduleBatch) -> ScheduleBatch | None:
            chained = chain(batch)
            if chained and (reason := lacks(chained, late)):
                self.chained[chained.step] = reason
            return chained

        engine.scheduler.next_batch = scheduled  # type: ignore[method-assign]
        engine.scheduler.chain = once_more  # type: ignore[method-assign]


@EVERY_LOOP
@given(workload=demanding(), cost=costs)
@settings(max_examples=15, deadline=None)
def test_a_step_waits_exactly_if_the_host_lacks_a_token(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    watch, device = Watch(), SimDevice()
    model = hash_model("sim", workload.eos_ids)
    play(workload, loop, relay, options, device, model, cost, watch.patch)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    op = "forward" if relay == "fill_host" else "sample"
    marks = [mark for mark in waits(trace) if mark.attrs["op"] == op]
    marked = {mark.attrs["step"]: mark.attrs["reason"] for mark in marks}
    assert len(marked) == len(marks)
    assert not watch.chained, "nothing is chained upon a token that has to be seen"
    marked = {step: reason for step, reason in marked.items() if reason != "prefill"}
    every = ((mark.attrs["step"], mark.attrs["reason"]) for mark in waits(trace))
    in_order = {step for step, reason in every if reason == "prefill"}  # it waited for all by then
    assert marked == {step: why for step, why in watch.lacked.items() if step not in in_order}


# -- what waits, and for how long ------------------------------------------------------------------


def by_step(trace: Trace, lane: str, name: str) -> dict[int, Slice]:
    """The slices of that name on a lane."""
    return {item.step: item for item in trace.on(lane) if item.name == name}


DELAYS: list[LoopOptions] = [
    ("overlap", "ring", {}),
    ("overlap_thread", "ring", {}),
    ("vllm_async", "prev_sampled", {}),
    ("vllm_async", "pool", {"depth": 4}),
    ("mindie_single", "ring", {}),
    ("mindie_placeholder", "fill_device", {"max_async_schedule_times": 2}),
    ("mindie_plugin", "fill_device", {}),
    ("mindie_dual", "fill_device", {}),
]


@pytest.mark.parametrize(("loop", "relay", "options"), DELAYS, ids=str)
def test_sampling_waits_and_the_forward_pass_does_not(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    """Known tokens, then the mask, then the sampling; the pass ran right behind the one before."""
    _, trace = run_one(loop, relay, options, "penalty")
    forwards, samples = (by_step(trace, "forward", name) for name in ("forward", "sample"))
    known = by_step(trace, "host", "process")
    if LOOPS[loop].relays[0] == "fill_host":  # the plugin has a book of its own
        known = by_step(trace, "copy", "copy")
    masks = by_step(trace, "host", "mask")
    for step in range(3, LENGTH):
        assert forwards[step].start == samples[step - 1].end
        assert known[step - 1].end <= masks[step].start
        assert masks[step].end <= samples[step].start


@EVERY_WISH
def test_the_plugin_builds_the_bitmask_before_the_forward_pass(reason: str) -> None:
    """On its thread, from tokens that were filled in before the scheduler hears of them."""
    _, trace = run_one("mindie_plugin", "fill_host", {}, reason)
    masks = by_step(trace, "forward thread", "mask")
    launches, copies = by_step(trace, "forward thread", "launch"), by_step(trace, "copy", "copy")
    processed = by_step(trace, "host", "process")
    assert masks.keys() == launches.keys() and not by_step(trace, "host", "mask")
    for step in range(3, LENGTH):
        assert copies[step - 1].end <= masks[step].start
        assert masks[step].end == launches[step].start
        assert masks[step].end < processed[step - 1].end


@EVERY_WISH
def test_mlx_launches_nothing_before_the_step_in_front_is_processed(reason: str) -> None:
    _, trace = run_one("mlx_async", "chain", {}, reason)
    forwards, processed = by_step(trace, "forward", "forward"), by_step(trace, "host", "process")
    masks = by_step(trace, "host", "mask")
    assert masks.keys() == forwards.keys()
    for step in range(2, LENGTH):
        assert processed[step - 1].end <= masks[step].start
        assert masks[step].end <= forwards[step].start, "it enters the graph, as in the original"


@EVERY_LOOP
@EVERY_WISH
def test_a_mask_is_built_for_every_step_that_needs_one_and_once(
    loop: str, relay: str, options: dict[str, Any], reason: str
) -> None:
    if reason in taken(loop, relay):
        _, trace = run_one(loop, relay, options, reason)
        masks = [item.step for item in trace.slices if item.name == "mask"]
        lane = "stage 0" if loop.startswith("vllm_pp") else "forward"
        steps = {item.step for item in trace.on(lane) if item.name == "forward"}
        assert sorted(masks) == sorted(steps)


def test_on_pd_it_is_the_decode_side_that_waits() -> None:
    _, trace = run_one("pd", "pool", {}, "grammar")
    assert {mark.attrs["side"] for mark in waits(trace)} == {"decode"}
    assert {item.step for item in trace.on("prefill host") if item.name == "mask"} == {1}


# -- with speculation ------------------------------------------------------------------------------


def run_speculative(loop: str, relay: str, algorithm: str, reason: str) -> Trace:
    """Some steps whose drafts have to be masked."""
    wishes = {"regex": r"[\x00-\x02]{60}"} if reason == "grammar" else WISHES[reason]
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, **wishes)
    config = SchedulerConfig(speculative_algorithm=algorithm, speculative_num_draft_tokens=3)
    request = Request("r", [1, 2, 0, 1, 2, 0], params)
    run = run_loop(
        loop, SimDevice(), HashModel(3, eos_ids=frozenset()), [request], config, HOST_FIRST, relay
    )
    assert len(request.output_ids) == LENGTH
    return run.trace


@EVERY_WISH
def test_sglang_does_not_overlap_a_draft_that_it_can_not_mask(reason: str) -> None:
    """The whole step waits: the result before is processed, then it is launched."""
    trace = run_speculative("overlap", "pool", "NGRAM_GPU", reason)
    forwards, processed = by_step(trace, "forward", "forward"), by_step(trace, "host", "process")
    marks = waits(trace)
    assert {(mark.attrs["op"], mark.attrs["reason"]) for mark in marks} == {("forward", reason)}
    assert [mark.attrs["step"] for mark in marks] == sorted(forwards)[1:]
    for step in sorted(forwards)[1:]:
        assert processed[step - 1].end <= forwards[step].start


@EVERY_WISH
def test_vllm_defers_only_the_sampling_of_drafts(reason: str) -> None:
    trace = run_speculative("vllm_async", "pool", "NGRAM_GPU", reason)
    forwards, samples = (by_step(trace, "forward", name) for name in ("forward", "sample"))
    processed = by_step(trace, "host", "process")
    marks = waits(trace)
    assert {(mark.attrs["op"], mark.attrs["reason"]) for mark in marks} == {("sample", reason)}
    for mark in marks:
        step = int(mark.attrs["step"])
        assert forwards[step].start < processed[step - 1].end <= samples[step].start


@pytest.mark.parametrize("loop", ["serial", "vllm_step", "vllm_batch_queue"])
@EVERY_WISH
def test_where_nothing_runs_ahead_drafts_wait_for_nothing(loop: str, reason: str) -> None:
    assert not num_waits(run_speculative(loop, "", "NGRAM", reason))


# -- of other reasons ------------------------------------------------------------------------------


def test_two_reasons_are_two_waits_of_different_steps() -> None:
    """A prefill that does not overlap, and steps that wait with their sampling."""
    params = SamplingParams(max_new_tokens=6, ignore_eos=True, regex="[a-z]{60}")
    requests = [Request(f"r{i}", [i + 1] * 8, params) for i in range(2)]
    config = replace(SchedulerConfig(), chunked_prefill_size=4)
    run = run_loop(
        "overlap", SimDevice(), HashModel(), requests, config, HOST_FIRST,
        disable_consecutive_prefill_overlap=True,
    )  # fmt: skip
    found = [(mark.attrs["op"], mark.attrs["reason"]) for mark in waits(run.trace)]
    assert found == [("forward", "prefill")] * 3 + [("sample", "grammar")] * 6
