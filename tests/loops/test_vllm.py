"""vLLM's loops: the batch queue at any depth, AsyncScheduler's books, deferred sampling, pipelines;
and V0's bursts of several steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.multi_step import NUM_STEPS
from minisched.loops.run import Run, run_loop
from minisched.loops.vllm_async import is_length_foreseen
from minisched.loops.vllm_pp import get_pp_indices
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import (
    ALONE,
    VOCAB,
    Workload,
    hash_model,
    many,
    named,
    play,
    run_alone,
    tokens,
    workloads,
)

DEVICE_ONLY = CostModel({"schedule": 40, "prepare": 10, "launch": 10, "process": 30, "output": 10},
                        forward_base=900, sample=50, copy=20)  # fmt: skip


# -- vllm_batch_queue: fill while there is room, or harvest what has ended first -------------------


def passed_over(trace: Trace) -> int:
    schedules = [item.start for item in trace.on("host") if item.name == "schedule"]
    read, most = -1, 0
    copied = {item.step: item.end for item in trace.on("copy") if item.name == "copy"}
    for item in named(trace, "process", "host").values():
        if item.step in copied:
            since = max(read, copied[item.step])
            most = max(most, sum(since < start < item.start for start in schedules))
            read = item.end
    return most


def now_and_then(loop: str) -> Run:
    requests = [Request(f"r{i}", range(1, 9), tokens(3), i * 18_000_000) for i in range(8)]
    return run_loop(loop, SimDevice(), HashModel(), requests, cost=SIM_COST)


def test_the_rule_of_late_leaves_results_unread_and_the_older_one_does_not() -> None:
    loop = "vllm_async:pool:depth=8"
    late, older = now_and_then(loop), now_and_then(f"{loop}:harvest_when_done=true")
    assert late.outputs == older.outputs
    assert passed_over(late.trace) > 1 >= passed_over(older.trace)


def test_where_requests_wait_for_their_tokens_empty_batches_fill_the_queue() -> None:
    late, older = now_and_then("vllm_pp4"), now_and_then("vllm_pp4:harvest_when_done=true")
    assert passed_over(late.trace) == passed_over(older.trace) == 0
    steps = max(item.step for item in late.trace.slices)
    for run in (late, older):
        schedules = [item for item in run.trace.on("host") if item.name == "schedule"]
        assert len(schedules) > steps, "an empty one costs its host a schedule"


def test_depths_that_cannot_be_are_refused() -> None:
    def start(depth: int, relay: str) -> None:
        requests = [Request("r", [1])]
        run_loop("vllm_async", SimDevice(), HashModel(), requests, relay=relay, depth=depth)

    for relay, most in {"prev_sampled": 2, "fill_device": 2, "ring": 4}.items():
        start(most, relay)
        with pytest.raises(ValueError, match=f"depth is {most + 1}, .*{relay}.* at most {most}"):
            start(most + 1, relay)
    start(9, "pool")
    start(9, "token_pool")
    start(9, "request_state")


# -- vllm_batch_queue: AsyncScheduler's placeholders -----------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@given(workload=workloads())
@settings(max_examples=many(6, 30))
def test_computed_less_placeholders_is_settled_and_a_length_is_foreseen_by_them(
    depth: int, workload: Workload
) -> None:
    apart: list[bool] = []

    def look(engine: Engine) -> None:
        for req in engine.scheduler.running_batch:
            settled = req.computed_len - req.num_output_placeholders
            assert settled == req.known_len - 1
            assert req.lease is not None and req.lease.settled_len <= settled
            foreseen = req.device_len >= req.max_device_len
            asked = engine.scheduler.decode.ends_in_flight
            assert asked is (is_length_foreseen if depth <= 2 else None)
            assert foreseen or not is_length_foreseen(req), "theirs never stops before ours"
            apart.append(foreseen and not is_length_foreseen(req))

    requests = [Request(f"r{i}", [i + 1] * 3, tokens(48)) for i in range(2)]
    for one in (workload, Workload(requests, [0, 0], {}, ALONE)):
        model = hash_model("sim", one.eos_ids)
        play(one, "vllm_async", "pool", {"depth": depth}, SimDevice(), model, each_turn=look)
    assert any(apart) == (depth > 2)


# -- vllm_pp: stages of a pipeline -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(32, [8, 8, 8, 8]), (5, [2, 2, 1]), (7, [2, 3, 2]), (5, [1, 1, 2, 1]), (2, [0, 1, 1, 0])],
)
def test_what_does_not_divide_goes_before_the_last_stage(num_layers: int, sizes: list[int]) -> None:
    assert [len(layers) for layers in get_pp_indices(num_layers, len(sizes))] == sizes


@pytest.mark.parametrize("stages", [2, 4])
def test_only_stage_0_is_given_a_batch_and_the_others_receive_it(stages: int) -> None:
    trace = run_alone(f"vllm_pp{stages}", stages, replace(DEVICE_ONLY, forward_base=400, recv=7))
    edges = {(edge.kind, edge.src, edge.dst) for edge in trace.edges}
    launched = {dst for kind, _, dst in edges if kind == "launch"}
    forwards = [named(trace, "forward", f"stage {number}") for number in range(stages)]
    assert {item.id for item in forwards[0].values()} == launched, "the host launches there only"
    assert not named(trace, "recv", "stage 0")
    for number in range(1, stages):
        received = named(trace, "recv", f"stage {number}")
        assert received.keys() == forwards[number].keys() == forwards[0].keys()
        for step, item in received.items():
            sent = forwards[number - 1][step]
            assert ("recv", sent.id, item.id) in edges
            assert sent.end <= item.start and item.duration == 7
            assert item.end == forwards[number][step].start, "it runs what it has just received"
    samples = {item.lane for item in trace.slices if item.name == "sample"}
    assert samples == {f"stage {stages - 1}"}, "the last stage samples"
    lanes = {item.id: item.lane for item in trace.slices}
    back = {lanes[src] for kind, src, _ in edges if kind == "token"}
    assert back == {"host"}, "tokens go over the host"


# -- multi_step: decide once, decode N times, and look only then -----------------------------------

BURSTS = CostModel(
    {"schedule": 50, "prepare": 10, "advance step": 4, "launch": 6, "process": 20, "output": 5},
    forward_base=90, sample=10, copy=7,
)  # fmt: skip
FIRST, DEVICE, COPY, RESULT = 66, 100, 7, 25  # before a burst, a step of it, its copy, its result
ONE_BURST = FIRST + NUM_STEPS * DEVICE + COPY + NUM_STEPS * RESULT


def bursts(*requests: Request, **options: Any) -> Run:
    model = HashModel(VOCAB, eos_ids=frozenset())
    return run_loop("multi_step", SimDevice(), model, requests, cost=BURSTS, **options)


def one_of(bursts: int) -> Request:
    return Request("r", [1, 2], tokens(1 + bursts * NUM_STEPS))


@pytest.mark.parametrize("since", [1, DEVICE, ONE_BURST - FIRST - 1])
def test_whoever_comes_in_a_burst_waits_for_its_end(since: int) -> None:
    alone = bursts(one_of(3)).trace
    begin = next(item.start for item in alone.on("forward") if item.mode == "decode")
    end = [item.end for item in alone.on("host") if item.name == "output"][NUM_STEPS]
    assert end - begin == ONE_BURST - FIRST
    found = bursts(one_of(3), Request("late", [3, 4], tokens(2), arrival_time=begin + since))
    prefill = next(item for item in found.trace.on("forward") if "late" in item.rids)
    assert prefill.start == end + FIRST, "admitted at once after the burst, and never in it"
    ttft = next(m.ttft_ns for m in found.metrics.ended if m.rid == "late")
    assert ttft == end - begin - since + FIRST + DEVICE + COPY + RESULT


def test_a_burst_is_scheduled_once_and_its_outputs_come_when_all_of_it_is_there() -> None:
    found = bursts(one_of(5))
    itls = list(found.metrics.ended[0].itls)
    assert itls == ([ONE_BURST - 3 * RESULT] + [RESULT] * (NUM_STEPS - 1)) * 5
    trace = found.trace
    assert sum(item.name == "schedule" for item in trace.on("host")) == 1 + 5
    assert len(trace.on("forward")) == 2 * (1 + 5 * NUM_STEPS)
    copies = [item.end for item in trace.on("copy")][1:]
    processes = [item.start for item in trace.on("host") if item.name == "process"][1:]
    for at in range(0, 5 * NUM_STEPS, NUM_STEPS):
        assert min(processes[at : at + NUM_STEPS]) >= max(copies[at : at + NUM_STEPS])


def test_a_burst_ends_where_memory_does() -> None:
    config = SchedulerConfig(kv_tokens=15, disable_radix_cache=True, schedule_conservativeness=0)
    params = SamplingParams(max_new_tokens=7)  # little of it is kept back, and nothing ends it
    found = bursts(*(Request(rid, [1, 2], params) for rid in "ab"), config=config)
    both = [s for s in found.trace.on("forward") if s.rids == ("a", "b") and s.mode == "decode"]
    starts = [s.start for s in both if s.name == "forward"]
    lengths = [1]
    for before, after in pairwise(starts):
        lengths[-1:] = [lengths[-1] + 1] if after - before == DEVICE else [lengths[-1], 1]
    assert lengths[0] == NUM_STEPS and 0 < lengths[1] < NUM_STEPS, lengths
    assert all(len(output) == 7 for output in found.outputs.values())
