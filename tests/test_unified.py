"""One budget for prompts and decodes, as in vLLM: who runs comes first, the newest gives way."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Recorder
from tests.support import check_books

workloads = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=8
)


def unified(budget: int, kv_tokens: int = 4000, page: int = 1) -> Scheduler:
    config = SchedulerConfig(
        kv_tokens=kv_tokens, page_size=page, run_first="unified", context_len=64,
        chunked_prefill_size=budget, disable_radix_cache=True,
    )  # fmt: skip
    return Scheduler(config, Recorder())


@given(waiting=workloads, budget=st.integers(1, 30))
@settings(deadline=None)
def test_the_budget_is_spent_on_who_runs_first_and_never_exceeded(
    waiting: list[tuple[int, int, int]], budget: int
) -> None:
    """With memory for all: everybody who decodes is in, and no budget is left while one waits."""
    scheduler = unified(budget)
    todo = [
        (turn, Request(f"r{i}", [i] * length, SamplingParams(max_new_tokens=new, ignore_eos=True)))
        for i, (length, new, turn) in enumerate(waiting)
    ]
    for turn in range(2000):
        scheduler.receive([req for at, req in todo if at == turn])
        ready = len(scheduler.decode.schedule_next_batch())
        batch = scheduler.next_batch()
        if batch:
            assert batch.num_tokens <= budget
            decodes = len(batch.rows) - batch.num_extend_reqs
            assert decodes == min(ready, budget), "who runs comes first"
            is_waiting = scheduler.waiting_queue or scheduler.prefill.chunked_req
            if is_waiting and scheduler.table.available_size:
                assert batch.num_tokens == budget, "budget is left, and somebody waits"
            modes = {(True, True): ForwardMode.MIXED, (True, False): ForwardMode.EXTEND}
            kind = (batch.num_extend_reqs > 0, decodes > 0)
            assert batch.mode is modes.get(kind, ForwardMode.DECODE)
            scheduler.process(batch, Result([5] * len(batch.rows)))
        if turn > 6 and not scheduler.live:
            return
    raise AssertionError("somebody never ended")


@example(waiting=[(1, 3, 0), (15, 3, 0)], extra=0, page=1)  # the second gives way
@given(waiting=workloads, extra=st.integers(0, 20), page=st.sampled_from([1, 2, 4]))
@settings(deadline=None)
def test_the_newest_is_preempted_and_nobody_is_admitted_in_that_step(
    waiting: list[tuple[int, int, int]], extra: int, page: int
) -> None:
    longest = max(length + new for length, new, _ in waiting)
    pages = -(-longest // page) + extra // page
    scheduler = unified(16, pages * page, page)
    params = [SamplingParams(max_new_tokens=new, ignore_eos=True) for _, new, _ in waiting]
    reqs = [Request(f"r{i}", [i] * waiting[i][0], params[i]) for i in range(len(waiting))]
    scheduler.receive(reqs)
    for _ in range(3000):
        before = list(scheduler.running_batch)
        batch = scheduler.next_batch()
        check_books(scheduler)
        gone = [req for req in before if req not in scheduler.running_batch]
        stayed = [req for req in before if req in scheduler.running_batch]
        for victim in gone:
            assert all(victim.order > req.order for req in stayed), "the newest gives way"
        if not batch:
            break
        started = [row for row in batch.rows[: batch.num_extend_reqs] if row.start == 0]
        assert not (gone and started), "nobody is admitted in a step that preempts"
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert not scheduler.live


@given(waiting=workloads, extra=st.integers(0, 6))
@settings(deadline=None)
def test_nobody_is_admitted_in_a_step_that_leaves_somebody_out(
    waiting: list[tuple[int, int, int]], extra: int
) -> None:
    """Memory in flight comes back by itself; a newcomer must not take what there is meanwhile."""
    longest = max(length + new for length, new, _ in waiting)
    config = replace(unified(16, longest + extra).config, run_ahead=True, overrun=1)
    scheduler, flying = Scheduler(config, Recorder()), deque[ScheduleBatch]()
    params = [SamplingParams(max_new_tokens=new, ignore_eos=True) for _, new, _ in waiting]
    scheduler.receive(
        [Request(f"r{i}", [i] * waiting[i][0], params[i]) for i in range(len(params))]
    )
    while scheduler.live:
        before = list(scheduler.running_batch)
        ready = scheduler.decode.schedule_next_batch()
        batch = scheduler.next_batch()
        gone = [req for req in before if req not in scheduler.running_batch]
        rows = batch.reqs if batch else []
        left = [req for req in ready if req in scheduler.running_batch and req not in rows]
        if (left or gone) and scheduler.waiting_queue:
            assert not batch or all(row.start for row in batch.rows[: batch.num_extend_reqs])
            mark = scheduler.recorder.trace("", "", "", "").marks
            asked = [item.attrs["reason"] for item in mark if item.name == "refuse"]
            assert str(asked[-1]).startswith("somebody was preempted or starves")
        if batch:
            flying.append(batch)
        if len(flying) == 2 or not batch:
            oldest = flying.popleft()
            scheduler.process(oldest, Result([5] * len(oldest.reqs)))


@given(waiting=workloads, budget=st.integers(1, 12), drafts=st.integers(1, 4), known=st.booleans())
@settings(deadline=None)
def test_drafts_take_from_the_budget_too_and_are_cut_to_what_is_left(
    waiting: list[tuple[int, int, int]], budget: int, drafts: int, known: bool
) -> None:
    """vLLM: each who runs, oldest first, gets all it wants or what is left, and one at the least.

    ``known``: the host proposes drafts. Else two steps are in flight, and the device has them.
    """
    config = replace(
        unified(budget).config, speculative_algorithm="NGRAM" if known else "NGRAM_GPU",
        speculative_num_draft_tokens=drafts, run_ahead=not known,
    )  # fmt: skip
    scheduler, flying = Scheduler(config, Recorder()), deque[ScheduleBatch]()
    scheduler.propose = (lambda tokens, count: [7] * count) if known else None
    params = [SamplingParams(max_new_tokens=new, ignore_eos=True) for _, new, _ in waiting]
    scheduler.receive(
        [Request(f"r{i}", [i] * waiting[i][0], params[i]) for i in range(len(params))]
    )
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


def test_a_prompt_is_cut_to_what_the_decodes_leave() -> None:
    scheduler = unified(10)
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    scheduler.receive([Request(f"r{i}", [i], params) for i in range(3)])
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    scheduler.process(batch, Result([5, 5, 5]))
    scheduler.receive([Request("long", [7] * 20, params)])
    lengths = []
    while not (scheduler.live["long"].output_ids):
        batch = scheduler.next_batch()
        assert isinstance(batch, ScheduleBatch) and batch.mode is ForwardMode.MIXED
        lengths.append(batch.rows[0].extend_len)
        scheduler.process(batch, Result([5] * 4))
    assert lengths == [7, 7, 6]
