"""SGLang on MLX: two lazy graphs, when the chain holds and when it breaks, what its jobs and its
runner keep, and what MLX's cache of buffers holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings

from minisched.checks.overlap.overlap import measure
from minisched.checks.tokens.oracle import hash_oracle
from minisched.core import FinishReason, ForwardMode, Request, Result, ScheduleBatch
from minisched.devices import mlx_steps
from minisched.devices.cost import CostModel
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.mlx_finish import finish_picture, in_flight, kept_states
from minisched.export.mlx_memory import MIB, memory_picture, memory_report
from minisched.export.mlx_runs import finish_run, loop_run, memory_run, sketch_run
from minisched.export.views.lazy_arrays import arrays_of
from minisched.export.views.marks import NothingToShow
from minisched.export.views.steps import steps_of
from minisched.loops.mlx_jobs import MlxPendingJob
from minisched.loops.mlx_sketch import mlx_sketch
from minisched.loops.mlx_worker import MlxTpModelWorker
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_mlx import HashMlx
from minisched.models.llama_mlx import LlamaMlx
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Trace
from minisched.worker import GenerationBatchResult
from tests.support import (
    Picture,
    Workload,
    check_picture,
    many,
    marked,
    play_timed,
    some_requests,
    timed_workloads,
    tokens,
)

COST = CostModel({"schedule": 3, "process": 3}, forward_base=10, sample=1, copy=1)


def of_length(rid: str, prompt_len: int, count: int, arrival_time: int = 0) -> Request:
    """A request that runs to its length."""
    return Request(rid, range(prompt_len), tokens(count), arrival_time)


def run(requests: list[Request], config: SchedulerConfig | None = None, **options: Any) -> Trace:
    """A run with an end-of-text token that is never sampled."""
    model = HashModel(19, eos_ids=frozenset())
    return run_loop("mlx_async", SimDevice(), model, requests, config, COST, **options).trace


# -- mlx_async: when the chain holds ---------------------------------------------------------------


def chained(trace: Trace) -> set[int]:
    """Steps whose input token never saw the host: a token edge from the step before."""
    steps = {item.id: item for item in trace.slices}
    tokens = (steps[edge.dst] for edge in trace.edges if edge.kind == "token")
    return {item.step for item in tokens if item.lane == "forward"}


@pytest.mark.parametrize(("length", "count"), [(3, 1), (12, 1), (5, 4)])
def test_every_decode_but_the_first_is_chained_while_nobody_waits(length: int, count: int) -> None:
    trace = run([of_length(f"r{i}", 2, length) for i in range(count)])
    decodes = {s.step for s in trace.on("forward") if s.mode == "decode"}
    assert chained(trace) == decodes - {min(decodes)}
    assert marked(trace).total() == count, "all end in one step, while one more is in flight"


def test_a_prompt_that_waits_breaks_the_chain_even_if_it_cannot_start() -> None:
    """As in the source: a non-empty waiting queue prevents all chaining."""
    config = SchedulerConfig(max_running_requests=1)
    trace = run([of_length("first", 2, 8), of_length("second", 2, 8, 40)], config)
    alone = run([of_length("first", 2, 8)], config)
    firsts = {s.step for s in trace.on("forward") if s.rids == ("first",)}
    assert 0 < len(chained(trace) & firsts) < len(chained(alone))


@pytest.mark.parametrize("every", [0, 1, 7])
def test_the_cache_is_cleared_every_so_many_decodes(every: int) -> None:
    trace = run([of_length("r", 2, 20)], clear_cache_every=every)
    decodes = {s.step for s in trace.on("forward") if s.mode == "decode"}
    cleared = sum(mark.name == "clear cache" for mark in trace.marks)
    assert cleared == (len(decodes) // every if every else 0)


@pytest.mark.parametrize("row_len", [2, 5, 8])
def test_a_batch_may_be_repeated_up_to_the_last_position_of_its_row(row_len: int) -> None:
    scheduler = Scheduler(SchedulerConfig(row_len=row_len, run_ahead=True, vocab_size=19))
    scheduler.receive([of_length("r", 1, 50)])
    assert isinstance(scheduler.next_batch(), ScheduleBatch), "the prompt"
    batch, decodes = scheduler.next_batch(), []
    while isinstance(batch, ScheduleBatch):
        decodes.append(batch.starts[0])
        batch = scheduler.repeat(batch)
    assert decodes == list(range(1, row_len))


# -- mlx_async: laws over any workload -------------------------------------------------------------


@given(workload=timed_workloads())
@settings(max_examples=many(12, 200))
def test_nothing_is_chained_while_anybody_waits_and_two_are_in_flight_at_most(
    workload: Workload,
) -> None:
    """Whether or not it could be admitted; and a chained step has the rows of the one before."""

    def watch(engine: Engine) -> None:
        run_batch = engine.run_batch

        def look(batch: ScheduleBatch, *args: GenerationBatchResult) -> GenerationBatchResult:
            assert engine.scheduler.batches_in_flight <= 2
            for previous in args:
                assert not engine.scheduler.waiting_queue
                assert batch.reqs == previous.batch.reqs and batch.mode is ForwardMode.DECODE
                assert batch.step == previous.batch.step + 1
            return run_batch(batch, *args)

        engine.run_batch = look  # type: ignore[method-assign,assignment]

    play_timed(workload, "mlx_async", "chain", {}, watch)


@given(workload=timed_workloads(with_aborts=False))
@settings(max_examples=many(12, 200))
def test_a_finish_wastes_its_row_of_the_step_in_flight_and_no_other(workload: Workload) -> None:
    """One row for each end, by a stop or by its length, if a step is in flight; else none.

    Who lives on loses nothing: each row of that step which is not wasted brings a token.
    """
    expected: list[tuple[str, int]] = []

    def watch(engine: Engine) -> None:
        process_result = engine.process_result

        def look(pending: GenerationBatchResult, result: Result) -> None:
            batch = pending.batch
            lived = {req: len(req.output_ids) for req in batch.reqs if not req.finished}
            process_result(pending, result)
            if engine.scheduler.batches_in_flight:
                expected.extend((req.rid, batch.step + 1) for req in lived if req.finished)
            for req, deliver in zip(batch.reqs, batch.delivers, strict=True):
                assert req not in lived or len(req.output_ids) == lived[req] + deliver

        engine.process_result = look  # type: ignore[method-assign]

    trace = play_timed(workload, "mlx_async", "chain", {}, watch).trace
    wasted = [mark.attrs for mark in trace.marks if mark.name == "wasted row"]
    assert [(mark["rid"], mark["step"]) for mark in wasted] == expected


# -- mlx_async: what its jobs hold, and what its runner keeps --------------------------------------


class Watched(MlxTpModelWorker):
    """Keeps every job, and who had state when; compares the runner's books at a fresh launch."""

    last: Watched

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        super().__init__(engine, clear_cache_every)
        Watched.last = self
        self.jobs: list[MlxPendingJob] = []
        self.kept: dict[int, set[str]] = {}  # finalized step -> who has state
        self.forgotten: dict[str, int] = {}  # who has no state any more, since which fresh step
        self.states = self._mlx_runner.states

    def async_forward_batch_generation_mlx(self, batch: ScheduleBatch) -> Any:
        """Nothing else is in flight; afterwards only the living are known, as they are."""
        assert self.engine.scheduler.batches_in_flight == 1
        before = set(self.states)
        launch = super().async_forward_batch_generation_mlx(batch)
        self.forgotten |= dict.fromkeys(before - set(self.states), batch.step)
        for rid, state in self.states.items():
            req = self.engine.scheduler.live[rid]
            assert req.lease is state.cache and req.lease.row == state.req_pool_idx
            if batch.mode is ForwardMode.DECODE and req in batch.reqs:  # else it may be in chunks
                known = req.known_tokens(0, req.known_len)
                assert tuple(state.token_ids) == known, "the scheduler's tokens are the runner's"
        return launch

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        """Keep it."""
        result = super().finalize_mlx_result(job)
        self.jobs.append(job)
        self.kept[job.batch_copy.step] = set(self.states)
        return result


