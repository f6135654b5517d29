"""What the frontend hands over and when, what an engine does with it, and figures of requests."""

import io
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Output, Outputs, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import AbortReq, FlushCacheReq, Frontend, Message, arrival_of
from minisched.engine.log import log_to, logger
from minisched.engine.metrics import Metrics, percentiles
from minisched.loops.design import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import (
    PHASES,
    SOME_LOOPS,
    TimedRun,
    Workload,
    a_request,
    hash_model,
    many,
    play_timed,
    timed_workloads,
)

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
    """A request before an abort; of a stream one request is read ahead."""
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
def test_a_stream_that_goes_back_in_time_ends_there(arrivals: list[int]) -> None:
    requests = requests_at(arrivals)
    frontend = Frontend(iter(requests))
    late = [b for a, b in pairwise(requests) if b.arrival_time < a.arrival_time]
    if not late:
        assert frontend.take(50) == requests
        return
    said = f"request {late[0].rid} arrives at {late[0].arrival_time} ns"
    *taken, last = frontend.take(50)
    assert taken == requests[: requests.index(late[0])] and frontend.is_empty
    assert isinstance(last, AbortReq) and last.abort_all and said in last.error
    assert type(frontend.failure) is ValueError and said in str(frontend.failure)


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_async", "mlx_async"])
def test_a_source_that_fails_ends_every_live_request_with_its_reason(loop: str) -> None:
    """Those before it that have ended keep their end; the run raises what the source raised."""
    short = Request("short", [1], SamplingParams(max_new_tokens=1, ignore_eos=True))
    long = Request("long", [2], SamplingParams(max_new_tokens=50, ignore_eos=True))
    last = Request("last", [3], SamplingParams(max_new_tokens=50, ignore_eos=True), 10**8)

    def source() -> Iterator[Request]:
        yield from (short, long, last)
        raise OSError("the disk is gone")

    heard: list[Output] = []
    engine = make_engine(
        loop,
        SimDevice(),
        HashModel(),
        SchedulerConfig(),
        Frontend(source(), heard.append),
        SIM_COST,
    )
    with pytest.raises(OSError, match="the disk is gone"):
        drive(LOOPS[loop].start(engine), engine)
    assert short.finish_reason is FinishReason.LENGTH and not short.error
    for req in (long, last):
        assert req.finish_reason is FinishReason.ABORT
        assert req.error == "the source of requests failed (OSError: the disk is gone)."
    assert {output.rid for output in heard if output.finish_reason} == {"short", "long", "last"}


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8))
def test_what_is_pushed_for_later_comes_at_its_time(
    times: list[tuple[int, bool]],
) -> None:
    """Whether it is of the iterator or pushed, in order of time."""
    requests = [a_request(f"r{at}", time) for at, (time, _) in enumerate(times)]
    pushed = [req for req, (_, is_pushed) in zip(requests, times, strict=True) if is_pushed]
    streamed = sorted((req for req in requests if req not in pushed), key=arrival_of)
    frontend = Frontend(iter(streamed))
    for req in pushed:
        frontend.push(req, req.arrival_time)
    got: list[Message] = []
    for now in range(10):
        got += frontend.take(now)
        assert {*got} == {req for req in requests if req.arrival_time <= now}
    assert [req.arrival_time for req in got if isinstance(req, Request)] == sorted(
        time for time, _ in times
    )
    assert frontend.is_empty


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
    device.at(second, said)
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


