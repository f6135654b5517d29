"""Figures of requests and the log's lines: against what clients heard, and against the trace."""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, ForwardMode, Output, Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.log import log_to, logger
from minisched.engine.metrics import Metrics, RequestMetrics, percentiles
from minisched.loops.run import run_loop
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import (
    COST,
    SOME_LOOPS,
    TimedRun,
    Workload,
    a_request,
    hash_model,
    many,
    play_timed,
    timed_workloads,
)

# The log's lines, each with the names of its numbers.
LINES = {
    "start": "max_total_num_tokens={slots}, chunked_prefill_size={chunk}, max_prefill_tokens={most}"
    ", max_running_requests={running}, context_len={context}",
    "prefill": "Prefill batch. #new-seq: {seqs}, #new-token: {tokens}, #cached-token: {cached}, "
    "token usage: {usage}, #running-req: {running}, #queue-req: {queue}",
    "decode": "Decode batch. #running-req: {running}, #token: {used}, token usage: {usage}, "
    "gen throughput (token/s): {speed}, #queue-req: {queue}",
    "chunk": "Chunked prefill. rid: {rid}, #done-token: {done}, #prompt-token: {total}, "
    "chunk: {number}/{of}",
    "retract": "KV cache pool is full. Retract requests. #retracted_reqs: {retracted}, "
    "#new_token_ratio: {before} -> {after}",
    "recompute": "KV cache pool is full. Preempt the newest. #retracted_reqs: {retracted}",
    "preempt": "Priority preemption. Retract requests. #retracted_reqs: {retracted}",
}
PATTERNS = {
    kind: re.sub(r"\\{(\w+)\\}", r"(?P<\1>[-.\\w]+)", re.escape(text))
    for kind, text in LINES.items()
}
Line = tuple[str, int, dict[str, str]]  # kind, time, numbers


