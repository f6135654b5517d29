"""The log's lines parse, and their numbers are those of the trace."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Output, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.log import log_to, logger
from minisched.loops.run import run_loop
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import (
    COST,
    SOME_LOOPS,
    VOCAB,
    TimedRun,
    Workload,
    hash_model,
    play_timed,
    timed_workloads,
)

NUMBER = r"(\d+(?:\.\d+)?)"
PATTERNS = {
    "start": r"max_total_num_tokens=(\d+), chunked_prefill_size=(-?\d+), "
    r"max_prefill_tokens=(\d+), max_running_requests=(\d+), context_len=(\d+)",
    "prefill": rf"Prefill batch\. #new-seq: {NUMBER}, #new-token: {NUMBER}, "
    rf"#cached-token: {NUMBER}, token usage: {NUMBER}, #running-req: {NUMBER}, "
    rf"#queue-req: {NUMBER}",
    "decode": rf"Decode batch\. #running-req: {NUMBER}, #token: {NUMBER}, token usage: {NUMBER}, "
    rf"gen throughput \(token/s\): {NUMBER}, #queue-req: {NUMBER}",
    "chunk": rf"Chunked prefill\. rid: (\w+), #done-token: {NUMBER}, #prompt-token: {NUMBER}, "
    rf"chunk: {NUMBER}/{NUMBER}",
    "retract": rf"KV cache pool is full\. Retract requests\. #retracted_reqs: {NUMBER}, "
    rf"#new_token_ratio: {NUMBER} -> {NUMBER}",
    "recompute": rf"KV cache pool is full\. Preempt the newest\. #retracted_reqs: {NUMBER}",
    "preempt": rf"Priority preemption\. Retract requests\. #retracted_reqs: {NUMBER}",
}


class Line(NamedTuple):
    """One parsed line."""

    kind: str
    time: int
    values: list[str]

    def number(self, index: int) -> float:
        """One of its values."""
        return float(self.values[index])


@contextmanager
def listening() -> Iterator[list[Line]]:
    """Every line that is logged meanwhile; one that fits no pattern is an error."""
    lines: list[Line] = []

    class Parser(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            found = {kind: re.fullmatch(p, text) for kind, p in PATTERNS.items()}
            [(kind, match)] = [(kind, match) for kind, match in found.items() if match]
            lines.append(Line(kind, record.device_ns, list(match.groups())))  # type: ignore[attr-defined]

    handler, level = Parser(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def logged(
    workload: Workload, loop: str, relay: str, options: dict[str, Any], interval: int
) -> tuple[TimedRun, dict[str, list[Line]]]:
    def every(engine: Engine) -> None:
        engine.log.decode_log_interval = interval

    with listening() as lines:
        run = play_timed(workload, loop, relay, options, every)
    by_kind = {kind: [line for line in lines if line.kind == kind] for kind in PATTERNS}
    return run, by_kind


def counter(trace: Trace, name: str, time: int) -> int:
    """What a counter was at a time."""
    values = [item.value for item in trace.counters if item.name == name and item.time <= time]
    return values[-1] if values else 0


@SOME_LOOPS
@given(workload=timed_workloads(), interval=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_every_number_is_one_of_the_trace(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, interval: int
) -> None:
    run, lines = logged(workload, loop, relay, options, interval)
    trace, config = run.trace, run.engine.scheduler.config
    [start] = lines["start"]
    assert [int(value) for value in start.values] == [
        config.num_slots, config.chunked_prefill_size, config.max_prefill_tokens,
        config.max_running_requests, config.context_len,
    ]  # fmt: skip
    for line in lines["prefill"]:
        assert line.number(3) == round(counter(trace, "kv used", line.time) / config.num_slots, 2)
        assert line.number(5) == counter(trace, "waiting", line.time)
    for line in lines["decode"]:
        used = counter(trace, "kv used", line.time)
        assert line.number(0) == counter(trace, "running", line.time)
        assert line.number(1) == used and line.number(2) == round(used / config.num_slots, 2)
        assert line.number(4) == counter(trace, "waiting", line.time)
    retracted = sum(mark.name == "retraction" for mark in trace.marks)
    assert (
        sum(line.number(0) for line in lines["retract"] + lines["recompute"] + lines["preempt"])
        == retracted
    )
    decodes = [item for item in trace.on("host")
               if item.name == "process" and item.mode != ForwardMode.EXTEND.value]  # fmt: skip
    assert len(lines["decode"]) == len(decodes) // interval


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=80, deadline=None)
def test_each_prefill_batch_has_its_line(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    """Against the batches that were committed, and their ``admit`` marks."""
    batches: list[tuple[int, ScheduleBatch, int]] = []  # time, batch, running before

    def spy(engine: Engine) -> None:
        next_batch = engine.scheduler.next_batch

        def watch() -> Any:
            batch = next_batch()
            if batch and batch.num_extend_reqs:
                joined = {row.req for row in batch.rows[: batch.num_extend_reqs] if row.deliver}
                running = [req for req in engine.scheduler.running_batch if req not in joined]
                batches.append((engine.device.now(), batch, len(running)))
            return batch

        engine.scheduler.next_batch = watch  # type: ignore[method-assign]

    with listening() as lines:
        run = play_timed(workload, loop, relay, options, spy)
    prefills = [line for line in lines if line.kind == "prefill"]
    chunks = [line for line in lines if line.kind == "chunk"]
    assert [line.time for line in prefills] == [time for time, _, _ in batches]
    admits = [mark for mark in run.trace.marks if mark.name == "admit"]
    for line, (time, batch, running) in zip(prefills, batches, strict=True):
        prompts = batch.rows[: batch.num_extend_reqs]
        assert line.number(0) == len(prompts) and line.number(4) == running
        assert line.number(1) == sum(row.extend_len for row in prompts)
        going_on = {c.values[0] for c in chunks if c.time == time and c.number(3) > 1}
        new = [mark for mark in admits if mark.time == time and mark.attrs["rid"] not in going_on]
        assert line.number(2) == sum(int(mark.attrs["hit_len"]) for mark in new)
    check_chunks(chunks)


def check_chunks(chunks: list[Line]) -> None:
    """The chunks of one admission count up to the end of the prompt."""
    before: dict[str, Line] = {}
    for line in chunks:
        rid, (done, total, number, of) = line.values[0], map(line.number, range(1, 5))
        assert done <= total and (done == total) == (number == of) and number <= of
        if number > 1:
            last = before[rid]
            assert last.number(1) < done and last.number(3) == number - 1
        before[rid] = line


@SOME_LOOPS
@given(workload=timed_workloads())
@settings(max_examples=40, deadline=None)
def test_throughput_times_time_is_every_token_of_a_decode_batch(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    tokens = 0

    def spy(engine: Engine) -> None:
        engine.log.decode_log_interval = 1
        process = engine.scheduler.process

        def watch(batch: ScheduleBatch, result: Result) -> list[Output]:
            nonlocal tokens
            outputs = process(batch, result)
            if batch.mode is not ForwardMode.EXTEND:
                tokens += sum(output.token is not None for output in outputs)
            return outputs

        engine.scheduler.process = watch  # type: ignore[method-assign]

    with listening() as lines:
        play_timed(workload, loop, relay, options, spy)
    decodes = [line for line in lines if line.kind == "decode"]
    since, counted = 0, 0
    for line in decodes:
        counted += round(line.number(3) * (line.time - since) / 1e9)
        since = line.time
    assert counted == tokens


def long_prompt(**config: Any) -> tuple[list[Request], SchedulerConfig]:
    params = SamplingParams(max_new_tokens=90, ignore_eos=True)
    requests = [
        Request("long", [i % VOCAB for i in range(100)], params),
        Request("short", [5, 6], params),
    ]
    return requests, SchedulerConfig(context_len=256, **config)


def test_the_lines_as_one_reads_them() -> None:
    requests, config = long_prompt(chunked_prefill_size=40)
    stream = io.StringIO()
    with log_to(stream):
        run_loop("serial", SimDevice(), hash_model("sim", frozenset()), requests, config, COST)
    lines = stream.getvalue().splitlines()
    texts = [line.partition("] ")[2] for line in lines]
    assert texts[:8] == [
        "max_total_num_tokens=1024, chunked_prefill_size=40, max_prefill_tokens=16384, "
        "max_running_requests=16, context_len=256",
        "Prefill batch. #new-seq: 1, #new-token: 40, #cached-token: 0, token usage: 0.04, "
        "#running-req: 0, #queue-req: 1",
        "Chunked prefill. rid: long, #done-token: 40, #prompt-token: 100, chunk: 1/3",
        "Prefill batch. #new-seq: 1, #new-token: 40, #cached-token: 0, token usage: 0.08, "
        "#running-req: 0, #queue-req: 1",
        "Chunked prefill. rid: long, #done-token: 80, #prompt-token: 100, chunk: 2/3",
        "Prefill batch. #new-seq: 2, #new-token: 22, #cached-token: 0, token usage: 0.10, "
        "#running-req: 0, #queue-req: 0",
        "Chunked prefill. rid: long, #done-token: 100, #prompt-token: 100, chunk: 3/3",
        texts[7],
    ]
    assert len(lines) == 7 + 89 // 40
    assert texts[7].startswith("Decode batch. #running-req: 2, #token: 182, token usage: 0.18, ")
    assert lines[0].startswith("[0.000000] ") and re.match(r"\[0\.00000\d\] ", lines[-1])
    assert not logger.handlers, "log_to leaves nothing behind"


def test_a_recipe_counts_retractions() -> None:
    """``grep -c "Retract requests"``, on a pool that is too small by far."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [
        Request(rid, range(at, at + 8), params, arrival_time=30 * at)
        for at, rid in enumerate("abcd")
    ]
    config = SchedulerConfig(kv_tokens=44, schedule_conservativeness=0)
    model, stream = hash_model("sim", frozenset()), io.StringIO()
    with log_to(stream):
        run = run_loop("overlap", SimDevice(), model, requests, config, COST)
    found = re.findall(PATTERNS["retract"], stream.getvalue())
    marks = [mark for mark in run.trace.marks if mark.name == "retraction"]
    assert len(marks) == sum(int(count) for count, _, _ in found) > 0
    assert all(float(after) > float(before) for _, before, after in found)


def test_nothing_is_computed_for_a_log_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "makeRecord", None)  # calling it would raise
    requests, config = long_prompt(chunked_prefill_size=40)

    class NoScheduler:
        """Raises at any look."""

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the log looked at {name}")

    def blind(engine: Engine) -> None:
        engine.log.scheduler = NoScheduler()  # type: ignore[assignment]

    assert not logger.isEnabledFor(logging.INFO)
    play_timed(Workload(requests, [], {}, config), "overlap", "ring", {}, blind)
    assert all(len(req.output_ids) == 90 for req in requests)
