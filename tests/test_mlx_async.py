"""Two lazy graphs: when the chain holds, when it breaks, and what a finish costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import (
    FinishReason,
    ForwardMode,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.mlx_finish import finish_picture, in_flight, kept_states
from minisched.export.mlx_runs import finish_run
from minisched.export.views.lazy_arrays import arrays_of
from minisched.export.views.steps import steps_of
from minisched.loops.mlx_async import mlx_async
from minisched.loops.run import make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Trace
from minisched.worker import GenerationBatchResult
from tests.support import Picture, Workload, check_picture, play_timed, timed_workloads

COST = CostModel({"schedule": 3, "process": 3}, forward_base=10, sample=1, copy=1)


def run(requests: list[Request], config: SchedulerConfig, **options: Any) -> Trace:
    """A run with an end-of-text token that is never sampled."""
    model = HashModel(19, eos_ids=frozenset())
    return run_loop("mlx_async", SimDevice(), model, requests, config, COST, **options).trace


def chained(trace: Trace) -> set[int]:
    """Steps whose input token never saw the host: a token edge from the step before."""
    steps = {item.id: item for item in trace.slices}
    return {
        steps[edge.dst].step
        for edge in trace.edges
        if edge.kind == "token" and steps[edge.dst].lane == "forward"
    }


@given(length=st.integers(3, 12), count=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_decode_but_the_first_is_chained_while_nobody_waits(length: int, count: int) -> None:
    params = SamplingParams(max_new_tokens=length)
    trace = run([Request(f"r{i}", [1, 2], params) for i in range(count)], SchedulerConfig())
    decodes = {s.step for s in trace.on("forward") if s.mode == ForwardMode.DECODE.value}
    assert chained(trace) == decodes - {min(decodes)}
    wasted = [mark for mark in trace.marks if mark.name == "wasted row"]
    assert len(wasted) == count, "all end in one step, while one more of each is in flight"


def test_a_prompt_that_waits_breaks_the_chain_even_if_it_cannot_start() -> None:
    """As in the source: a non-empty waiting queue prevents all chaining."""
    config = SchedulerConfig(max_running_requests=1)
    first = Request("first", [1, 2], SamplingParams(max_new_tokens=8))
    second = Request("second", [1, 2], SamplingParams(max_new_tokens=8), arrival_time=40)
    trace = run([first, second], config)
    alone = run([Request("first", [1, 2], SamplingParams(max_new_tokens=8))], config)
    firsts = {s.step for s in trace.on("forward") if s.rids == ("first",)}
    assert 0 < len(chained(trace) & firsts) < len(chained(alone))


def test_two_graphs_are_in_flight_and_never_three() -> None:
    engine = make_engine(
        "mlx_async",
        SimDevice(),
        HashModel(19, eos_ids=frozenset()),
        SchedulerConfig(),
        Frontend([Request("r", [1], SamplingParams(max_new_tokens=20))]),
        COST,
    )
    in_flight = []
    run_batch = engine.run_batch

    def watch(batch: ScheduleBatch, *args: Any) -> Any:
        in_flight.append(engine.scheduler.batches_in_flight)
        return run_batch(batch, *args)

    engine.run_batch = watch  # type: ignore[method-assign]
    turns = mlx_async(engine)
    while not engine.is_done:
        next(turns)
    assert max(in_flight) == 2 and in_flight.count(2) > 15


@given(every=st.integers(0, 7))
@settings(max_examples=20, deadline=None)
def test_the_cache_is_cleared_every_so_many_decodes(every: int) -> None:
    params = SamplingParams(max_new_tokens=20)
    trace = run([Request("r", [1, 2], params)], SchedulerConfig(), clear_cache_every=every)
    decodes = {s.step for s in trace.on("forward") if s.mode == ForwardMode.DECODE.value}
    cleared = sum(mark.name == "clear cache" for mark in trace.marks)
    assert cleared == (len(decodes) // every if every else 0)


@pytest.mark.parametrize("row_len", [2, 5, 8])
def test_a_batch_may_be_repeated_up_to_the_last_position_of_its_row(row_len: int) -> None:
    scheduler = Scheduler(SchedulerConfig(row_len=row_len, run_ahead=True, vocab_size=19))
    scheduler.receive([Request("r", [1], SamplingParams(max_new_tokens=50, ignore_eos=True))])
    prompt = scheduler.next_batch()
    assert isinstance(prompt, ScheduleBatch)
    batch, decodes = scheduler.next_batch(), []
    while isinstance(batch, ScheduleBatch):
        decodes.append(batch.starts[0])
        batch = scheduler.repeat(batch)
    assert decodes == list(range(1, row_len))


# -- laws over any workload --------------------------------------------------------------------


@given(workload=timed_workloads())
@settings(max_examples=60, deadline=None)
def test_nothing_is_chained_while_anybody_waits(workload: Workload) -> None:
    """Whether or not it could be admitted; and a chained step has the rows of the one before."""

    def watch(engine: Engine) -> None:
        run_batch = engine.run_batch

        def look(
            batch: ScheduleBatch, previous: GenerationBatchResult | None = None
        ) -> GenerationBatchResult:
            if previous is not None:
                assert not engine.scheduler.waiting_queue
                assert batch.reqs == previous.batch.reqs and batch.mode is ForwardMode.DECODE
                assert batch.step == previous.batch.step + 1
            return run_batch(batch, previous)

        engine.run_batch = look  # type: ignore[method-assign,assignment]

    play_timed(workload, "mlx_async", "chain", {}, watch)


@given(workload=timed_workloads(with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_a_finish_wastes_its_row_of_the_step_in_flight_and_no_other(workload: Workload) -> None:
    """One row for each end, by a stop or by its length, if a step is in flight; else none.

    Who lives on loses nothing: each row of that step which is not wasted brings a token.
    """
    expected: list[tuple[str, int]] = []
    fruitless: list[str] = []

    def watch(engine: Engine) -> None:
        process_result = engine.process_result

        def look(pending: GenerationBatchResult, result: Result) -> None:
            batch = pending.batch
            lengths = [len(req.output_ids) for req in batch.reqs]
            lived = [req for req in batch.reqs if not req.finished]
            process_result(pending, result)
            ended = [req.rid for req in lived if req.finished]
            if engine.scheduler.batches_in_flight:
                expected.extend((rid, batch.step + 1) for rid in ended)
            for req, before, deliver in zip(batch.reqs, lengths, batch.delivers, strict=True):
                if deliver and req in lived and len(req.output_ids) != before + 1:
                    fruitless.append(req.rid)

        engine.process_result = look  # type: ignore[method-assign]

    trace = play_timed(workload, "mlx_async", "chain", {}, watch).trace
    wasted = [mark.attrs for mark in trace.marks if mark.name == "wasted row"]
    assert [(mark["rid"], mark["step"]) for mark in wasted] == expected
    assert not fruitless


@given(workload=timed_workloads())
@settings(max_examples=40, deadline=None)
def test_idle_means_that_nothing_is_pending_and_nothing_leaks(workload: Workload) -> None:
    for at, req in enumerate(workload.requests):
        req.arrival_time += at * 1_000_000  # so that the loop falls idle between any two
    idle = 0

    def watch(engine: Engine) -> None:
        on_idle = engine.on_idle

        def look() -> None:
            nonlocal idle
            if not engine.scheduler.live:
                idle += 1
                assert engine.scheduler.batches_in_flight == 0
                engine.scheduler.self_check()
            on_idle()

        engine.on_idle = look  # type: ignore[method-assign]

    run_ = play_timed(workload, "mlx_async", "chain", {}, watch)
    assert idle >= len(workload.requests) - 1 and run_.device.is_idle


# -- the run that shows what a finish costs ----------------------------------------------------


def test_a_stop_and_a_length_each_waste_one_row_and_the_next_step_is_fresh() -> None:
    run_ = finish_run()
    ends = {req.rid: (req.finish_reason, len(req.output_ids)) for req in run_.requests}
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert ends == {"a": (stop, 4), "b": (length, 8), "c": (length, 12)}
    arrays = arrays_of(run_.trace)
    wasted = [(array.step, array.wasted) for array in arrays if array.wasted]
    assert wasted == [(5, ("a",)), (9, ("b",)), (13, ("c",))]
    assert [array.step for array in arrays if not array.source] == [1, 2, 6, 10]
    assert max(count for _, count in in_flight(run_.trace)) == 2


def test_the_picture_of_a_finish_shows_the_row_and_the_state_that_stays() -> None:
    trace = finish_run().trace
    bound = {array.step: array.bound for array in arrays_of(trace)}
    kept = {kept.rid: kept for kept in kept_states(trace, steps_of(trace))}
    assert [kept[rid].gone for rid in "abc"] == [bound[6], bound[10], trace.end]
    assert all(state.since < state.ended < state.gone for state in kept.values())
    picture = Picture(finish_picture(trace))
    check_picture(picture)
    for kind in ("wasted", "stored", "stale"):
        assert picture.count("rid", kind=kind) == {("a",): 1, ("b",): 1, ("c",): 1}
