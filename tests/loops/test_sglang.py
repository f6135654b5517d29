"""SGLang's overlap: what disables it and what sampling waits for, its worker thread, and MLX's two
lazy graphs: when the chain holds, and what its steps hold."""

from __future__ import annotations

import os
import signal
from itertools import count, pairwise, product
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import pytest
from hypothesis import given, settings

from minisched.core import (
    FinishReason,
    ForwardMode,
    NoBatch,
    Output,
    Request,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices import mlx as mlx_steps
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.overlap import is_disable_overlap_for_batch
from minisched.loops.overlap_thread import FutureStep, TpModelWorkerClient
from minisched.loops.run import Run, fresh, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_arrays import HashArrays
from minisched.models.mlx_lm import MlxLm
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.worker import Step
from tests.support import (
    EVERY_BACKEND,
    Workload,
    check_no_thread_left,
    hash_model,
    many,
    marked,
    named,
    no_rows,
    open_device,
    play_timed,
    some_requests,
    timed_workloads,
    tokens,
)

COST = CostModel(
    {"schedule": 5, "prepare": 2, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=20, sample=2, copy=1,
)  # fmt: skip


# -- overlap: what keeps a batch from overlapping --------------------------------------------------

BATCHES = {
    "none": NoBatch.WAIT,
    "extend": no_rows(1, ForwardMode.EXTEND, 1),
    "decode": no_rows(1, ForwardMode.DECODE, 0),
    "verify": no_rows(1, ForwardMode.TARGET_VERIFY, 0),
    "mixed": no_rows(1, ForwardMode.MIXED, 1),
}


def test_overlap_is_disabled_for_two_reasons_and_no_other() -> None:
    for kind, last, option, speculates, missing, barrier in product(
        BATCHES,
        BATCHES,
        (False, True),
        ("", "NGRAM_GPU", "NGRAM"),
        ("", "grammar", "penalty"),
        (False, True),
    ):
        engine = Mock()
        engine.scheduler.config.speculative_algorithm = speculates
        engine.missing_history.return_value = missing
        disabled = is_disable_overlap_for_batch(
            engine, BATCHES[kind], BATCHES[last], option, barrier
        )
        prefills = option and {kind, last} <= {"extend", "mixed"}  # prompts are in both
        has_barrier = barrier and speculates != "NGRAM"
        blind_draft = kind in ("decode", "verify") and speculates and not has_barrier
        assert disabled == ("prefill" if prefills else missing if blind_draft else "")


@pytest.mark.parametrize("loop", ["overlap", "mixed"])
@pytest.mark.parametrize("rule", [True, False])
def test_steps_with_prompts_overlap_unless_the_rule_says_no(loop: str, rule: bool) -> None:
    late = Request("b", [3] * 24, tokens(3), arrival_time=60 * MILLISECOND)
    run = run_loop(
        loop, SimDevice(), HashModel(), [Request("a", [1] * 14, tokens(20)), late],
        SchedulerConfig(chunked_prefill_size=6), SIM_COST, disable_consecutive_prefill_overlap=rule,
    )  # fmt: skip
    launches, done = (named(run.trace, name, "host") for name in ("launch", "process"))
    pairs, overlapped = set(), 0
    for before, after in pairwise(launches[step] for step in sorted(launches)):
        if {before.mode, after.mode} <= {"extend", "mixed"}:
            pairs.add((before.mode, after.mode))
            overlapped += done[before.step].end > after.start
    assert (overlapped == 0) is rule
    assert pairs >= {("extend", "extend")} | ({("mixed", "mixed")} if loop == "mixed" else set())


# -- overlap_thread: who waits for whom ------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"delay_sample": True}], ids=str)
def test_the_thread_launches_and_the_scheduler_does_not(options: dict[str, Any]) -> None:
    requests = [Request("r0", [1, 2, 3], tokens(9)), Request("r1", [4, 5], tokens(6), 70)]
    model = HashModel()
    trace = run_loop("overlap_thread", SimDevice(), model, requests, cost=COST, **options).trace
    assert not named(trace, "launch", "host")
    prepared = named(trace, "prepare", "host")
    launches = named(trace, "launch", "worker thread")
    samplings = named(trace, "launch sample", "worker thread")
    forwards, samples = named(trace, "forward"), named(trace, "sample")
    assert launches.keys() == samplings.keys() == forwards.keys() == samples.keys() != set()
    for step, launch in launches.items():
        assert prepared[step].end <= launch.start  # sync_event
        assert launch.end <= forwards[step].start
        assert launch.end <= samplings[step].start and samplings[step].end <= samples[step].start
    edges = {(edge.src, edge.dst) for edge in trace.edges if edge.kind == "launch"}
    assert edges == {(launches[step].id, forwards[step].id) for step in launches}


def test_what_the_client_gives_back_at_once_is_what_the_next_step_reads() -> None:
    frontend, config = Frontend([Request("r0", [1, 2, 3], tokens(9))]), SchedulerConfig()
    engine = make_engine("overlap_thread", SimDevice(), HashModel(), config, frontend, COST)
    engine.recv_requests()
    client = TpModelWorkerClient(engine)

    def put() -> FutureStep:
        batch = engine.get_next_batch_to_run()
        assert isinstance(batch, ScheduleBatch)
        return client.forward_batch_generation(batch, False)

    first, second = put(), put()
    assert not second.launch_done.query()  # nobody has launched it
    assert first.step.flat is not None and second.step.batch.ids == [(None,)]
    futures = [-slot for slot in first.step.flat.future_slots]
    second.launch_done.synchronize()
    assert engine.worker.batch_record_buf[-1].ids == futures == [-1]


# -- overlap_thread: nothing stays behind ----------------------------------------------------------


@EVERY_BACKEND
def test_ctrl_c_ends_every_request_and_leaves_no_thread_and_no_lease(backend: str) -> None:
    requests = [Request(f"r{i}", [1, 2], tokens(500)) for i in range(3)]
    requests.append(Request("late", [1], tokens(500), arrival_time=10**15))
    calls = count(1)

    def press_ctrl_c(output: Output) -> None:
        if next(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    model, device = hash_model(backend, frozenset()), open_device(backend)
    run = run_loop("overlap_thread", device, model, requests, on_output=press_ctrl_c)
    assert run.interrupted and not marked(run.trace, "stopped")
    assert {req.finish_reason for req in requests} == {FinishReason.ABORT}
    assert all(req.lease is None for req in requests)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    check_no_thread_left()


# -- mlx_async: when the chain holds ---------------------------------------------------------------

MLX_COST = CostModel({"schedule": 3, "process": 3}, forward_base=10, sample=1, copy=1)


def of_length(rid: str, prompt_len: int, count: int, arrival_time: int = 0) -> Request:
    return Request(rid, range(prompt_len), tokens(count), arrival_time)


def run(requests: list[Request], config: SchedulerConfig | None = None, **options: Any) -> Trace:
    model = HashModel(19, eos_ids=frozenset())
    return run_loop("mlx_async", SimDevice(), model, requests, config, MLX_COST, **options).trace


def chained(trace: Trace) -> set[int]:
    steps = {item.id: item for item in trace.slices}
    tokens = (steps[edge.dst] for edge in trace.edges if edge.kind == "token")
    return {item.step for item in tokens if item.lane == "forward"}


@pytest.mark.parametrize(("length", "count", "every"), [(3, 1, 0), (12, 1, 1), (20, 4, 7)])
def test_every_decode_but_the_first_is_chained_while_nobody_waits(
    length: int, count: int, every: int
) -> None:
    trace = run([of_length(f"r{i}", 2, length) for i in range(count)], clear_cache_every=every)
    decodes = {s.step for s in trace.on("forward") if s.mode == "decode"}
    assert chained(trace) == decodes - {min(decodes)}
    assert marked(trace).total() == count, "all end in one step, while one more is in flight"
    cleared = sum(mark.name == "clear cache" for mark in trace.marks)
    assert cleared == (len(decodes) // every if every else 0)


@given(workload=timed_workloads())
@settings(max_examples=many(12, 60))
def test_nothing_is_chained_while_anybody_waits_and_two_are_in_flight_at_most(
    workload: Workload,
) -> None:
    def watch(engine: Engine) -> None:
        prepare_batch = engine.prepare_batch

        def look(batch: ScheduleBatch, previous: Step | None = None) -> Step:
            assert engine.scheduler.batches_in_flight == (2 if previous else 1)
            if previous is not None:
                assert not engine.scheduler.waiting_queue
                assert batch.reqs == previous.batch.reqs and batch.mode is ForwardMode.DECODE
                assert batch.step == previous.batch.step + 1
            return prepare_batch(batch, previous)

        engine.prepare_batch = look  # type: ignore[method-assign,assignment]

    play_timed(workload, "mlx_async", "chain", {}, watch)


# -- mlx_async: with chain_extend, prompts and ends are in the chain, too --------------------------

CHAINS_ALL = {"chain_extend": True}


def arriving(**options: Any) -> Run:
    """Six requests that come one after the other, with prompts of two chunks."""
    requests = [of_length(f"r{i}", 7, 6 + i, 20 * i) for i in range(6)]
    model, config = HashModel(19, eos_ids=frozenset()), SchedulerConfig(chunked_prefill_size=4)
    return run_loop("mlx_async", SimDevice(), model, requests, config, MLX_COST, **options)


def test_extends_and_decodes_are_chained_on_each_other_and_the_device_does_not_wait() -> None:
    plain, all_chained = (arriving(**options) for options in ({}, CHAINS_ALL))
    assert all_chained.outputs == plain.outputs
    idle = [
        sum(after.start - before.end for before, after in pairwise(run.trace.on("forward")))
        for run in (plain, all_chained)
    ]
    assert idle[0] > 0 and idle[1] == 0
    for run, is_chained in ((plain, False), (all_chained, True)):
        forwards = named(run.trace, "forward")
        done = {item.step: item.end for item in named(run.trace, "process", "host").values()}
        launched = named(run.trace, "launch", "host")
        pairs = {
            (forwards[step].mode, forwards[step + 1].mode)
            for step in range(1, len(forwards))
            if launched[step + 1].end < done[step]
        }
        every = {(one, other) for one in ("extend", "decode") for other in ("extend", "decode")}
        assert pairs == (every if is_chained else {("decode", "decode")})


@pytest.mark.parametrize(("gap", "places", "least", "most"), [
    (0, 8, 1.4, 1.6),
    pytest.param(40, 24, 1.04, 1.12, marks=pytest.mark.thorough),
    pytest.param(100, 24, 1.0, 1.03, marks=pytest.mark.thorough),
])  # fmt: skip
def test_what_chaining_prompts_brings(gap: int, places: int, least: float, most: float) -> None:
    rng = Random(1)
    requests = [
        Request(
            f"r{i}", [rng.randrange(200) for _ in range(40)], tokens(rng.randint(16, 48)),
            i * gap * MILLISECOND,
        )
        for i in range(24)
    ]  # fmt: skip
    config = SchedulerConfig(kv_tokens=2400, max_running_requests=places, chunked_prefill_size=64)

    def makespan(loop: str, **options: Any) -> int:
        again = [fresh(request) for request in requests]
        return run_loop(
            loop, SimDevice(), HashModel(eos_ids=frozenset()), again, config, SIM_COST, **options
        ).trace.end

    plain, all_chained = makespan("mlx_async"), makespan("mlx_async", **CHAINS_ALL)
    assert least < plain / all_chained < most
    assert abs(all_chained - makespan("overlap")) < 0.03 * all_chained


@given(workload=timed_workloads())
@settings(max_examples=many(12, 60))
def test_a_chained_step_takes_no_token_but_from_the_one_step_in_flight(workload: Workload) -> None:
    def watch(engine: Engine) -> None:
        prepare_batch = engine.prepare_batch

        def look(batch: ScheduleBatch, previous: Step | None = None) -> Step:
            assert engine.scheduler.batches_in_flight <= 2
            made = previous.batch.leases if previous else []
            for row in batch.rows:
                assert None not in row.ids or row.lease in made
            return prepare_batch(batch, previous)

        engine.prepare_batch = look  # type: ignore[method-assign,assignment]

    play_timed(workload, "mlx_async", "chain", CHAINS_ALL, watch)


def test_a_step_waits_for_the_one_before_it_where_penalties_have_to_see_its_token() -> None:
    wish = SamplingParams(max_new_tokens=6, presence_penalty=0.5)
    requests = [Request("a", [1, 2, 3], wish), of_length("b", 3, 6, 40)]
    trace = run(requests, **CHAINS_ALL)
    launched, done = (named(trace, name, "host") for name in ("launch", "process"))
    with_a = sorted(step for step, item in named(trace, "forward").items() if "a" in item.rids)
    assert len(with_a) >= 6
    assert all(done[one].end <= launched[other].start for one, other in pairwise(with_a))


# -- mlx_async: what its steps hold, and how they are handed over ----------------------------------


def launched(requests: list[Request], **options: Any) -> list[ScheduleBatch]:
    """The batches of a run, in the order of their launches."""
    batches: list[ScheduleBatch] = []
    chunks = SchedulerConfig(chunked_prefill_size=4)

    def watch(engine: Engine) -> None:
        launch_batch = engine.launch_batch

        def look(step: Step) -> Step:
            batches.append(step.batch)
            return launch_batch(step)

        engine.launch_batch = look  # type: ignore[method-assign,assignment]

    play_timed(Workload(requests, [], {}, chunks), "mlx_async", "chain", options, watch)
    return batches


@pytest.mark.parametrize("options", [{}, CHAINS_ALL], ids=str)
def test_a_last_chunk_of_one_token_is_an_extend_and_no_decode(options: dict[str, Any]) -> None:
    batches = launched([of_length("long", 9, 2)], **options)
    assert [(batch.mode, batch.ids) for batch in batches[:3]] == [
        (ForwardMode.EXTEND, [(0, 1, 2, 3)]),
        (ForwardMode.EXTEND, [(4, 5, 6, 7)]),
        (ForwardMode.EXTEND, [(8,)]),
    ]
    modes = [batch.mode for batch in batches[3:]]
    assert modes == [ForwardMode.DECODE] * 2, "the last one is wasted"


def test_a_request_that_reuses_the_id_of_one_in_flight_starts_with_its_own_prompt() -> None:
    both_in_flight = 0
    for at in range(70):
        batches = launched([of_length("a", 3, 4), of_length("a", 4, 4, at)], **CHAINS_ALL)
        for before, batch in pairwise(batches):
            if batch.step > 1 and batch.mode is ForwardMode.EXTEND:
                assert [row.end for row in batch.rows] == [4]
                both_in_flight += before.mode is ForwardMode.DECODE and before.rids == ("a",)
    assert both_in_flight


@pytest.mark.parametrize("model", ["hash", "llama"])
def test_tokens_and_caches_are_handed_over_together(
    model: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, async_eval = MlxDevice(), mx.async_eval
    handed: list[tuple[mx.array, ...]] = []

    def look(*arrays: mx.array) -> None:
        handed.append(arrays)
        async_eval(*arrays)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mlx_steps.mx, "async_eval", look)
    loaded: Any = (
        HashArrays(eos_ids=frozenset()) if model == "hash" else MlxLm.from_directory(tiny_llama)
    )
    done = run_loop("mlx_async", device, loaded, some_requests(6))
    assert len(handed) == len({s.step for s in done.trace.slices if s.name == "forward"})
    state = [array.shape for array in device._cache_state_arrays()]
    ops, markers = 3, 3
    for arrays in handed:
        assert [array.shape for array in arrays[ops + markers :]] == state
