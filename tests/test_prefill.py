"""Admission: chunks, budgets and reservations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisched.core import ChunkedReq, ForwardMode, Request, Result, SamplingParams
from minisched.policy import DecodeManager
from minisched.scheduler import Scheduler, SchedulerConfig


@given(prompt=st.integers(1, 30), chunk=st.integers(1, 9))
def test_chunks_add_up_to_the_prompt_and_only_the_last_is_delivered(
    prompt: int, chunk: int
) -> None:
    scheduler = Scheduler(SchedulerConfig(chunk_size=chunk, vocab_size=9))
    req = Request("r", [1] * prompt, SamplingParams(max_new_tokens=1))
    scheduler.receive([req])
    lengths, delivered = [], []
    while not req.finished:
        batch = scheduler.next_batch()
        assert batch
        lengths.append(batch.rows[0].extend_len)
        delivered += scheduler.process(batch, Result([5]))
    assert sum(lengths) == prompt and max(lengths) <= chunk
    assert [output.token for output in delivered] == [5]


@given(ratio=st.floats(0, 1), pages=st.integers(9, 40))
def test_a_full_reservation_never_retracts(ratio: float, pages: int) -> None:
    """What mini-sglang buys with ``new_token_ratio`` 1; a smaller one admits at least as many."""
    admitted = []
    for new_token_ratio in (1.0, ratio):
        scheduler = Scheduler(
            SchedulerConfig(num_pages=pages, chunk_size=99, new_token_ratio=new_token_ratio)
        )
        params = SamplingParams(max_new_tokens=6, ignore_eos=True)
        scheduler.receive([Request(f"r{i}", [1, 2, 3], params) for i in range(4)])
        batch = scheduler.next_batch()
        assert batch
        admitted.append(len(batch.rows))
    assert admitted[0] == min(4, pages // 9)
    assert admitted[1] >= admitted[0]


@given(prompts=st.lists(st.integers(1, 20), min_size=1, max_size=6), chunk=st.integers(1, 30))
def test_prompts_start_in_order_and_fill_the_budget(prompts: list[int], chunk: int) -> None:
    """First come, first served: a batch takes prompts until its budget is spent, never more."""
    scheduler = Scheduler(SchedulerConfig(chunk_size=chunk, vocab_size=9))
    params = SamplingParams(max_new_tokens=1)
    requests = [Request(f"r{i}", [1] * length, params) for i, length in enumerate(prompts)]
    scheduler.receive(requests)
    order = []
    while scheduler.live:
        left = sum(len(req.prompt) - req.computed_len for req in scheduler.live.values())
        batch = scheduler.next_batch()
        assert batch and batch.mode is ForwardMode.EXTEND
        assert batch.num_tokens == min(chunk, left)
        order += [row.req.order for row in batch.rows if row.deliver]
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert order == list(range(len(prompts)))


def test_a_chunked_request_never_decodes() -> None:
    chunked = ChunkedReq(Request("r", [1, 2, 3]))
    scheduler = Scheduler(SchedulerConfig())
    decode = DecodeManager(scheduler.allocator)
    decode.filter_reqs([chunked])
    assert not chunked.can_decode and not decode.running_reqs
    try:
        chunked.append_host(7)
    except RuntimeError as error:
        assert "token 7 is not r's" in str(error)
    else:
        raise AssertionError("a chunk's token must not be taken")
