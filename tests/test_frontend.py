"""What the frontend hands over, and when; what an engine does with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.engine.dispatcher import AbortReq, FlushCacheReq, Message
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.scheduler import SchedulerConfig
from tests.support import (
    PHASES,
    SOME_LOOPS,
    Workload,
    a_request,
    check_ends,
    check_identity,
    check_leaks,
    hash_model,
    play_timed,
    timed_workloads,
)

times = st.lists(st.integers(0, 50), max_size=12)
aborts = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["r0", "r1", "r9"])), max_size=6)
looks = st.lists(st.integers(0, 60), min_size=1).map(lambda drawn: [*sorted(drawn), 60])
EVERY_KIND = pytest.mark.parametrize("is_streamed", [False, True])


def requests_at(arrivals: list[int]) -> list[Request]:
    return [a_request(f"r{i}", time) for i, time in enumerate(arrivals)]


def in_order(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=lambda req: req.arrival_time)


def named(messages: list[Message]) -> list[str]:
    return [item.rid if isinstance(item, Request) else str(item) for item in messages]


@EVERY_KIND
@given(arrivals=times, looks=looks)
def test_every_request_comes_once_in_order_and_never_before_its_time(
    is_streamed: bool, arrivals: list[int], looks: list[int]
) -> None:
    requests = requests_at(arrivals)
    frontend = Frontend(iter(in_order(requests)) if is_streamed else requests)
    got: list[Message] = []
    for now in looks:
        due = [req.arrival_time for req in requests if req not in got]
        assert frontend.next_arrival == min(due, default=None)
        taken = frontend.take(now)
        assert all(isinstance(item, Request) and item.arrival_time <= now for item in taken)
        got += taken
        assert sorted(named(got)) == sorted(req.rid for req in requests if req.arrival_time <= now)
    assert got == in_order(requests)  # a stable order
    assert frontend.is_empty and frontend.next_arrival is None and frontend.take(99) == []


@given(arrivals=times, looks=looks)
def test_a_stream_is_read_one_request_ahead(arrivals: list[int], looks: list[int]) -> None:
    read: list[Request] = []

    def stream() -> Iterator[Request]:
        for req in in_order(requests_at(arrivals)):
            read.append(req)
            yield req

    frontend = Frontend(stream())
    taken = 0
    for now in looks:
        taken += len(frontend.take(now))
        assert len(read) == min(taken + 1, len(arrivals))


@given(arrivals=st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_a_stream_that_goes_back_in_time_is_refused(arrivals: list[int]) -> None:
    requests = requests_at(arrivals)
    frontend = Frontend(iter(requests))
    backwards = [(a, b) for a, b in pairwise(requests) if b.arrival_time < a.arrival_time]
    if not backwards:
        assert frontend.take(50) == requests
        return
    ahead, late = backwards[0]
    with pytest.raises(ValueError) as refusal:
        frontend.take(50)
    text = str(refusal.value)
    assert f"request {late.rid} arrives at {late.arrival_time} ns" in text
    assert f"arrives at {ahead.arrival_time} ns;" in text and text.count(".") == 1


@EVERY_KIND
@given(arrivals=times, aborts=aborts, looks=looks)
def test_it_does_not_matter_when_one_looks(
    is_streamed: bool, arrivals: list[int], aborts: list[tuple[int, str]], looks: list[int]
) -> None:
    """All that is timed comes in order of time, requests first: as if the look were continuous."""
    requests = requests_at(arrivals)
    frontend = Frontend(iter(in_order(requests)) if is_streamed else requests)
    for at, rid in aborts:
        frontend.abort(rid, at=at)
    timed: list[tuple[int, int, Message]] = [(req.arrival_time, 0, req) for req in requests]
    timed += [(at, 1, AbortReq(rid)) for at, rid in aborts]
    expected = [item for _, _, item in sorted(timed, key=lambda entry: entry[:2])]
    assert [item for now in looks for item in frontend.take(now)] == expected


def test_what_is_said_comes_at_the_next_look_in_the_order_it_was_said() -> None:
    frontend = Frontend([a_request("late", 100)])
    frontend.now = lambda: 7
    pushed = a_request("pushed", 99)
    frontend.push(pushed)
    frontend.abort("pushed")
    frontend.flush_cache()
    assert frontend.has_said and not frontend.is_empty
    assert frontend.take(7) == [pushed, AbortReq("pushed"), FlushCacheReq()]
    assert pushed.arrival_time == 7, "it arrived when it was pushed"
    assert not frontend.has_said and frontend.next_arrival == 100


def test_an_interrupt_sends_a_list_to_its_end_and_aborts_all() -> None:
    requests = requests_at([0, 10, 20])
    frontend = Frontend(requests)
    frontend.take(0)
    frontend.interrupt()
    assert frontend.has_said
    assert frontend.take(1) == [*requests[1:], AbortReq(abort_all=True)]
    assert frontend.take(2) == [] and not frontend.has_said and frontend.is_empty
    late = a_request("after the interrupt")
    frontend.push(late)
    assert frontend.take(3) == [late, AbortReq(abort_all=True)]


def test_an_interrupt_leaves_the_rest_of_a_stream_unread() -> None:
    requests = requests_at([0, 10, 20])
    stream = iter(requests)
    frontend = Frontend(stream)
    frontend.interrupt()
    assert frontend.take(0) == [requests[0], requests[1], AbortReq(abort_all=True)]
    assert frontend.is_empty and list(stream) == [requests[2]]


@SOME_LOOPS
@EVERY_KIND
@given(workload=timed_workloads())
@settings(max_examples=80, deadline=None)
def test_an_abort_at_any_time_ends_a_request_once(
    is_streamed: bool, loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    """Also of a request that has not come, that has ended, or that nobody ever sends."""
    run = play_timed(workload, loop, relay, options, is_streamed=is_streamed)
    check_identity(workload)
    check_ends(workload, [output for _, output in run.heard])
    check_leaks(run.engine)
    aborted_at = {rid: max(t for t, r in workload.aborts.items() if r == rid)
                  for rid in workload.aborts.values()}  # fmt: skip
    for req in workload.requests:
        if req.finish_reason is FinishReason.ABORT:
            assert aborted_at[req.rid] >= req.arrival_time, "nobody asked while it was there"


@SOME_LOOPS
def test_a_timed_abort_ends_a_request_at_that_time(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    params = SamplingParams(max_new_tokens=500, ignore_eos=True)
    requests = [Request("given up", [1], params), Request("kept", [2], params, arrival_time=9)]
    workload = Workload(requests, [], {2000: "given up"}, SchedulerConfig(context_len=600))
    run = play_timed(workload, loop, relay, options)
    ends = {output.rid: time for time, output in run.heard if output.finish_reason}
    assert requests[0].finish_reason is FinishReason.ABORT
    assert 0 < len(requests[0].output_ids) < 500 == len(requests[1].output_ids)
    longest_turn = 2 * 3 * len(PHASES) + 2 * (10 + 2 + 1 + 2)
    assert 2000 <= ends["given up"] <= 2000 + longest_turn


@SOME_LOOPS
def test_an_abort_that_nothing_waits_for_wakes_nobody(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    workload = Workload([a_request("r0")], [], {10**15: "r0"}, SchedulerConfig())
    run = play_timed(workload, loop, relay, options)
    assert run.device.now() < 10**6 and workload.requests[0].finish_reason is FinishReason.LENGTH


@SOME_LOOPS
@pytest.mark.parametrize("what", ["interrupt", "push"])
def test_a_sleeping_loop_hears_what_is_said(
    loop: str, relay: str, options: dict[str, Any], what: str
) -> None:
    """The next arrival is a day away; something happens after a second."""
    day, second = 86_400 * 10**9, 10**9
    device = SimDevice()
    late, pushed = a_request("late", day), a_request("pushed")
    ended_at: list[int] = []

    def hear(output: Output) -> None:
        if output.finish_reason:
            ended_at.append(device.now())

    frontend = Frontend([late], hear)

    def speak() -> None:
        if what == "interrupt":
            frontend.interrupt()
        else:
            frontend.push(pushed)

    device.at(second, 0, speak)
    model = hash_model("sim", frozenset())
    engine = make_engine(loop, device, model, SchedulerConfig(), frontend, relay=relay)
    turns = LOOPS[loop].run(engine, **options)
    while not ended_at:
        next(turns)
    assert second <= ended_at[0] < 2 * second
    if what == "interrupt":
        assert engine.is_done and late.finish_reason is FinishReason.ABORT
    else:
        assert not late.finished and pushed.finish_reason is FinishReason.LENGTH
        assert second <= pushed.arrival_time < 2 * second