# -- figures -----------------------------------------------------------------------------------


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=many(5, 30))
def test_every_figure_is_what_clients_heard_and_the_trace_says(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    check_times(run, workload)
    check_totals(run, workload)


def check_times(run: TimedRun, workload: Workload) -> None:
    """Times are those at which clients heard, and add up."""
    metrics = run.engine.metrics
    assert not metrics.live and len(metrics.ended) == len(workload.requests)
    requests = {req.rid: req for req in workload.requests}
    for item in metrics.ended:
        req = requests[item.rid]
        heard = [(t, output) for t, output in run.heard if output.rid == item.rid]
        times = [time for time, output in heard if output.token is not None]
        assert (
            item.finish_reason is req.finish_reason
            and item.retractions == req.admission.retractions
        )
        assert (item.prompt_tokens, item.output_tokens) == (len(req.prompt), len(req.output_ids))
        assert (item.arrival, item.end) == (req.arrival_time, heard[-1][0])
        assert item.first_token == (times[0] if times else None)
        assert list(item.itls) == [b - a for a, b in pairwise(times)]
        if item.ttft_ns is None:
            assert not req.output_ids
        else:
            assert item.queue_ns is not None and 0 < item.queue_ns < item.ttft_ns
            assert item.ttft_ns + sum(item.itls) == times[-1] - req.arrival_time
        host = run.trace.on("host")
        prepares = [s.start for s in host if s.name == "prepare" and item.rid in s.rids]
        ends = [s.end for s in host if s.name == "schedule"]
        assert item.scheduled == (max(t for t in ends if t <= prepares[0]) if prepares else None)


def check_totals(run: TimedRun, workload: Workload) -> None:
    metrics, ended = run.engine.metrics, run.engine.metrics.ended
    assert metrics.output_tokens == sum(len(req.output_ids) for req in workload.requests)
    whole = (FinishReason.STOP, FinishReason.LENGTH)
    assert metrics.num_finished == sum(r.finish_reason in whole for r in workload.requests)
    assert metrics.ttft == percentiles(i.ttft_ns for i in ended if i.ttft_ns is not None)
    assert metrics.itl == percentiles(itl for item in ended for itl in item.itls)
    hits: dict[str, int] = {}  # what the cache gave each request when it was admitted first
    for mark in run.trace.marks:
        if mark.name == "admit":
            hits.setdefault(str(mark.attrs["rid"]), int(mark.attrs["hit_len"]))
    assert {item.rid: item.cached_tokens for item in ended if item.scheduled} == hits
    assert 0 <= metrics.cache_hit_rate < 1, "the last token of a prompt is always computed"
    if not any(req.admission.retractions for req in workload.requests):
        prompts = sum(item.prompt_tokens for item in ended if item.scheduled)
        assert (metrics.cached_tokens, metrics.admitted_tokens) == (sum(hits.values()), prompts)


@given(st.lists(st.integers(0, 50), max_size=300))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    found = percentiles(iter(values))
    assert (found is None) == (not values)
    for percent, value in zip((50, 90, 99), found or (), strict=False):
        reach = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
        assert value == min(reach)


def test_nobody_arrived_before_the_engine_was_there() -> None:
    """On a wall clock, loading a model takes time in which no request can have waited."""
    metrics = Metrics(started=1000)
    for req in (a_request("early", 0), a_request("late", 1500)):
        metrics.on_received(req, 1600)
    for time, rids in ((2000, ["early", "early"]), (3000, ["late"])):
        outputs = Outputs()
        for rid in rids:
            outputs.add(Output(rid, 1))
        metrics.on_outputs(outputs, time)
    assert [item.ttft_ns for [(_, item)] in metrics.live.values()] == [1000, 1500]
    assert metrics.throughput == 3 / (2000 / 1e9)
    metrics.on_received(a_request("interrupted before it arrives", 5000), 1600)
    assert [item.arrival for [(_, item)] in metrics.live.values()] == [1000, 1500, 1600]
    nothing = Metrics()
    assert nothing.ttft is nothing.itl is nothing.queue is None
    assert nothing.cache_hit_rate == nothing.throughput == 0.0


def test_a_request_ends_when_its_client_is_notified_even_if_its_id_returns_before() -> None:
    heard: list[tuple[Output, int]] = []
    device = SimDevice()
    frontend = Frontend(on_output=lambda output: heard.append((output, device.now())))
    engine = make_engine("serial", device, HashModel(), SchedulerConfig(), frontend, SIM_COST)
    turns = LOOPS["serial"].start(engine)
    frontend.push(a_request("a"))
    for _ in range(3):
        next(turns)
    for _ in range(2):
        frontend.abort("a")
        frontend.push(a_request("a"))
    while not engine.is_done:
        next(turns)
    ends = [time for output, time in heard if output.finish_reason]
    assert [item.end for item in engine.metrics.ended] == ends and not engine.metrics.live
    assert ends[0] == ends[1] < ends[2]


# -- the log -----------------------------------------------------------------------------------


def test_the_numbers_of_the_log_of_a_worked_example() -> None:
    stream, cost = io.StringIO(), CostModel({}, forward_base=10**6)  # a step takes a millisecond
    config = SchedulerConfig(context_len=256, chunked_prefill_size=40)
    params = SamplingParams(max_new_tokens=90, ignore_eos=True)
    asked = [Request("long", [i % 8 for i in range(100)], params), Request("b", [5, 6], params)]
    with log_to(stream):
        run_loop("serial", SimDevice(), hash_model("sim", frozenset()), asked, config, cost)
    lines = [line.split("] ", 1)[1] for line in stream.getvalue().splitlines()]
    numbers = [[float(it) for it in re.findall(r"(?<=[ =/])[\d.]+(?!\w)", it)] for it in lines]
    assert numbers[:7] == [
        [1024, 40, 16384, 16, 256],
        [1, 40, 0, 0.04, 0, 1], [40, 100, 1, 3],
        [1, 40, 0, 0.08, 0, 1], [80, 100, 2, 3],
        [2, 22, 0, 0.1, 0, 0], [100, 100, 3, 3],
    ]  # fmt: skip
    assert numbers[7][:3] == [2, 182, 0.18], "after 40 steps of two"
    assert numbers[8][3] == 2000, "tokens each second"
    assert not logger.handlers, "log_to leaves nothing behind"
