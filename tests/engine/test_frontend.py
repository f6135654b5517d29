"""What the frontend hands over, and when; what an engine does with it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.engine.dispatcher import AbortReq, FlushCacheReq, Message
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.scheduler import SchedulerConfig
from tests.support import PHASES, SOME_LOOPS, Workload, a_request, hash_model, play_timed

times = st.lists(st.integers(0, 50), max_size=12)
aborts = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["r0", "r1", "r9"])), max_size=6)
looks = st.lists(st.integers(0, 60), min_size=1).map(lambda drawn: [*sorted(drawn), 60])


def requests_at(arrivals: list[int]) -> list[Request]:
    return [a_request(f"r{i}", time) for i, time in enumerate(arrivals)]


# -- what is taken -----------------------------------------------------------------------------


@given(st.booleans(), times, aborts, looks)
def test_all_comes_once_in_order_of_time_and_never_before_however_one_looks(
    is_streamed: bool, arrivals: list[int], aborts: list[tuple[int, str]], looks: list[int]
) -> None:
    """Stably, and a request before an abort; of a stream one request is read ahead."""
    requests = requests_at(arrivals)
    in_order = sorted(requests, key=lambda req: req.arrival_time)
    read: list[Request] = []

    def stream() -> Iterator[Request]:
        for req in in_order:
            read.append(req)
            yield req

    frontend = Frontend(stream() if is_streamed else requests)
    for at, rid in aborts:
        frontend.abort(rid, at=at)
    timed: list[tuple[int, int, Message]] = [(req.arrival_time, 0, req) for req in requests]
    timed += [(at, 1, AbortReq(rid)) for at, rid in aborts]
    timed.sort(key=lambda entry: entry[:2])
    got: list[Message] = []
    for now in looks:
        coming = [time for time, _, _ in timed[len(got) :]]
        assert frontend.next_message == min(coming, default=None)
        due = [req.arrival_time for req in requests if req not in got]
        assert frontend.next_arrival == min(due, default=None)
        got += frontend.take(now)
        assert got == [message for time, _, message in timed if time <= now]
        taken = sum(isinstance(message, Request) for message in got)
        assert not is_streamed or len(read) == min(taken + 1, len(requests))
    assert frontend.is_empty and frontend.take(99) == []


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
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
    assert f"request {late.rid} arrives at {late.arrival_time} ns" in str(refusal.value)
    assert f"arrives at {ahead.arrival_time} ns;" in str(refusal.value)


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


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_interrupt_sends_what_is_known_and_aborts_all(is_streamed: bool) -> None:
    """A list to its end; the rest of a stream is left unread."""
    requests = requests_at([0, 10, 20])
    stream = iter(requests)
    frontend = Frontend(stream if is_streamed else requests)
    assert frontend.take(0) == requests[:1]
    frontend.interrupt()
    assert frontend.has_said
    sent = requests[1:2] if is_streamed else requests[1:]
    assert frontend.take(1) == [*sent, AbortReq(abort_all=True)]
    assert not is_streamed or list(stream) == requests[2:]
    assert frontend.take(2) == [] and not frontend.has_said and frontend.is_empty
    late = a_request("after the interrupt")
    frontend.push(late)
    assert frontend.take(3) == [late, AbortReq(abort_all=True)]


# -- what an engine does with it ---------------------------------------------------------------


@SOME_LOOPS
def test_a_timed_abort_ends_a_request_at_that_time(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    params = SamplingParams(max_new_tokens=150, ignore_eos=True)
    requests = [Request("given up", [1], params), Request("kept", [2], params, arrival_time=9)]
    workload = Workload(requests, [], {2000: "given up"}, SchedulerConfig(context_len=200))
    run = play_timed(workload, loop, relay, options)
    ends = {output.rid: time for time, output in run.heard if output.finish_reason}
    assert requests[0].finish_reason is FinishReason.ABORT
    assert 0 < len(requests[0].output_ids) < 150 == len(requests[1].output_ids)
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
    said = frontend.interrupt if what == "interrupt" else lambda: frontend.push(pushed)
    device.at(second, 0, said)
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
