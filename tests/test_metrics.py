"""Figures of requests: against what clients heard, against the trace, and against each other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.engine.load import Load
from minisched.engine.metrics import Metrics, RequestMetrics, percentiles
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import SOME_LOOPS, TimedRun, Workload, a_request, play_timed, timed_workloads


@given(values=st.lists(st.integers(0, 50), max_size=300))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    found = percentiles(iter(values))
    if not values:
        assert found is None
        return
    assert found is not None
    for percent, value in zip((50, 90, 99), found, strict=True):
        reach = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
        assert value == min(reach)


def heard_at(run: TimedRun, rid: str) -> list[int]:
    return [time for time, output in run.heard if output.rid == rid and output.token is not None]


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=100, deadline=None)
def test_times_are_those_at_which_clients_heard_and_add_up(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    metrics = run.engine.metrics
    assert not metrics.live and len(metrics.ended) == len(workload.requests)
    requests = {req.rid: req for req in workload.requests}
    ends = {output.rid: (t, output) for t, output in run.heard if output.finish_reason}
    for item in metrics.ended:
        req, times = requests[item.rid], heard_at(run, item.rid)
        ended_at, last = ends[item.rid]
        assert item.arrival == req.arrival_time
        assert item.finish_reason is req.finish_reason and item.retractions == req.retractions
        assert (item.prompt_tokens, item.output_tokens) == (len(req.prompt), len(req.output_ids))
        assert item.end == ended_at and item.e2e_ns == ended_at - item.arrival
        assert item.first_token == (times[0] if times else None)
        assert list(item.itls) == [b - a for a, b in pairwise(times)]
        if item.ttft_ns is None:
            assert not req.output_ids
        else:
            assert item.queue_ns is not None and 0 < item.queue_ns < item.ttft_ns
            assert item.ttft_ns + sum(item.itls) == times[-1] - req.arrival_time
            if last.token is not None:
                assert item.ttft_ns + sum(item.itls) == item.e2e_ns
        check_queue(item, run.trace)


def check_queue(item: RequestMetrics, trace: Trace) -> None:
    """It was first scheduled at the end of the first schedule slice that gave it a batch."""
    prepares = [s.start for s in trace.on("host") if s.name == "prepare" and item.rid in s.rids]
    schedules = [s.end for s in trace.on("host") if s.name == "schedule"]
    if prepares:
        assert item.scheduled == max(end for end in schedules if end <= prepares[0])
    else:
        assert item.scheduled is None and item.queue_ns is None


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=60, deadline=None)
def test_totals_agree_with_the_requests_and_with_the_trace(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    metrics, trace = run.engine.metrics, run.trace
    assert metrics.output_tokens == sum(len(req.output_ids) for req in workload.requests)
    whole = (FinishReason.STOP, FinishReason.LENGTH)
    assert metrics.num_finished == sum(r.finish_reason in whole for r in workload.requests)
    assert metrics.ttft == percentiles(i.ttft_ns for i in metrics.ended if i.ttft_ns is not None)
    assert metrics.itl == percentiles(itl for item in metrics.ended for itl in item.itls)
    hits = first_admissions(trace)
    assert {item.rid: item.cached_tokens for item in metrics.ended if item.scheduled} == hits
    assert 0 <= metrics.cache_hit_rate < 1, "the last token of a prompt is always computed"
    if not any(req.retractions for req in workload.requests):
        prompts = sum(item.prompt_tokens for item in metrics.ended if item.scheduled)
        assert (metrics.cached_tokens, metrics.admitted_tokens) == (sum(hits.values()), prompts)


def first_admissions(trace: Trace) -> dict[str, int]:
    """What the cache gave each request when it was admitted first, by its ``admit`` marks."""
    hits: dict[str, int] = {}
    for mark in trace.marks:
        if mark.name == "admit":
            hits.setdefault(str(mark.attrs["rid"]), int(mark.attrs["hit_len"]))
    return hits


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=60, deadline=None)
def test_averages_are_the_areas_under_the_counters(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    run = play_timed(workload, loop, relay, options)
    load, now = run.engine.metrics.load, dict.fromkeys(("kv used", "running", "waiting"), 0)
    area, busy, since = dict.fromkeys(now, 0), 0, 0
    for counter in run.trace.counters:
        if counter.name not in now:
            continue
        if now["kv used"]:
            busy += counter.time - since
            for name, value in now.items():
                area[name] += value * (counter.time - since)
        since, now[counter.name] = counter.time, counter.value
    assert load.busy_ns == busy
    for name, average in (("kv used", load.used_tokens), ("running", load.running),
                          ("waiting", load.waiting)):  # fmt: skip
        assert average == area[name] / max(1, busy)  # 0 where nobody ever held memory


def test_idle_time_does_not_count_in_an_average() -> None:
    load = Load()
    for now, used, running, waiting in [(10, 8, 1, 4), (20, 4, 3, 0), (40, 0, 0, 7), (90, 2, 1, 0)]:
        load.observe(now, used, running, waiting)
    load.observe(100, 0, 0, 0)
    assert load.busy_ns == 10 + 20 + 10
    assert load.used_tokens == (8 * 10 + 4 * 20 + 2 * 10) / 40
    assert load.running == (1 * 10 + 3 * 20 + 1 * 10) / 40
    assert load.waiting == (4 * 10) / 40


def outputs(rid: str, *tokens: int) -> Iterable[Output]:
    return [Output(rid, token) for token in tokens]


def test_who_is_refused_or_given_up_has_no_time_to_first_token() -> None:
    params = SamplingParams(max_new_tokens=50, ignore_eos=True)
    requests = [
        Request("empty", []),
        Request("waits", [1], params, 1),
        Request("runs", [1], params),
    ]
    config = SchedulerConfig(max_running_requests=1)
    run = play_timed(Workload(requests, [], {200: "waits"}, config), "serial", "host", {})
    metrics = {item.rid: item for item in run.engine.metrics.ended}
    for rid in ("empty", "waits"):
        assert metrics[rid].ttft_ns is metrics[rid].queue_ns is None
        assert metrics[rid].e2e_ns is not None and metrics[rid].output_tokens == 0
    assert metrics["empty"].finish_reason is FinishReason.ERROR
    assert metrics["waits"].finish_reason is FinishReason.ABORT
    assert run.engine.metrics.num_finished == 1
    assert run.engine.metrics.ttft == (metrics["runs"].ttft_ns,) * 3


@pytest.mark.parametrize("arrival", [0, 100])
def test_a_refused_namesake_leaves_the_first_one_alone(arrival: int) -> None:
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    requests = [Request("r", [1], params), Request("r", [2], params, arrival)]
    run = play_timed(Workload(requests, [], {}, SchedulerConfig()), "serial", "host", {})
    refused, whole = run.engine.metrics.ended
    assert (refused.finish_reason, refused.output_tokens) == (FinishReason.ERROR, 0)
    assert (whole.finish_reason, whole.output_tokens) == (FinishReason.LENGTH, 20)


def test_nobody_arrived_before_the_engine_was_there() -> None:
    """On a wall clock, loading a model takes time in which no request can have waited."""
    metrics = Metrics(started=1000)
    early, late = a_request("early", 0), a_request("late", 1500)
    for req in (early, late):
        metrics.on_received(req, 1600)
    metrics.on_outputs(outputs("early", 1, 1), 2000)
    metrics.on_outputs(outputs("late", 1), 3000)
    assert [item.ttft_ns for _, item in metrics.live.values()] == [1000, 1500]
    assert metrics.throughput == 3 / (2000 / 1e9)


def test_of_nothing_there_are_no_figures() -> None:
    metrics = Metrics()
    assert metrics.ttft is metrics.itl is metrics.queue is None
    assert metrics.cache_hit_rate == metrics.throughput == metrics.load.running == 0.0
