"""Two lazy graphs: when the chain holds, when it breaks, and what a finish costs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.mlx_async import mlx_async
from minisched.loops.run import make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace

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
