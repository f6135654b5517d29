"""The set of running requests: who is in it, who may run, and what is kept back for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisched.core import FinishReason, Lease, Request, SamplingParams
from minisched.memory import PageAllocator
from minisched.policy import DecodeManager, choose_victim


def running(rid: str, prompt: int, launched: int, known: int, new: int = 9) -> Request:
    """A request with ``launched`` tokens launched, of which the host knows ``known``."""
    req = Request(rid, [1] * prompt, SamplingParams(max_new_tokens=new))
    req.lease, req.order = Lease(1), int(rid)
    req.output_ids = [5] * known
    req.computed_len, req.device_len = prompt + launched - 1, prompt + launched
    return req


def test_a_request_leaves_when_it_finishes_or_loses_its_lease_and_not_before() -> None:
    decode = DecodeManager(PageAllocator(9))
    ended, retracted, at_its_length = (running(rid, 3, 9, 9) for rid in "012")
    decode.filter_reqs([ended, retracted, at_its_length])
    ended.finish_reason = FinishReason.STOP
    retracted.lease = None
    decode.filter_reqs()
    assert decode.running_reqs == {at_its_length}, "an optimistic length must not remove it"
    decode.remove_req(at_its_length)
    decode.remove_req(at_its_length)
    assert not decode.running_reqs


@given(prompt=st.integers(1, 5), launched=st.integers(1, 10), behind=st.integers(0, 3))
def test_who_may_run(prompt: int, launched: int, behind: int) -> None:
    """Run-ahead asks only for lengths; without it the host must know the input token."""
    req = running("0", prompt, launched, max(0, launched - behind))
    allocator = PageAllocator(99)
    knows_its_input = behind == 0
    for run_ahead in (False, True):
        for foresees in (False, True):
            decode = DecodeManager(allocator, run_ahead, foresees)
            longest = 8 if foresees else 9  # launched tokens from which one more may follow
            expected = launched <= longest and (run_ahead or knows_its_input)
            assert decode.may_run(req) == expected


@given(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
def test_rows_come_in_the_order_of_arrival(orders: list[int]) -> None:
    decode = DecodeManager(PageAllocator(999), run_ahead=True)
    decode.filter_reqs(running(str(order), 2, 1, 1) for order in orders)
    assert [req.order for req in decode.schedule_next_batch()] == sorted(orders)


@given(
    prompt=st.integers(1, 9),
    launched=st.integers(1, 9),
    page=st.sampled_from([1, 2, 4]),
    ratio=st.floats(0, 1),
)
def test_inflight_tokens_lie_between_the_next_step_and_everything(
    prompt: int, launched: int, page: int, ratio: float
) -> None:
    req = running("0", prompt, launched, launched)
    decode = DecodeManager(PageAllocator(99, page), new_token_ratio=ratio)
    assert req.lease is not None
    decode.allocator.extend(req.lease, req.computed_len)
    decode.filter_reqs([req])
    held = len(req.lease.pages) * page
    everything = -(-req.max_device_len // page) * page - held
    next_step = -(-req.device_len // page) * page - held
    assert next_step <= decode.inflight_tokens <= everything
    decode.new_token_ratio = 1.0
    assert decode.inflight_tokens == everything
    decode.new_token_ratio = 0.0
    assert decode.inflight_tokens == next_step


def test_the_victim_has_the_fewest_outputs_then_the_longest_prompt_then_came_last() -> None:
    few, many = running("0", 3, 2, 2), running("1", 9, 6, 6)
    long, short = running("2", 9, 2, 2), running("3", 3, 2, 2)
    assert choose_victim([few, many]) is few
    assert choose_victim([few, long, many]) is long
    assert choose_victim([few, short]) is short