def watched(workload: Workload, patch: Callable[[Engine], None] = lambda engine: None) -> Watched:
    """A run on the clock, with a worker that is watched."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("minisched.loops.mlx_async.MlxTpModelWorker", Watched)
        play_timed(workload, "mlx_async", "chain", {}, patch)
    return Watched.last


def simple(*requests: Request, **config: Any) -> Workload:
    """A workload without end-of-text tokens and aborts."""
    return Workload(list(requests), [], {}, SchedulerConfig(**config))


def test_a_chunk_is_a_prefill_first_and_an_extend_after_however_short() -> None:
    """A last chunk of one token is no decode."""
    jobs = watched(simple(of_length("long", 9, 2), chunked_prefill_size=4)).jobs
    prefills = [part for job in jobs for part in job.prefills]
    extends = [(part.new_token_ids, part.new_synced_offset) for job in jobs for part in job.extends]
    assert [(part.full_token_ids, part.synced_offset) for part in prefills] == [([0, 1, 2, 3], 4)]
    assert extends == [([4, 5, 6, 7], 8), ([8], 9)]
    modes = [job.mode for job in jobs]
    assert modes == ["extend", "extend", "extend", "decode", "decode"], "the last one is wasted"


def test_a_mixed_batch_is_an_extend_that_holds_a_decode_and_is_never_chained_upon() -> None:
    requests = of_length("first", 3, 9), of_length("long", 9, 3, arrival_time=40)
    jobs = watched(simple(*requests, chunked_prefill_size=4, enable_mixed_chunk=True)).jobs
    mixed = [job for job in jobs if job.batch_copy.mode is ForwardMode.MIXED]
    assert len(mixed) >= 2
    for job in mixed:
        assert job.mode == "extend" and job.decode and job.decode.req_ids == ["first"]
        assert len(job.prefills) + len(job.extends) == 1
    fresh = {job.batch_copy.step for job in jobs if job.batch_copy is job.schedule_batch}
    assert {job.batch_copy.step + 1 for job in mixed} <= fresh


def test_a_chained_job_goes_back_to_the_batch_that_was_scheduled() -> None:
    jobs = watched(simple(of_length("a", 2, 6))).jobs
    assert [job.batch_copy.step for job in jobs] == [1, 2, 3, 4, 5, 6, 7]
    assert [job.schedule_batch.step for job in jobs] == [1, 2, 2, 2, 2, 2, 2]
    assert all(job.decode and job.decode.req_ids == ["a"] for job in jobs[1:])


def test_an_idle_batch_launches_nothing_and_gives_nothing() -> None:
    engine = make_engine("mlx_async", SimDevice(), HashModel(), SchedulerConfig(), Frontend([]))
    worker, idle = MlxTpModelWorker(engine, 0), ScheduleBatch(0, ForwardMode.IDLE, 0)
    launch = worker.async_forward_batch_generation_mlx(idle)
    assert launch == (None, [], [], None, "idle")
    job = MlxPendingJob(*launch, batch_copy=idle, schedule_batch=idle, reqs=[])
    assert worker.finalize_mlx_result(job) == Result(())
    assert not engine.device.recorder.trace("", "", "", "").slices


def test_state_outlives_its_request_until_the_next_fresh_launch() -> None:
    """a ends in step 4, while step 5 is in flight; both are finalized before step 6 is fresh."""
    worker = watched(simple(of_length("a", 2, 4), of_length("b", 3, 9)))
    assert worker.kept[4] == worker.kept[5] == {"a", "b"} and worker.kept[6] == {"b"}
    assert worker.forgotten == {"a": 6}
    assert set(worker.states) == {"b"}, "nobody came after it, so b's remains are still there"


@given(workload=timed_workloads())
@settings(max_examples=many(12, 200))
def test_at_a_fresh_launch_the_runner_knows_the_living_and_nobody_else(workload: Workload) -> None:
    """Also after aborts and retractions; ``Watched`` compares tokens and leases."""
    watched(workload)


def test_state_that_went_at_once_would_be_missed_by_the_step_in_flight() -> None:
    """What the delay is for: that step has a token for the request, and wants to note it."""

    def forget_at_once(engine: Engine) -> None:
        process_result = engine.process_result

        def process(pending: GenerationBatchResult, result: Result) -> None:
            process_result(pending, result)
            for req in pending.batch.reqs:
                if req.finished:
                    Watched.last._mlx_runner.remove_request(req.rid)

        engine.process_result = process  # type: ignore[method-assign]

    with pytest.raises(KeyError, match="'a'"):
        watched(simple(of_length("a", 2, 4), of_length("b", 3, 9)), forget_at_once)


# -- mlx_async: what a finish costs, and the excerpt of the original -------------------------------


def test_a_stop_and_a_length_each_waste_one_row_and_the_next_step_is_fresh() -> None:
    done = finish_run()
    trace, arrays = done.trace, arrays_of(done.trace)
    ends = {req.rid: (req.finish_reason, len(req.output_ids)) for req in done.requests}
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert ends == {"a": (stop, 4), "b": (length, 8), "c": (length, 12)}
    wasted = [(array.step, array.wasted) for array in arrays if array.wasted]
    assert wasted == [(5, ("a",)), (9, ("b",)), (13, ("c",))]
    assert [array.step for array in arrays if not array.source] == [1, 2, 6, 10]
    assert max(count for _, count in in_flight(trace)) == 2
    bound = {array.step: array.bound for array in arrays}
    kept = {state.rid: state for state in kept_states(trace, steps_of(trace))}
    assert [kept[rid].gone for rid in "abc"] == [bound[6], bound[10], trace.end]
    assert all(state.since < state.ended < state.gone for state in kept.values())
    picture = Picture(finish_picture(trace))
    check_picture(picture)
    for kind in ("wasted", "stored", "stale"):
        assert picture.count("rid", kind=kind) == {("a",): 1, ("b",): 1, ("c",): 1}


def test_the_excerpts_order_is_right_and_its_chained_steps_run_on_tokens_one_too_old() -> None:
    """It hands nobody a lazy token; with that one mistake put right it is the loop."""
    assert all(spec.run is not mlx_sketch for spec in LOOPS.values())
    ours, theirs, handed_over = loop_run(), sketch_run(), sketch_run(hands_over=True)
    alone = {
        req.rid: hash_oracle(list(req.prompt), req.params, req.sampling_key, 257, frozenset({256}))
        for req in ours.requests
    }
    truth = {rid: oracle.tokens for rid, oracle in alone.items()}
    assert ours.trace.end == theirs.trace.end == handed_over.trace.end == 107_700_000
    reports = [measure(one.trace) for one in (ours, theirs, handed_over)]
    assert len({(report.steps, report.bubble_ns, report.host_hidden_ns) for report in reports}) == 1
    assert ours.outputs == handed_over.outputs == truth
    for rid, right in truth.items():
        assert theirs.outputs[rid][:2] == right[:2], "of the prompt and of the fresh decode"
        assert theirs.outputs[rid][2] != right[2], "it was given the prompt's token again"
    wrong = [mark.attrs for mark in theirs.trace.marks if mark.name == "wrong token"]
    first = {str(one["rid"]): (one["got"], one["needs"]) for one in reversed(wrong)}
    assert first == {rid: (right[0], right[1]) for rid, right in truth.items()}
    assert arrays_of(theirs.trace) == [] and arrays_of(handed_over.trace) != []


# -- mlx_async: MLX's memory, counted while nothing is in flight -----------------------------------

DECODES, EVERY = 96, 16
A_STEP = 16 << 10  # bytes: more than a step leaves until the next one, less than a few steps would


def come_to_rest(device: MlxDevice) -> None:
    """Wait until all that was handed over has run, and MLX has given up what it read."""
    runner, streams = device._runner, device.streams
    for executor in (runner._evaluator, runner._watcher):
        executor.submit(lambda: None).result()
    for stream in (streams.cpu, streams.compute, streams.copy, *streams.markers):
        mx.synchronize(stream)


def resting(inner: Callable[[MlxDevice], None]) -> Callable[[MlxDevice], None]:
    """The same, at rest."""

    def rest(device: MlxDevice) -> None:
        come_to_rest(device)
        inner(device)

    return rest


def at_rest(folder: Path, clear_cache_every: int, new_tokens: int) -> Run:
    """``memory_run``, which waits for the step in flight before it counts memory or clears it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("count_memory", "clear_cache"):
            patch.setattr(MlxDevice, name, resting(getattr(MlxDevice, name)))
        return memory_run(folder, clear_cache_every, new_tokens)


