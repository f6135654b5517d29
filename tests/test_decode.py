"""The set of running requests: who is in it and who may run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Lease, Request, SamplingParams
from minisched.policy import DecodeManager


def running(rid: str, prompt: int, launched: int, known: int, new: int = 9) -> Request:
    """A request with ``launched`` tokens launched, of which the host knows ``known``."""
    req = Request(rid, [1] * prompt, SamplingParams(max_new_tokens=new))
    req.lease, req.order = Lease(1), int(rid)
    for _ in range(known):
        req.append_host(5)
    req.computed_len, req.device_len = prompt + launched - 1, prompt + launched
    return req


def test_a_request_is_in_the_set_once_until_it_is_removed() -> None:
    decode = DecodeManager()
    gone, at_its_length = running("0", 3, 9, 9), running("1", 3, 9, 9)
    decode.add_reqs([gone, at_its_length])
    decode.add_reqs([at_its_length])
    assert decode.running_reqs == [gone, at_its_length]
    decode.remove_req(gone)
    decode.remove_req(gone)
    assert decode.running_reqs == [at_its_length], "an optimistic length must not remove it"


@given(prompt=st.integers(1, 5), launched=st.integers(1, 10), behind=st.integers(0, 3))
def test_who_may_run(prompt: int, launched: int, behind: int) -> None:
    """Run-ahead asks only for lengths; without it the host must know the input token."""
    req = running("0", prompt, launched, max(0, launched - behind))
    knows_its_input = behind == 0
    for run_ahead in (False, True):
        for overrun in (0, 1, 3):
            decode = DecodeManager(run_ahead, overrun)
            longest = 8 + overrun  # launched tokens from which one more may follow
            expected = launched <= longest and (run_ahead or knows_its_input)
            assert decode.may_run(req) == expected


@given(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
def test_rows_come_in_the_order_of_arrival(orders: list[int]) -> None:
    decode = DecodeManager(run_ahead=True)
    decode.add_reqs(running(str(order), 2, 1, 1) for order in orders)
    assert [req.order for req in decode.schedule_next_batch()] == sorted(orders)
