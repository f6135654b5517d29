"""Pipeline parallelism: who gets what from whom, when stages are busy, what one request pays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import gaps, union
from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import run_loop
from minisched.loops.vllm_pp import vllm_pp
from minisched.models.hash import NUM_LAYERS, HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from minisched.worker.pipeline import PipelineWorker, get_pp_indices
from tests.support import Workload, check_all, hash_model, play, workloads
from tests.vllm_runs import cost_of, marks, run_alone, settled_sums

STAGES = [2, 4]
EVERY_PIPELINE = pytest.mark.parametrize("stages", STAGES)


# -- the layers ----------------------------------------------------------------------------------


@given(num_layers=st.integers(0, 100), pp_size=st.integers(1, 16))
def test_every_layer_is_on_one_stage_and_shares_differ_by_one(
    num_layers: int, pp_size: int
) -> None:
    stages = get_pp_indices(num_layers, pp_size)
    assert [layer for layers in stages for layer in layers] == list(range(num_layers))
    sizes = list(map(len, stages))
    assert len(sizes) == pp_size and max(sizes) - min(sizes) <= 1
    assert pp_size == 1 or sizes[-1] == min(sizes), "the last one also has the logits"


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(32, [8, 8, 8, 8]), (5, [2, 2, 1]), (7, [2, 3, 2]), (5, [1, 1, 2, 1]), (2, [0, 1, 1, 0])],
)
def test_what_does_not_divide_goes_before_the_last_stage(num_layers: int, sizes: list[int]) -> None:
    assert [len(layers) for layers in get_pp_indices(num_layers, len(sizes))] == sizes


@EVERY_PIPELINE
@given(workload=workloads())
@settings(max_examples=60, deadline=None)
def test_each_stage_touches_its_own_layers_and_page_table(stages: int, workload: Workload) -> None:
    """And the tokens are those of the model in one piece (law 1)."""
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    wrote: dict[int, set[str]] = {}

    def watch(engine: Engine) -> None:
        worker = engine.worker
        assert isinstance(worker, PipelineWorker)
        run_stage = worker._run_stage

        def watched(stage: Any, tensors: Any) -> Any:
            out = run_stage(stage, tensors)
            assert device.running is not None
            wrote.setdefault(stage.number, set()).update(m.name for m in device.running.writes)
            return out

        worker._run_stage = watched  # type: ignore[method-assign]

    engine, outputs = play(workload, f"vllm_pp{stages}", "host", {}, device, model, patch=watch)
    check_all(workload, engine, outputs)
    for number, layers in enumerate(get_pp_indices(NUM_LAYERS, stages)):
        own = {f"kv{layer}" for layer in layers} | {f"stage {number} page table"}
        assert wrote.get(number, own) == own
    if not (workload.aborts or marks(device, "retraction")):
        assert not marks(device, "wasted row"), "nothing runs ahead of its token"


@pytest.mark.parametrize("stages", [1, 3, 5])
def test_there_may_be_any_number_of_stages(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    monkeypatch.setitem(LOOPS, f"vllm_pp{stages}", vllm_pp(stages))
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    requests = [Request(f"r{i}", [i] * 4, params) for i in range(3)]
    config = SchedulerConfig(kv_tokens=20, context_len=16, schedule_conservativeness=0.0)
    device, workload = SimDevice(), Workload(requests, [0] * 3, {}, config, frozenset())
    model = hash_model("sim", frozenset())
    engine, outputs = play(workload, f"vllm_pp{stages}", "host", {}, device, model)
    check_all(workload, engine, outputs)
    assert marks(device, "retraction"), "the pool is too small for three"
    assert engine.scheduler.config.keep_stale_outputs


# -- who receives --------------------------------------------------------------------------------


def of_stage(trace: Trace, number: int, name: str) -> dict[int, Slice]:
    """What a stage did under a name, by step."""
    return {item.step: item for item in trace.on(f"stage {number}") if item.name == name}


@EVERY_PIPELINE
def test_only_stage_0_is_given_a_batch_and_the_others_receive_it(stages: int) -> None:
    cost = cost_of(100, forward_base=400, sample=30, copy=20, recv=7)
    trace = run_alone(f"vllm_pp{stages}", stages, cost)
    edges = {(edge.kind, edge.src, edge.dst) for edge in trace.edges}
    launched = {dst for kind, _, dst in edges if kind == "launch"}
    forwards = [of_stage(trace, number, "forward") for number in range(stages)]
    assert {item.id for item in forwards[0].values()} == launched, "the host launches there only"
    assert not of_stage(trace, 0, "recv")
    for number in range(1, stages):
        received = of_stage(trace, number, "recv")
        assert received.keys() == forwards[number].keys() == forwards[0].keys()
        for step, item in received.items():
            sent = forwards[number - 1][step]
            assert ("recv", sent.id, item.id) in edges
            assert sent.end <= item.start and item.duration == 7
            assert item.end == forwards[number][step].start, "it runs what it has just received"
    samples = {item.lane for item in trace.slices if item.name == "sample"}
    assert samples == {f"stage {stages - 1}"}, "the last stage samples"
    back = [edge for edge in trace.edges if edge.kind == "token"]
    lanes = {item.id: item.lane for item in trace.slices}
    assert back and {lanes[edge.src] for edge in back} == {"host"}, "tokens go over the host"


@EVERY_PIPELINE
def test_it_runs_on_sim_only_and_says_why(stages: int) -> None:
    spec = find_loop(f"vllm_pp{stages}")
    with pytest.raises(ValueError, match="its stages are streams of the simulated device"):
        spec.check_device(f"vllm_pp{stages}", "thread")
    assert (spec.depth, spec.relays) == (stages, ("host",))


# -- how long a step takes -----------------------------------------------------------------------


def stage_times(stages: int, cost: CostModel) -> list[int]:
    """What each stage does for a decode step."""
    assert cost.forward_base % stages == 0
    times = [cost.forward_base // stages + (cost.recv if at else 0) for at in range(stages)]
    times[-1] += cost.sample
    return times


steady_costs = st.builds(
    lambda host, forward, sample, copy, recv: cost_of(
        10 * host, forward_base=4 * forward, sample=sample, copy=copy, recv=recv
    ),
    host=st.integers(1, 30), forward=st.integers(1, 200), sample=st.integers(0, 50),
    copy=st.integers(0, 50), recv=st.integers(0, 50),
)  # fmt: skip


@EVERY_PIPELINE
@given(cost=steady_costs, count=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_settled_step_takes_what_the_law_says(stages: int, cost: CostModel, count: int) -> None:
    """max(slowest stage, h, c, latency / batches in flight), exactly.

    The latency is all the stages, the copy and the host: what a request's next token waits for.
    With fewer batches than stages the host looks for one more in vain, once a step.
    """
    ahead = min(count, stages)
    host, times = sum(cost.host.values()), stage_times(stages, cost)
    in_vain = cost.host["schedule"] if count < stages else 0
    latency = sum(times) + cost.copy + host
    law = max(ahead * max(*times, cost.copy, host + in_vain), latency)
    assert settled_sums(run_alone(f"vllm_pp{stages}", count, cost), ahead) == {law}


def pauses_of(trace: Trace, number: int) -> list[int]:
    """The pauses of a stage in the settled part of a run."""
    slices = trace.on(f"stage {number}")
    pauses = gaps(union(slices[len(slices) // 3 : 2 * len(slices) // 3]))
    return [end - start for start, end in pauses]


@EVERY_PIPELINE
def test_with_a_batch_for_each_stage_all_are_busy_back_to_back(stages: int) -> None:
    """Where nothing but the stages takes time. One batch less, and each stage has a pause."""
    cost = cost_of(0, forward_base=400)
    name = f"vllm_pp{stages}"
    full, short = (run_alone(name, count, cost) for count in (stages, stages - 1))
    share = 400 // stages
    for number in range(stages):
        assert pauses_of(full, number) == []
        pauses = pauses_of(short, number)
        assert len(pauses) > 5 and set(pauses) == {share}


@EVERY_PIPELINE
def test_host_and_copy_open_a_gap_that_one_more_batch_in_flight_closes(stages: int) -> None:
    """As many steps in flight as stages leave the host's time as a bubble; one more hides it."""
    cost, name = cost_of(40, forward_base=400, sample=0, copy=20), f"vllm_pp{stages}"
    share = 400 // stages
    tight = run_alone(name, stages, cost)
    assert settled_sums(tight, stages) == {400 + 40 + 20}
    assert sum(pauses_of(tight, 0)) > 0
    roomy = run_alone(name, stages + 1, cost, depth=stages + 1)
    assert settled_sums(roomy, 1) == {share}
    assert all(pauses_of(roomy, number) == [] for number in range(stages))


def test_one_request_gains_nothing_from_more_stages() -> None:
    """It pays the whole latency for every token, and a receive more for every stage."""
    cost = cost_of(40, forward_base=400, sample=10, copy=20, recv=5)
    took = [
        settled_sums(run_alone(name, 1, cost), 1) for name in ("serial", "vllm_pp2", "vllm_pp4")
    ]
    assert took == [{400 + 10 + 20 + 40 + 5 * hops} for hops in (0, 1, 3)]


def test_requests_that_share_a_batch_leave_the_other_stages_idle() -> None:
    """What comes together stays together: one batch goes round, whatever the number of stages."""
    requests = [Request(f"r{i}", [i + 1] * 3) for i in range(4)]
    cost = cost_of(40, forward_base=400)
    trace = run_loop("vllm_pp4", SimDevice(), HashModel(), requests, cost=cost).trace
    lanes = [[(s.start, s.end) for s in trace.on(f"stage {n}")] for n in range(4)]
    spans = sorted(span for lane in lanes for span in lane)
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), "never two at work"
