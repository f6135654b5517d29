"""nano-vllm's rules: each in its smallest case."""

from __future__ import annotations

from typing import Any

import pytest

from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import turn


def scheduler_of(*lengths: tuple[int, int], rules: str = "nano-vllm", **settings: Any) -> Scheduler:
    """A scheduler without a prefix cache, and requests: tokens of the prompt, and of the answer."""
    settings = {"page_size": 4, "disable_radix_cache": True, **settings}
    scheduler = Scheduler(SchedulerConfig(rules=rules, **settings))
    scheduler.receive(
        Request(f"r{at}", [at + 1] * length, SamplingParams(max_new_tokens=new))
        for at, (length, new) in enumerate(lengths)
    )
    return scheduler


def extents(batch: ScheduleBatch) -> list[tuple[str, int, int]]:
    rows = batch.rows[: batch.num_extend_reqs]
    return [(row.req.rid, row.start, row.end) for row in rows]


def test_only_the_first_of_a_batch_is_cut() -> None:
    """Of a budget of 6 the first leaves 3, and the second, with 9, waits; then it is the first."""
    scheduler = scheduler_of((3, 9), (9, 9), chunked_prefill_size=6)
    steps = [extents(turn(scheduler)) for _ in range(3)]
    assert steps == [[("r0", 0, 3)], [("r1", 0, 6)], [("r1", 6, 9)]]


def test_behind_the_last_chunk_another_prompt_comes_if_all_of_it_fits() -> None:
    scheduler = scheduler_of((8, 9), (4, 9), (1, 9), chunked_prefill_size=6)
    steps = [extents(turn(scheduler)) for _ in range(2)]
    assert steps == [[("r0", 0, 6)], [("r0", 6, 8), ("r1", 0, 4)]]


@pytest.mark.parametrize(("pages", "comes"), [(4, True), (3, False)])
def test_a_request_comes_if_its_prompt_fits_whatever_it_may_say(pages: int, comes: bool) -> None:
    scheduler = scheduler_of((8, 4), (5, 3), kv_tokens=4 * pages)
    assert turn(scheduler).rids == ("r0", "r1")[: 1 + comes]


def test_all_pages_of_a_prompt_are_taken_when_its_first_chunk_comes() -> None:
    """Five pages: the first prompt has three of them, though two are not written yet."""
    scheduler = scheduler_of((12, 1), (12, 1), kv_tokens=20, chunked_prefill_size=8)
    assert [extents(turn(scheduler)) for _ in range(3)] == [
        [("r0", 0, 8)], [("r0", 8, 12)], [("r1", 0, 8)]
    ]  # fmt: skip


@pytest.mark.parametrize(("victim", "left"), [("newest", "r0"), ("fewest_outputs", "r1")])
def test_who_decodes_since_last_makes_way_and_comes_back_first(victim: str, left: str) -> None:
    """Both need a page at once, and there is one; the first has the longer prompt."""
    scheduler = scheduler_of((8, 8), (4, 8), (8, 8), rules=f"nano-vllm,victim={victim}",
                             kv_tokens=16)  # fmt: skip
    assert turn(scheduler).rids == ("r0", "r1")
    assert turn(scheduler).rids == (left,)
    assert scheduler.retraction.num_retractions == 1
    assert next(iter(scheduler.waiting_queue)).rid == ("r1" if left == "r0" else "r0")