def growth(used: Sequence[int]) -> int:
    """By how much memory in use has grown at most, since whichever earlier reading."""
    return max(now - least for now, least in zip(used, accumulate(used, min), strict=True))


@pytest.mark.thorough
def test_the_cache_grows_without_clearing_and_starts_anew_with_it(tmp_path: Path) -> None:
    """In a process of their own: memory is counted for a process, whoever else uses it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        runs = [alone.submit(at_rest, tmp_path, every, DECODES).result() for every in (0, EVERY)]
    without, cleared = (memory_report(done.trace) for done in runs)
    assert runs[0].outputs == runs[1].outputs
    assert all(len(output) == DECODES for output in runs[0].outputs.values())
    assert [at for at, _ in without.cache] == list(range(1, DECODES + 1)) and without.clears == 0
    again = [at for (at, _), (after, _) in pairwise(cleared.cache) if at == after]
    assert again == list(range(EVERY, DECODES + 1, EVERY)) and cleared.clears == len(again)
    sizes = dict(without.cache)
    later = [sizes[at] for at in range(EVERY, DECODES + 1, EVERY)]
    assert all(before < after for before, after in pairwise(later)) and later[-1] > 20 * MIB
    drops = zip(cleared.before_clear, cleared.after_clear, strict=True)
    assert all(0 == after < before for before, after in drops)
    assert 2 * cleared.most_cached < without.most_cached
    for report in (without, cleared):
        values = [value for _, value in report.active]
        assert len(values) == len(report.cache) and min(values) > MIB and growth(values) < A_STEP
    picture = Picture(memory_picture(runs[0].trace, runs[1].trace, EVERY))
    check_picture(picture)
    assert "The tokens are the same." in picture.words


def test_the_limit_of_the_cache_is_put_back(tmp_path: Path) -> None:
    before = mx.set_cache_limit(5 * MIB)
    try:
        memory_run(tmp_path, 0, 4)
        assert mx.set_cache_limit(5 * MIB) == 5 * MIB
    finally:
        mx.set_cache_limit(before)


def test_on_sim_there_is_no_memory_to_show() -> None:
    trace = finish_run().trace
    assert memory_report(trace).cache == () and memory_report(trace).most_cached == 0
    with pytest.raises(NothingToShow, match="no cache memory counter"):
        memory_picture(trace, trace, 16)


@pytest.mark.parametrize("model", ["hash", "llama"])
def test_tokens_and_caches_are_handed_over_together(
    model: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ``async_eval`` a step: logits, tokens, their copy, and every array that is written."""
    device, async_eval = MlxDevice(), mx.async_eval
    handed: list[tuple[mx.array, ...]] = []

    def look(*arrays: mx.array) -> None:
        handed.append(arrays)
        async_eval(*arrays)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mlx_steps.mx, "async_eval", look)
    loaded: Any = HashMlx(eos_ids=frozenset()) if model == "hash" else LlamaMlx(tiny_llama)
    done = run_loop("mlx_async", device, loaded, some_requests(6))
    assert len(handed) == len({s.step for s in done.trace.slices if s.name == "forward"})
    state = [array.shape for array in device._cache_state_arrays()]
    ops, markers = 3, 3
    for arrays in handed:
        assert [array.shape for array in arrays[ops + markers :]] == state