@contextmanager
def listening() -> Iterator[list[Line]]:
    """Every line that is logged meanwhile; one that fits no pattern is an error."""
    lines: list[Line] = []

    class Parser(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = {kind: re.fullmatch(p, record.getMessage()) for kind, p in PATTERNS.items()}
            [(kind, match)] = [(kind, match) for kind, match in found.items() if match]
            lines.append((kind, record.device_ns, match.groupdict()))  # type: ignore[attr-defined]

    handler, level = Parser(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@SOME_LOOPS
@given(workload=timed_workloads(), interval=st.integers(1, 4))
@settings(max_examples=many(6, 100))
def test_every_figure_is_what_clients_heard_and_the_trace_says(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, interval: int
) -> None:
    with listening() as lines:

        def patch(engine: Engine) -> None:
            engine.log.decode_log_interval = interval

        run = play_timed(workload, loop, relay, options, patch)
    check_times(run, workload)
    check_totals(run, workload)
    check_averages(run)
    check_log(run, lines, interval)


# -- times and totals --------------------------------------------------------------------------


def check_times(run: TimedRun, workload: Workload) -> None:
    """Times are those at which clients heard, and add up."""
    metrics = run.engine.metrics
    assert not metrics.live and len(metrics.ended) == len(workload.requests)
    requests = {req.rid: req for req in workload.requests}
    for item in metrics.ended:
        req = requests[item.rid]
        heard = [(t, output) for t, output in run.heard if output.rid == item.rid]
        times = [time for time, output in heard if output.token is not None]
        assert item.finish_reason is req.finish_reason and item.retractions == req.retractions
        assert (item.prompt_tokens, item.output_tokens) == (len(req.prompt), len(req.output_ids))
        assert (item.arrival, item.end) == (req.arrival_time, heard[-1][0])
        assert item.e2e_ns == item.end - item.arrival
        assert item.first_token == (times[0] if times else None)
        assert list(item.itls) == [b - a for a, b in pairwise(times)]
        if item.ttft_ns is None:
            assert not req.output_ids
        else:
            assert item.queue_ns is not None and 0 < item.queue_ns < item.ttft_ns
            assert item.ttft_ns + sum(item.itls) == times[-1] - req.arrival_time
        check_queue(item, run.trace)


def check_queue(item: RequestMetrics, trace: Trace) -> None:
    """It was first scheduled at the end of the first schedule slice that gave it a batch."""
    prepares = [s.start for s in trace.on("host") if s.name == "prepare" and item.rid in s.rids]
    schedules = [s.end for s in trace.on("host") if s.name == "schedule"]
    if prepares:
        assert item.scheduled == max(end for end in schedules if end <= prepares[0])
    else:
        assert item.scheduled is None and item.queue_ns is None


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
    if not any(req.retractions for req in workload.requests):
        prompts = sum(item.prompt_tokens for item in ended if item.scheduled)
        assert (metrics.cached_tokens, metrics.admitted_tokens) == (sum(hits.values()), prompts)


def check_averages(run: TimedRun) -> None:
    """They are the areas under the counters, while anybody holds memory."""
    load, now = run.engine.metrics.load, dict.fromkeys(("kv used", "running", "waiting"), 0)
    area, busy, since = dict.fromkeys(now, 0), 0, 0
    for counter in run.trace.counters:
        if counter.name in now:
            if now["kv used"]:
                busy += counter.time - since
                for name, value in now.items():
                    area[name] += value * (counter.time - since)
            since, now[counter.name] = counter.time, counter.value
    assert load.busy_ns == busy
    averages = {"kv used": load.used_tokens, "running": load.running, "waiting": load.waiting}
    assert averages == {name: value / max(1, busy) for name, value in area.items()}


@given(st.lists(st.integers(0, 50), max_size=300))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    found = percentiles(iter(values))
    assert (found is None) == (not values)
    for percent, value in zip((50, 90, 99), found or (), strict=False):
        reach = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
        assert value == min(reach)


def test_who_is_refused_or_given_up_has_no_time_to_first_token() -> None:
    params = SamplingParams(max_new_tokens=50, ignore_eos=True)
    requests = [
        Request("empty", []), Request("waits", [1], params, 1), Request("runs", [1], params),
        Request("runs", [2], params, 100),
    ]  # fmt: skip
    config = SchedulerConfig(max_running_requests=1)
    run = play_timed(Workload(requests, [], {200: "waits"}, config), "serial", "host", {})
    empty, namesake, waits, runs = run.engine.metrics.ended
    for item, reason in ((empty, FinishReason.ERROR), (waits, FinishReason.ABORT)):
        assert item.ttft_ns is item.queue_ns is None
        assert (item.finish_reason, item.output_tokens) == (reason, 0)
    assert (namesake.rid, namesake.finish_reason) == ("runs", FinishReason.ERROR)
    assert (runs.finish_reason, runs.output_tokens) == (FinishReason.LENGTH, 50)
    assert run.engine.metrics.num_finished == 1
    assert run.engine.metrics.ttft == (runs.ttft_ns,) * 3


def test_nobody_arrived_before_the_engine_was_there() -> None:
    """On a wall clock, loading a model takes time in which no request can have waited."""
    metrics = Metrics(started=1000)
    for req in (a_request("early", 0), a_request("late", 1500)):
        metrics.on_received(req, 1600)
    metrics.on_outputs([Output("early", 1), Output("early", 1)], 2000)
    metrics.on_outputs([Output("late", 1)], 3000)
    assert [item.ttft_ns for _, item in metrics.live.values()] == [1000, 1500]
    assert metrics.throughput == 3 / (2000 / 1e9)
    nothing = Metrics()
    assert nothing.ttft is nothing.itl is nothing.queue is None
    assert nothing.cache_hit_rate == nothing.throughput == nothing.load.running == 0.0


# -- the log -----------------------------------------------------------------------------------


def check_log(run: TimedRun, lines: list[Line], interval: int) -> None:
    trace, config = run.trace, run.engine.scheduler.config
    by_kind: dict[str, list[tuple[int, dict[str, float]]]] = {kind: [] for kind in LINES}
    for kind, time, said in lines:
        by_kind[kind].append((time, {k: float(v) for k, v in said.items() if k != "rid"}))
    sizes = (config.num_slots, config.chunked_prefill_size, config.max_prefill_tokens,
             config.max_running_requests, config.context_len)  # fmt: skip
    [(_, start)] = by_kind["start"]
    assert tuple(start.values()) == sizes

    def counter(name: str, time: int) -> int:
        values = [c.value for c in trace.counters if c.name == name and c.time <= time]
        return values[-1] if values else 0

    for time, said in by_kind["prefill"] + by_kind["decode"]:
        assert said["usage"] == round(counter("kv used", time) / config.num_slots, 2)
        assert said["queue"] == counter("waiting", time)
    for time, said in by_kind["decode"]:
        assert said["running"] == counter("running", time)
        assert said["used"] == counter("kv used", time)
    lost = [*by_kind["retract"], *by_kind["recompute"], *by_kind["preempt"]]
    retractions = sum(mark.name == "retraction" for mark in trace.marks)
    assert sum(said["retracted"] for _, said in lost) == retractions
    decodes = [s for s in trace.on("host")
               if s.name == "process" and s.mode != ForwardMode.EXTEND.value]  # fmt: skip
    assert len(by_kind["decode"]) == len(decodes) // interval
    prepared = [s for s in trace.on("host") if s.name == "prepare" and s.mode != "decode"]
    assert len(by_kind["prefill"]) == len(prepared)
    before: dict[str, dict[str, float]] = {}
    for kind, _, words in lines:
        if kind == "chunk":  # those of one admission count up to its end
            said, last = {k: float(v) for k, v in words.items() if k != "rid"}, words["rid"]
            assert said["done"] <= said["total"] and said["number"] <= said["of"]
            assert (said["done"] == said["total"]) == (said["number"] == said["of"])
            assert said["number"] in (1, before.get(last, said)["number"] + 1)
            before[last] = said


def a_long_and_a_short_one() -> list[Request]:
    params = SamplingParams(max_new_tokens=90, ignore_eos=True)
    return [Request("long", [i % 8 for i in range(100)], params), Request("short", [5, 6], params)]


def test_the_lines_of_a_worked_example() -> None:
    config, stream = SchedulerConfig(context_len=256, chunked_prefill_size=40), io.StringIO()
    model = hash_model("sim", frozenset())
    with log_to(stream), listening() as lines:
        run_loop("serial", SimDevice(), model, a_long_and_a_short_one(), config, COST)
    assert [" ".join(said.values()) for _, _, said in lines[:7]] == [
        "1024 40 16384 16 256",
        "1 40 0 0.04 0 1", "long 40 100 1 3",
        "1 40 0 0.08 0 1", "long 80 100 2 3",
        "2 22 0 0.10 0 0", "long 100 100 3 3",
    ]  # fmt: skip
    (_, first, said), (_, second, more) = lines[7:]
    assert (said["running"], said["used"], said["usage"]) == ("2", "182", "0.18")
    for speed, took in ((said["speed"], first), (more["speed"], second - first)):
        assert float(speed) * took / 1e9 == pytest.approx(80)  # 40 batches of two
    times = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert times == [f"[{time / 1e9:.6f}]" for _, time, _ in lines]
    assert not logger.handlers, "log_to leaves nothing behind"


def test_nothing_is_computed_for_a_log_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoScheduler:
        """Raises at any look."""

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the log looked at {name}")

    def blind(engine: Engine) -> None:
        engine.log.scheduler = NoScheduler()  # type: ignore[assignment]

    monkeypatch.setattr(logger, "makeRecord", None)  # calling it would raise
    requests = a_long_and_a_short_one()
    config = SchedulerConfig(context_len=256, chunked_prefill_size=40)
    play_timed(Workload(requests, [], {}, config), "overlap", "ring", {}, blind)
    assert all(len(req.output_ids) == 90 for req in requests)
