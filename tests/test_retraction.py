"""Who gives way when memory runs out, and what becomes of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Request, Result, SamplingParams
from minisched.policy import NewTokenRatio, choose_victim
from minisched.policy.new_token_ratio import DECAY_STEPS
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.config import RUN_FIRST
from minisched.trace import NullRecorder, Recorder
from tests.support import check_books


def with_outputs(rid: int, prompt: int, outputs: int) -> Request:
    req = Request(str(rid), [1] * prompt, order=rid)
    for _ in range(outputs):
        req.append_host(5)
    return req


def test_the_victim_has_the_fewest_outputs_then_the_longest_prompt_then_came_last() -> None:
    few, many = with_outputs(0, 3, 2), with_outputs(1, 9, 6)
    long, short = with_outputs(2, 9, 2), with_outputs(3, 3, 2)
    assert choose_victim([few, many]) is few
    assert choose_victim([few, long, many]) is long
    assert choose_victim([few, short]) is short


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_victim_is_the_last_of_the_published_order(lengths: list[tuple[int, int]]) -> None:
    """SGLang sorts by (outputs, -prompt), largest first, and pops from the end."""
    reqs = [with_outputs(rid, prompt, out) for rid, (prompt, out) in enumerate(lengths)]
    by_key = sorted(reqs, key=lambda req: (len(req.output_ids), -len(req.prompt)), reverse=True)
    victim = choose_victim(reqs)
    published = by_key[-1]
    assert len(victim.output_ids) == len(published.output_ids)
    assert len(victim.prompt) == len(published.prompt)


def starving(requests: int, kv_tokens: int, run_ahead: bool = False) -> Scheduler:
    """Requests of one prompt token each that all run, in a pool too small for what they want."""
    config = SchedulerConfig(
        kv_tokens=kv_tokens,
        schedule_conservativeness=0.0,
        disable_radix_cache=True,
        run_ahead=run_ahead,
    )
    scheduler = Scheduler(config, Recorder())
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    for i in range(requests):
        scheduler.receive([Request(f"r{i}", [i], params)])
        batch = scheduler.next_batch()
        assert batch
        scheduler.process(batch, Result([5] * len(batch.rows)))
    return scheduler


@given(requests=st.integers(2, 5), extra=st.integers(0, 6))
@settings(deadline=None)
def test_one_at_least_is_kept_and_everybody_ends(requests: int, extra: int) -> None:
    scheduler = starving(requests, 9 + 2 * requests + extra)
    kept = []
    for _ in range(400):
        batch = scheduler.next_batch()
        if batch:
            scheduler.process(batch, Result([5] * len(batch.rows)))
        check_books(scheduler)
        kept.append(len(scheduler.running_batch))
        if not scheduler.live:
            break
    assert not scheduler.live
    scheduler.self_check()


def test_a_retracted_request_keeps_its_tokens_and_goes_first() -> None:
    """It was there before those who wait, so it is admitted before them."""
    scheduler = starving(2, 16)
    scheduler.receive([Request("late", [9] * 4, SamplingParams(max_new_tokens=8))])
    victim = scheduler.live["r1"]
    outputs = list(victim.output_ids)
    scheduler.retraction.retract(victim, "memory")
    assert victim.output_ids == outputs and victim.retractions == 1
    assert [req.rid for req in scheduler.waiting_queue] == ["r1", "late"]
    batch = scheduler.next_batch()
    assert batch and batch.rows[0].req is victim
    assert list(batch.rows[0].ids) == [*victim.prompt, *outputs], "all of it is computed again"


def test_a_token_in_flight_when_its_request_is_retracted_is_dropped() -> None:
    scheduler = starving(2, 18, run_ahead=True)
    batch = scheduler.next_batch()
    assert batch and len(batch.rows) == 2
    victim = batch.rows[1].req
    known = list(victim.output_ids)
    scheduler.retraction.retract(victim, "memory")
    free = scheduler.allocator.available_pages
    outputs = scheduler.process(batch, Result([6, 7]))
    assert [output.rid for output in outputs] == ["r0"], "nobody hears the late token"
    assert victim.output_ids == known
    assert scheduler.allocator.available_pages > free, "its pages came back with the step"


def test_the_last_request_that_can_never_fit_ends_with_a_reason() -> None:
    """Somebody else holds the memory for good (SGLang aborts the last one too)."""
    scheduler = starving(1, 9)
    held = scheduler.leases.open()
    scheduler.leases.extend(held, scheduler.allocator.available_pages)
    req = scheduler.live["r0"]
    assert not scheduler.next_batch()
    (output,) = scheduler.take_outputs()
    assert output.finish_reason is FinishReason.ERROR and req.finished
    assert output.error == "it needs 2 pages of KV memory, but only 1 can be had."


@given(conservativeness=st.floats(0, 3), steps=st.integers(0, 2 * DECAY_STEPS))
def test_the_new_token_ratio_sinks_in_a_line_to_its_minimum(
    conservativeness: float, steps: int
) -> None:
    ratio = NewTokenRatio(conservativeness, NullRecorder())
    first = min(0.7 * conservativeness, 1.0)
    assert ratio.current == first
    for _ in range(steps):
        ratio.on_decode()
    expected = first - (first - 0.14 * first) * min(steps, DECAY_STEPS) / DECAY_STEPS
    assert abs(ratio.current - expected) < 1e-9
    ratio.reset()
    assert ratio.current == first


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 99)), min_size=1, max_size=5))
def test_a_retraction_sets_the_ratio_to_what_is_really_used(reqs: list[tuple[int, int]]) -> None:
    ratio = NewTokenRatio(0.0, NullRecorder())
    kept = []
    for rid, (out, new) in enumerate(reqs):
        req = with_outputs(rid, 1, out)
        req.params = SamplingParams(max_new_tokens=new)
        kept.append(req)
    ratio.on_retraction(kept)
    produced, wanted = sum(out for out, _ in reqs), sum(new for _, new in reqs)
    assert ratio.current == min(1.0, (produced + 20 * len(reqs)) / (wanted + 1))


@pytest.mark.parametrize("run_first", RUN_FIRST)
def test_whoever_can_never_fit_ends_once_under_every_rule(run_first: str) -> None:
    config = SchedulerConfig(kv_tokens=9, run_first=run_first, disable_radix_cache=True)
    scheduler = Scheduler(config)
    scheduler.receive([Request("r0", [1], SamplingParams(max_new_tokens=8, ignore_eos=True))])
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5]))
    held = scheduler.leases.open()
    scheduler.leases.extend(held, scheduler.allocator.available_pages)
    assert not scheduler.next_batch()
    assert [output.rid for output in scheduler.take_outputs()] == ["r0"]


def test_while_somebody_decodes_a_prompt_is_held_back_and_told_why() -> None:
    scheduler = Scheduler(SchedulerConfig(run_first="decode"), Recorder())
    scheduler.receive([Request("first", [1], SamplingParams(max_new_tokens=4, ignore_eos=True))])
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5]))
    scheduler.receive([Request("second", [2], SamplingParams(max_new_tokens=1))])
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("first",)
    refusals = [m.attrs for m in scheduler.recorder.trace("", "", "", "").marks
                if m.name == "refuse"]  # fmt: skip
    assert [item["reason"] for item in refusals] == ["those who decode run first"]


def test_a_prompt_that_is_only_partly_computed_gives_way_first() -> None:
    """It has produced nothing; its chunks, and those who decode beside them, fill the memory."""
    config = SchedulerConfig(
        kv_tokens=36, chunked_prefill_size=8, enable_mixed_chunk=True,
        schedule_conservativeness=0.0, disable_radix_cache=True,
    )  # fmt: skip
    scheduler = Scheduler(config, Recorder())
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)
    scheduler.receive([Request(f"r{i}", [i], params) for i in range(6)])
    scheduler.receive([Request("long", [9] * 12, SamplingParams(max_new_tokens=1))])
    batch = scheduler.next_batch()
    while not scheduler.num_retractions:
        assert batch
        scheduler.process(batch, Result([5] * len(batch.reqs)))
        batch = scheduler.next_batch()
    marks = scheduler.recorder.trace("", "", "", "").marks
    assert [mark.attrs["rid"] for mark in marks if mark.name == "retraction"] == ["long"]
    assert batch and batch.rids == tuple(f"r{i}" for i in range(6))


def test_while_a_step_starves_the_victim_is_not_admitted_again() -> None:
    """Else it would take the pages that the others wait for, for ever."""
    scheduler = starving(3, 12, run_ahead=True)
    in_flight = []
    while not scheduler.num_retractions:
        batch = scheduler.next_batch()
        if batch:
            in_flight.append(batch)
        if len(in_flight) == 2 and not scheduler.num_retractions:
            first = in_flight.pop(0)
            scheduler.process(first, Result([5] * len(first.reqs)))
    assert scheduler.retraction.starved and not scheduler.next_batch(), "its pages are in flight"
    reasons = [m.attrs["reason"] for m in scheduler.recorder.trace("", "", "", "").marks
               if m.name == "refuse"]  # fmt: skip
    assert reasons[-1] == "a decode step waits for memory that is on its way back"
    for batch in in_flight:
        scheduler.process(batch, Result([5] * len(batch.reqs)))
    batch = scheduler.next_batch()
    assert batch and not batch.num_extend_reqs, "those who starved run before anybody is admitted"


def test_the_ratio_is_reset_when_nobody_is_left() -> None:
    scheduler = starving(1, 99)
    ratio = scheduler.new_token_ratio
    ratio.init, ratio.current = 0.5, 0.3
    while batch := scheduler.next_batch():
        scheduler.process(batch, Result([5]))
    assert ratio.current == 0.5
