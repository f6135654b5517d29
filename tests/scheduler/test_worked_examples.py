"""The worked examples of the deep dive (the history of SGLang's scheduler), in its numbers."""

import pytest

from minisched.core import Request, Result, SamplingParams, ScheduleBatch
from minisched.scheduler import Scheduler, SchedulerConfig


@pytest.fixture
def scheduler() -> Scheduler:
    """Pages of one token, as there; no prompt is cut."""
    config = SchedulerConfig(
        kv_tokens=10_000, chunked_prefill_size=-1, context_len=8000, vocab_size=2000
    )
    return Scheduler(config)


def add(scheduler: Scheduler, rid: str, prompt: list[int], max_new_tokens: int) -> Request:
    req = Request(rid, prompt, SamplingParams(max_new_tokens=max_new_tokens))
    assert not scheduler.receive([req])
    return req


def commit(scheduler: Scheduler) -> ScheduleBatch:
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    return batch


def step(scheduler: Scheduler) -> ScheduleBatch:
    """One step, run and processed."""
    batch = commit(scheduler)
    scheduler.process(batch, Result([9] * len(batch.rows)))
    return batch


def slots(req: Request) -> list[int]:
    """Its row of ``req_to_token``: with pages of one token a page is a slot."""
    assert req.lease is not None
    return req.lease.pages


def test_a_prefix_of_1984_tokens_and_a_chunk_of_2000_fill_one_row(scheduler: Scheduler) -> None:
    prefix = [token % 97 for token in range(1984)]
    add(scheduler, "before", prefix, 1)
    step(scheduler)
    req = add(scheduler, "req", prefix + [98] * 2000, 5)
    [row] = commit(scheduler).rows
    assert (req.admission.hit_len, row.start, len(row.ids), row.end) == (1984, 1984, 2000, 3984)
    assert slots(req) == [*range(1, 1985), *range(1985, 3985)], "loc_1 to loc_1984, loc_1985 .."


def test_three_requests_of_10_15_and_8_tokens_get_loc34_loc35_and_loc36(
    scheduler: Scheduler,
) -> None:
    lengths = [10, 15, 8]
    reqs = [
        add(scheduler, f"req{at}", [100 + at] * length, 5) for at, length in enumerate(lengths, 1)
    ]
    step(scheduler)
    assert [req.known_len - 1 for req in reqs] == lengths
    assert list(map(slots, reqs)) == [[*range(1, 11)], [*range(11, 26)], [*range(26, 34)]]
    batch = commit(scheduler)
    assert batch.starts == lengths, "positions 10, 15 and 8"
    assert [slots(req)[position] for req, position in zip(reqs, lengths, strict=True)] == [
        34, 35, 36,
    ]  # fmt: skip
    assert batch.new_pages == {0: (10, [34]), 1: (15, [35]), 2: (8, [36])}
