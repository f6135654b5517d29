"""Who gives way when memory runs out, and what becomes of them; and one budget for everybody."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.core import FinishReason, ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.policy import NewTokenRatio, choose_victim
from minisched.policy.new_token_ratio import DECAY_STEPS
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.config import RUN_FIRST
from minisched.trace import NullRecorder, Recorder
from tests.support import check_books

EIGHT = SamplingParams(max_new_tokens=8, ignore_eos=True)


def turn(scheduler: Scheduler) -> ScheduleBatch:
    """One step, run and processed; the model always says 5."""
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    scheduler.process(batch, Result([5] * len(batch.rows)))
    return batch


def marked(scheduler: Scheduler, name: str, attribute: str) -> list[object]:
    marks = scheduler.recorder.trace("", "", "", "").marks
    return [mark.attrs[attribute] for mark in marks if mark.name == name]


# -- retraction: the victim, and its way back ------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_the_victim_is_the_last_of_the_published_order(lengths: list[tuple[int, int]]) -> None:
    """SGLang sorts by (outputs, -prompt), largest first, and pops from the end; then the newest."""
    reqs = [Request(str(at), [1] * prompt, order=at, output_ids=[5] * outputs)
            for at, (prompt, outputs) in enumerate(lengths)]  # fmt: skip
    by_key = sorted(reqs, key=lambda req: (len(req.output_ids), -len(req.prompt)), reverse=True)
    assert choose_victim(reqs) is by_key[-1]


def starving(requests: int, kv_tokens: int, **settings: object) -> Scheduler:
    """Requests of one prompt token each that all run, in a pool too small for what they want."""
    config = SchedulerConfig(
        kv_tokens=kv_tokens, schedule_conservativeness=0.0, disable_radix_cache=True
    )
    scheduler = Scheduler(replace(config, **settings), Recorder())  # type: ignore[arg-type]
    for i in range(requests):
        scheduler.receive([Request(f"r{i}", [i], EIGHT)])
        turn(scheduler)
    return scheduler


def test_a_token_in_flight_when_its_request_is_retracted_is_dropped() -> None:
    scheduler = starving(2, 18, run_ahead=True)
    batch = scheduler.next_batch()
    assert batch and len(batch.rows) == 2
    victim = batch.rows[1].req
    known = list(victim.output_ids)
    scheduler.retraction.retract(victim, "memory")
    free = scheduler.allocator.available_pages
    outputs = scheduler.process(batch, Result([6, 7]))
    assert [output.rid for output in outputs] == ["r0"] and victim.output_ids == known
    assert scheduler.allocator.available_pages > free, "its pages came back with the step"


@pytest.mark.parametrize("run_first", RUN_FIRST)
def test_the_last_request_that_can_never_fit_ends_with_a_reason(run_first: str) -> None:
    """Somebody else holds the memory for good (SGLang aborts the last one too)."""
    scheduler = starving(1, 9, run_first=run_first)
    held = scheduler.leases.open()
    scheduler.leases.extend(held, scheduler.allocator.available_pages)
    req = scheduler.live["r0"]
    assert not scheduler.next_batch()
    (output,) = scheduler.take_outputs()
    assert output.finish_reason is FinishReason.ERROR and req.finished
    assert output.error == "it needs 2 pages of KV memory, but only 1 can be had."


def test_a_prompt_that_is_only_partly_computed_gives_way_first() -> None:
    """It has produced nothing; its chunks, and those who decode beside them, fill the memory."""
    config = SchedulerConfig(
        kv_tokens=36, chunked_prefill_size=8, enable_mixed_chunk=True,
        schedule_conservativeness=0.0, disable_radix_cache=True,
    )  # fmt: skip
    scheduler = Scheduler(config, Recorder())
    scheduler.receive([Request(f"r{i}", [i], EIGHT) for i in range(6)])
    scheduler.receive([Request("long", [9] * 12, SamplingParams(max_new_tokens=1))])
    batch = turn(scheduler)
    while not scheduler.num_retractions:
        batch = turn(scheduler)
    assert marked(scheduler, "retraction", "rid") == ["long"]
    assert batch.rids == tuple(f"r{i}" for i in range(6))


def test_while_a_step_starves_the_victim_is_not_admitted_again() -> None:
    """Else it would take the pages that the others wait for, for ever."""
    scheduler = starving(3, 12, run_ahead=True)
    in_flight: list[ScheduleBatch] = []
    while not scheduler.num_retractions:
        if batch := scheduler.next_batch():
            in_flight.append(batch)
        if len(in_flight) == 2 and not scheduler.num_retractions:
            first = in_flight.pop(0)
            scheduler.process(first, Result([5] * len(first.reqs)))
    assert scheduler.retraction.starved and not scheduler.next_batch(), "its pages are in flight"
    reasons = marked(scheduler, "refuse", "reason")
    assert reasons[-1] == "a decode step waits for memory that is on its way back"
    for flying in in_flight:
        scheduler.process(flying, Result([5] * len(flying.reqs)))
    batch = scheduler.next_batch()
    assert batch and not batch.num_extend_reqs, "those who starved run before anybody is admitted"


def test_where_decodes_run_first_a_prompt_is_held_back_and_told_why() -> None:
    scheduler = Scheduler(SchedulerConfig(run_first="decode"), Recorder())
    scheduler.receive([Request("first", [1], EIGHT)])
    turn(scheduler)
    scheduler.receive([Request("second", [2], EIGHT)])
    assert turn(scheduler).rids == ("first",)
    assert marked(scheduler, "refuse", "reason") == ["those who decode run first"]


# -- the share of their remaining tokens that running requests are expected to use -----------------


@given(conservativeness=st.floats(0, 3), steps=st.integers(0, 2 * DECAY_STEPS))
def test_the_new_token_ratio_sinks_in_a_line_to_its_minimum(
    conservativeness: float, steps: int
) -> None:
    ratio = NewTokenRatio(conservativeness, NullRecorder())
    first = min(0.7 * conservativeness, 1.0)
    for _ in range(steps):
        ratio.on_decode()
    expected = first - (first - 0.14 * first) * min(steps, DECAY_STEPS) / DECAY_STEPS
    assert ratio.current == pytest.approx(expected, abs=1e-9)
    ratio.reset()
    assert ratio.current == first


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 99)), min_size=1, max_size=5))
def test_a_retraction_sets_the_ratio_to_what_is_really_used(reqs: list[tuple[int, int]]) -> None:
    ratio = NewTokenRatio(0.0, NullRecorder())
    kept = [Request(f"r{at}", [1], SamplingParams(max_new_tokens=new), output_ids=[5] * out)
            for at, (out, new) in enumerate(reqs)]  # fmt: skip
    ratio.on_retraction(kept)
    produced, wanted = sum(out for out, _ in reqs), sum(new for _, new in reqs)
    assert ratio.current == min(1.0, (produced + 20 * len(reqs)) / (wanted + 1))


# -- unified: one budget for prompts and decodes, as in vLLM ---------------------------------------

workloads = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=8
)


def unified(budget: int, kv_tokens: int = 4000, page: int = 1, **settings: object) -> Scheduler:
    config = SchedulerConfig(
        kv_tokens=kv_tokens, page_size=page, run_first="unified", context_len=64,
        chunked_prefill_size=budget, disable_radix_cache=True,
    )  # fmt: skip
    return Scheduler(replace(config, **settings), Recorder())  # type: ignore[arg-type]


def requests_of(waiting: list[tuple[int, int, int]]) -> list[Request]:
    return [
        Request(f"r{i}", [i] * length, SamplingParams(max_new_tokens=new, ignore_eos=True))
        for i, (length, new, _) in enumerate(waiting)
    ]


@given(waiting=workloads, budget=st.integers(1, 30))
def test_the_budget_is_spent_on_who_runs_first_and_never_exceeded(
    waiting: list[tuple[int, int, int]], budget: int
) -> None:
    """With memory for all: everybody who decodes is in, and no budget is left while one waits."""
    scheduler, reqs = unified(budget), requests_of(waiting)
    for now in range(2000):
        scheduler.receive([reqs[at] for at, (*_, come) in enumerate(waiting) if come == now])
        ready = len(scheduler.decode.schedule_next_batch())
        if not scheduler.live:
            continue
        batch = turn(scheduler)
        decodes = len(batch.rows) - batch.num_extend_reqs
        assert batch.num_tokens <= budget and decodes == min(ready, budget)
        is_waiting = scheduler.waiting_queue or scheduler.prefill.chunked_req
        if is_waiting and scheduler.table.available_size:
            assert batch.num_tokens == budget, "budget is left, and somebody waits"
        modes = {(True, True): ForwardMode.MIXED, (True, False): ForwardMode.EXTEND}
        kind = (batch.num_extend_reqs > 0, decodes > 0)
        assert batch.mode is modes.get(kind, ForwardMode.DECODE)
        if all(req.finished for req in reqs):
            return
    raise AssertionError("somebody never ended")


@example(waiting=[(1, 3, 0), (15, 3, 0)], extra=0, page=1, run_ahead=False)  # one gives way
@given(waiting=workloads, extra=st.integers(0, 20), page=st.sampled_from([1, 2, 4]),
       run_ahead=st.booleans())  # fmt: skip
def test_the_newest_is_preempted_and_nobody_is_admitted_in_that_step(
    waiting: list[tuple[int, int, int]], extra: int, page: int, run_ahead: bool
) -> None:
    """Nor in one that leaves somebody out: memory in flight comes back by itself."""
    longest = max(length + new for length, new, _ in waiting)
    pages = -(-longest // page) + extra // page
    scheduler = unified(16, pages * page, page, run_ahead=run_ahead, overrun=int(run_ahead))
    flying = deque[ScheduleBatch]()
    scheduler.receive(requests_of(waiting))
    while scheduler.live:
        before = list(scheduler.running_batch)
        ready = scheduler.decode.schedule_next_batch()
        batch = scheduler.next_batch()
        check_books(scheduler)
        running = scheduler.running_batch
        gone = [req for req in before if req not in running]
        for victim in gone:
            assert all(victim.order > req.order for req in before if req in running)
        rows = batch.reqs if batch else []
        left = [req for req in ready if req in running and req not in rows]
        if gone or left:
            assert not batch or all(row.start for row in batch.rows[: batch.num_extend_reqs])
            if scheduler.waiting_queue:
                reason = str(marked(scheduler, "refuse", "reason")[-1])
                assert reason.startswith("somebody was preempted or starves")
        if batch:
            flying.append(batch)
        if len(flying) == 1 + run_ahead or not batch:
            oldest = flying.popleft()
            scheduler.process(oldest, Result([5] * len(oldest.reqs)))


@given(waiting=workloads, budget=st.integers(1, 12), drafts=st.integers(1, 4), known=st.booleans())
def test_drafts_take_from_the_budget_too_and_are_cut_to_what_is_left(
    waiting: list[tuple[int, int, int]], budget: int, drafts: int, known: bool
) -> None:
    """vLLM: each who runs, oldest first, gets all it wants or what is left, and one at the least.

    ``known``: the host proposes drafts. Else two steps are in flight, and the device has them.
    """
    scheduler, flying = unified(
        budget, speculative_algorithm="NGRAM" if known else "NGRAM_GPU",
        speculative_num_draft_tokens=drafts, run_ahead=not known,
    ), deque[ScheduleBatch]()  # fmt: skip
    scheduler.propose = (lambda tokens, count: [7] * count) if known else None
    scheduler.receive(requests_of(waiting))
    while scheduler.live:
        wanted = [(req, 1 + req.next_draft_len) for req in scheduler.decode.schedule_next_batch()]
        batch = scheduler.next_batch()
        if batch:
            assert batch.num_tokens <= budget
            decodes = batch.rows[batch.num_extend_reqs :]
            left = budget
            for row, (req, length) in zip(decodes, wanted, strict=False):
                assert row.req is req and row.extend_len == min(length, left)
                left -= row.extend_len
            assert left == 0 or len(decodes) == len(wanted)
            flying.append(batch)
        if known or len(flying) == 2 or not batch:
            oldest = flying.popleft()
            tokens, rows = [5] * oldest.num_samples, len(oldest.reqs)
            made = [] if known else [7] * drafts * rows
            scheduler.process(oldest, Result(tokens, "", [1] * rows, made))
