"""mini-sglang's rules: smallest cases that no kept schedule shows, and the law of its reserve."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.core import Request, Result, SamplingParams, ScheduleBatch
from minisched.memory import self_check
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Recorder
from tests.support import turn

AT_ONCE = "free_rule=at_once,enters_cache=known,length_frees=last_launch"
EOS = 1


def scheduler_of(rules: str = "mini-sglang", **settings: Any) -> Scheduler:
    config = SchedulerConfig(rules=rules, vocab_size=99, eos_ids=frozenset({EOS}), **settings)
    return Scheduler(config, Recorder())


def request(rid: str, length: int, new: int, first: int = 5) -> Request:
    return Request(rid, range(first, first + length), SamplingParams(max_new_tokens=new))


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "ends"), [("mini-sglang", [6, 10]), ("sglang", [4, 8, 10])])
def test_a_chunk_may_end_within_a_page(rules: str, ends: list[int]) -> None:
    size = ends[0]
    scheduler = scheduler_of(rules, page_size=4, chunked_prefill_size=size)
    scheduler.receive([request("r", 10, 9)])
    assert [turn(scheduler).rows[0].end for _ in ends] == ends


# -- memory ----------------------------------------------------------------------------------------


def test_those_who_run_keep_a_page_less_one_token_back() -> None:
    """Pages of 4: one who may say 5 more has 5 + 3 tokens of the 12 that are free."""
    for length, comes in ((3, True), (4, False)):
        scheduler = scheduler_of(kv_tokens=16, page_size=4)
        scheduler.receive([request("r", 4, 6)])
        turn(scheduler)
        scheduler.receive([request("s", length, 1, first=50)])
        assert (turn(scheduler).rids == ("s",)) == comes


def test_who_was_refused_is_asked_at_every_step() -> None:
    scheduler = scheduler_of(kv_tokens=12)
    scheduler.receive([request("r", 4, 6), request("s", 4, 5, first=50)])
    for _ in range(4):
        turn(scheduler)
    marks = scheduler.recorder.marks
    assert sum(mark.name == "refuse" and mark.attrs["rid"] == "s" for mark in marks) == 4


@example(
    requests=[(3, 9, 0)] * 3, spare=6, chunk=-1, rows=3, page=1, cached=False, run_ahead=False,
    stops=99, rules="mini-sglang",
)  # fmt: skip
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 4)), min_size=1, max_size=7
    ),
    spare=st.integers(0, 12),
    chunk=st.sampled_from([-1, 1, 3, 4, 9]),
    rows=st.integers(1, 5),
    page=st.sampled_from([1, 1, 1, 4]),
    cached=st.booleans(),
    run_ahead=st.booleans(),
    stops=st.sampled_from([99, 99, 9]),
    rules=st.sampled_from(["mini-sglang", f"mini-sglang,{AT_ONCE}"]),
)
def test_nobody_is_ever_retracted(
    requests: list[tuple[int, int, int]], spare: int, chunk: int, rows: int, page: int,
    cached: bool, run_ahead: bool, stops: int, rules: str,
) -> None:  # fmt: skip
    """Not with pages of one token; nor with larger ones, where nobody comes beside another one."""
    most = max(length + new for length, new, _ in requests)
    scheduler = scheduler_of(
        rules, kv_tokens=-(-most // page) * page + spare, page_size=page, context_len=64,
        chunked_prefill_size=chunk, max_running_requests=rows, disable_radix_cache=not cached,
        run_ahead=run_ahead,
    )  # fmt: skip
    coming = deque(
        request(f"r{at}", length, new, first=at % 2 * 20 + 2)
        for at, (length, new, _) in enumerate(requests)
    )
    waits, in_flight = deque(wait for _, _, wait in requests), deque[ScheduleBatch]()
    for count in range(999):
        while coming and waits[0] <= 0 and (page == 1 or not scheduler.waiting_queue):
            waits.popleft()
            scheduler.receive([coming.popleft()])
        if coming:
            waits[0] -= 1
        elif not scheduler.live:
            break
        batch = scheduler.next_batch()
        in_flight += [batch] if batch else []
        while len(in_flight) > (run_ahead and bool(batch)):
            done = in_flight.popleft()
            scheduler.process(done, Result([EOS if (count + i) % stops == 0 else 3 for i in
                                            range(len(done.reqs))]))  # fmt: skip
    for done in in_flight:
        scheduler.process(done, Result([3] * len(done.reqs)))
    assert not (coming or scheduler.live or scheduler.retraction.num_retractions)
    self_check(scheduler.leases)


def test_two_who_come_in_one_step_can_be_promised_a_page_too_many() -> None:
    """Pages of 4, 12 tokens: both ask for 3 + 3, and each takes its second page at its fifth.

    The original stops at an assertion there. Here one of them starts again.
    """
    scheduler = scheduler_of(kv_tokens=12, page_size=4, disable_radix_cache=True)
    scheduler.receive([request("r", 3, 3), request("s", 3, 3, first=50)])
    assert turn(scheduler).rids == ("r", "s")
    while scheduler.live:
        turn(scheduler)
    assert scheduler.retraction.num_retractions == 1


# -- what the original's overlap frees and shares while a step runs --------------------------------


def ahead(scheduler: Scheduler, new: int, stop_at: int = 99) -> list[int]:
    """One request of four tokens, a step ahead: free pages whenever a step has been launched."""
    scheduler.receive([request("r", 4, new)])
    free, last = list[int](), None
    for count in range(20):
        batch = scheduler.next_batch()
        free.append(len(scheduler.allocator.free_pages))
        if last:
            scheduler.process(last, Result([EOS if count == stop_at else 3]))
        last = batch or None
    self_check(scheduler.leases)
    return free


@pytest.mark.parametrize(
    ("rules", "free"), [(f"mini-sglang,{AT_ONCE}", [16, 15, 14, 20]),
                        ("mini-sglang", [16, 15, 14, 14, 20])]
)  # fmt: skip
def test_who_ends_by_length_lets_go_while_its_last_step_runs(rules: str, free: list[int]) -> None:
    scheduler = scheduler_of(rules, kv_tokens=20, run_ahead=True, disable_radix_cache=True)
    assert ahead(scheduler, new=3)[: len(free)] == free


@pytest.mark.parametrize(("rules", "cached"), [(f"mini-sglang,{AT_ONCE}", 6), ("mini-sglang", 5)])
def test_what_still_runs_is_shared(rules: str, cached: int) -> None:
    """Its second token ends it, whose position the step behind is just computing, in vain."""
    scheduler = scheduler_of(rules, kv_tokens=20, run_ahead=True)
    ahead(scheduler, new=9, stop_at=2)
    assert scheduler.tree is not None
    assert scheduler.tree.evictable_size + scheduler.tree.protected_size == cached
