"""SGLang's overlap: what disables it and what sampling waits for, its worker thread, and MLX's two
lazy graphs: when the chain holds, what jobs and runner keep."""

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
    Result,
    Row,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices import mlx as mlx_steps
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.mlx_async import (
    LazyTokens,
    MlxPendingExtend,
    MlxPendingJob,
    MlxPendingPrefill,
    MlxTpModelWorker,
)
from minisched.loops.overlap import is_disable_overlap_for_batch
from minisched.loops.overlap_thread import FutureStep, TpModelWorkerClient
from minisched.loops.run import Run, fresh, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_arrays import HashArrays
from minisched.models.llama_mlx import LlamaMlx
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
    for kind, last, option, speculates, missing in product(
        BATCHES, BATCHES, (False, True), ("", "NGRAM"), ("", "grammar", "penalty")
    ):
        engine = Mock()
        engine.scheduler.config.speculative_algorithm = speculates
        engine.missing_history.return_value = missing
        disabled = is_disable_overlap_for_batch(engine, BATCHES[kind], BATCHES[last], option)
        prefills = option and {kind, last} <= {"extend", "mixed"}  # prompts are in both
        blind_draft = kind in ("decode", "verify") and speculates
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
    futures = [-slot for slot in first.step.flat.dests]
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
@settings(max_examples=many(12, 200))
def test_nothing_is_chained_while_anybody_waits_and_two_are_in_flight_at_most(
    workload: Workload,
) -> None:
    def watch(engine: Engine) -> None:
        prepare_batch = engine.prepare_batch

        def look(batch: ScheduleBatch, previous: Step | None = None) -> Step:
            assert engine.scheduler.batches_in_flight <= 2
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
@settings(max_examples=many(12, 200))
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


# -- mlx_async: what its jobs hold, and how their parts begin and end ------------------------------


class Watched(MlxTpModelWorker):
    """Keeps every job, and where each part of one begins and ends."""

    last: Watched
    most = 1  # steps in flight at a fresh launch, with that one

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        super().__init__(engine, clear_cache_every)
        Watched.last = self
        self.jobs: list[MlxPendingJob] = []

    def async_forward_batch_generation_mlx(
        self, batch: ScheduleBatch, prev: LazyTokens | None = None
    ) -> Any:
        assert batch.mode is ForwardMode.IDLE or self.in_flight <= self.most
        job = super().async_forward_batch_generation_mlx(batch, prev)
        parts = [part.lazy_token for part in (*job.prefills, *job.extends)]
        parts += [job.decode.lazy_tokens] if job.decode else []
        rows = [row for part in parts for row in batch.rows[part.at]]
        assert sorted(map(batch.rows.index, rows)) == list(range(len(batch.reqs)))
        assert all(rows_of(part)[0].lease.num_chunks == 1 for part in job.prefills)
        assert all(rows_of(part)[0].lease.num_chunks > 1 for part in job.extends)
        return job

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        self.jobs.append(job)
        return super().finalize_mlx_result(job)

    @property
    def in_flight(self) -> int:
        return self.engine.scheduler.batches_in_flight


class WatchedChain(Watched):
    """The same, with the step before in flight."""

    most = 2


def rows_of(pending: MlxPendingPrefill | MlxPendingExtend) -> tuple[Row, ...]:
    return pending.lazy_token.step.batch.rows[pending.lazy_token.at]


def watched(workload: Workload, **options: Any) -> list[MlxPendingJob]:
    """The jobs of a run; those of nobody are left out."""
    kind = WatchedChain if options else Watched
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("minisched.loops.mlx_async.MlxTpModelWorker", kind)
        play_timed(workload, "mlx_async", "chain", options)
    jobs = Watched.last.jobs
    assert all((job.mode == "idle") == (job.lazy_tokens is None) for job in jobs)
    assert jobs[0].mode == "idle", "nothing is in flight at first"
    return [job for job in jobs if job.mode != "idle"]


def simple(*requests: Request, **config: Any) -> Workload:
    return Workload(list(requests), [], {}, SchedulerConfig(**config))


@pytest.mark.parametrize("options", [{}, CHAINS_ALL], ids=str)
def test_a_chunk_is_a_prefill_first_and_an_extend_after_however_short(
    options: dict[str, Any],
) -> None:
    jobs = watched(simple(of_length("long", 9, 2), chunked_prefill_size=4), **options)
    prefills, extends = (
        [(row.ids, row.end) for job in jobs for part in parts(job) for row in rows_of(part)]
        for parts in (lambda job: job.prefills, lambda job: job.extends)
    )
    assert prefills == [((0, 1, 2, 3), 4)]
    assert extends == [((4, 5, 6, 7), 8), ((8,), 9)]
    modes = [job.mode for job in jobs]
    assert modes == ["extend", "extend", "extend", "decode", "decode"], "the last one is wasted"
    jobs = watched(simple(of_length("a", 2, 6)))  # each goes back to what was scheduled
    assert [job.batch_copy.step for job in jobs] == [1, 2, 3, 4, 5, 6, 7]
    assert [job.schedule_batch.step for job in jobs] == [1, 2, 2, 2, 2, 2, 2]


def test_whoever_gets_the_id_of_one_whose_last_step_is_in_flight_is_somebody_else() -> None:
    kept = [
        watched(simple(of_length("a", 3, 4), of_length("a", 5, 4, at)), **CHAINS_ALL)
        for at in range(70)
    ]
    both_in_flight = [
        (before, job)
        for jobs in kept
        for before, job in pairwise(jobs)
        if job.prefills and before.mode == "decode" and before.batch_copy.rids == ("a",)
    ]
    assert both_in_flight
    assert all(rows_of(job.prefills[0])[0].end == 5 for _, job in both_in_flight)


@given(workload=timed_workloads())
@settings(max_examples=many(12, 200))
def test_every_row_of_a_fresh_launch_is_one_part_of_it(workload: Workload) -> None:
    watched(workload)
    watched(workload, **CHAINS_ALL)


STARTS = ("prefill_start", "extend_start", "decode_batch_start", "decode_batch_start_chained")


@pytest.mark.parametrize(
    ("device", "model"), [(SimDevice, HashModel), (MlxDevice, HashArrays)], ids=["sim", "mlx"]
)
def test_every_step_is_launched_by_the_start_of_its_first_row(
    device: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, launched = "nothing", []

    def watch(name: str, begin: Any) -> Any:
        def start(self: MlxTpModelWorker, *args: Any) -> Any:
            nonlocal begun
            begun = name
            pending, begun = begin(self, *args), "nothing"
            return pending

        return start

    def launch_batch(self: Engine, *args: Any) -> Step:
        launched.append(begun)
        return launch(self, *args)

    launch = Engine.launch_batch
    monkeypatch.setattr(Engine, "launch_batch", launch_batch)
    for name in STARTS:
        monkeypatch.setattr(MlxTpModelWorker, name, watch(name, getattr(MlxTpModelWorker, name)))
    config, requests = SchedulerConfig(chunked_prefill_size=4), [of_length("a", 9, 5)]
    run_loop("mlx_async", device(), model(19, eos_ids=frozenset()), requests, config)
    prefill, extend, decode, chained = STARTS
    assert launched == [prefill, extend, extend, decode, *[chained] * 4]


@pytest.mark.parametrize(
    "finalize", ["prefill_finalize", "extend_finalize", "decode_batch_finalize"]
)
def test_the_scheduler_hears_what_a_finalize_has_read(
    finalize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output() -> list[int]:
        model, config = HashModel(19, eos_ids=frozenset()), SchedulerConfig(chunked_prefill_size=4)
        requests = [of_length("a", 9, 4), of_length("b", 3, 4)]
        done = run_loop("mlx_async", SimDevice(), model, requests, config, MLX_COST)
        return [token for rid in "ab" for token in done.outputs[rid]]

    def another(self: MlxTpModelWorker, pending: Any) -> Any:
        read = right(self, pending)
        return [18 - token for token in read] if isinstance(read, list) else 18 - read

    before, right = output(), getattr(MlxTpModelWorker, finalize)
    monkeypatch.setattr(MlxTpModelWorker, finalize, another)
    assert output() != before


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
    loaded: Any = HashArrays(eos_ids=frozenset()) if model == "hash" else LlamaMlx(tiny_llama)
    done = run_loop("mlx_async", device, loaded, some_requests(6))
    assert len(handed) == len({s.step for s in done.trace.slices if s.name == "forward"})
    state = [array.shape for array in device._cache_state_arrays()]
    ops, markers = 3, 3
    for arrays in handed:
        assert [array.shape for array in arrays[ops + markers :]] == state
