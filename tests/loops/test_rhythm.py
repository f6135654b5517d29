"""Every loop's rhythm, in tables over all of them: how long a settled step takes, how many steps
are in flight, what an end wastes. And the loops that have nothing in flight but one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.oracle import hash_oracle
from minisched.checks.overlap import measure
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.design import LOOPS
from minisched.loops.multi_step import NUM_STEPS
from minisched.loops.run import make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB, many, marked, named, run_alone, settled, tokens

# -- how long a settled step takes -----------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What each phase of the host takes, and each op of the device."""

    host: dict[str, int]
    forward: int
    sample: int
    c: int  # the copy
    recv: int

    def sum(self, *names: str) -> int:
        return sum(self.host[name] for name in names)

    @property
    def h(self) -> int:
        return self.sum("schedule", "prepare", "launch") + self.known

    @property
    def known(self) -> int:
        return self.sum("process", "output")

    @property
    def d(self) -> int:
        return self.forward + self.sample


PHASES = ("schedule", "prepare", "launch", "process", "output", "mask", "launch sample", "fill",
          "postprocess", "advance step")  # fmt: skip


def some_part(rng: Random) -> Part:
    def some() -> int:
        return 4 * rng.choice([0, rng.randint(1, 9), rng.randint(1, 60), rng.randint(1, 60), 100])

    host = {name: some() for name in PHASES}
    forward = 4 * rng.choice([rng.randint(1, 60), rng.randint(1, 250)])
    return Part(host, forward, some(), some(), some())


def in_turn(p: Part) -> int:
    return p.d + p.h + p.c


def ahead(depth: int) -> Callable[[Part], int]:
    return lambda p: max(depth * p.d, depth * p.h, depth * p.c, p.d + p.h + p.c)


def batches(depth: int, count: int) -> Callable[[Part], int]:
    at_once = min(depth, count)

    def law(p: Part) -> int:
        host = at_once * p.h + (depth - at_once) * p.sum("schedule")  # empty batches fill the queue
        return max(at_once * p.d, host, at_once * p.c, p.d + p.h + p.c)

    return law


def pipeline(stages: int, count: int, depth: int = 0) -> Callable[[Part], int]:
    at_once = min(depth or stages, count)

    def law(p: Part) -> int:
        each = [p.forward // stages + (p.recv if stage else 0) for stage in range(stages)]
        each[-1] += p.sample
        host = at_once * p.h + ((depth or stages) - at_once) * p.sum("schedule")
        return max(at_once * max(*each, p.c), host, sum(each) + p.c + p.h)

    return law


def late_sampling(p: Part) -> int:
    mask = p.sum("mask", "launch sample")
    chain, host = p.c + p.known + mask + p.sample, p.h + mask
    return max(2 * p.d, 2 * p.c, 2 * host, p.d + p.c + host, 2 * chain)


def sampled_after(*more: str) -> Callable[[Part], int]:
    def law(p: Part) -> int:
        extra = p.sum("launch sample", *more)
        turn, chain = p.h + extra, p.c + extra + p.sample
        return max(2 * p.d, 2 * p.c, 2 * turn, p.d + p.c + turn, 2 * chain)

    return law


def by_thread(p: Part) -> int:
    launch, sampling = p.sum("launch"), p.sum("launch sample")
    turn = max(2 * p.h, 2 * (launch + sampling))
    return max(2 * p.d, 2 * p.c, turn, p.d + p.c + p.h, p.sample + p.c + p.h + sampling)


def by_thread_late(p: Part) -> int:
    launch, sampling = p.sum("launch"), p.sum("launch sample")
    known = p.known + p.sum("mask")
    turns = 2 * (p.h + p.sum("mask")), 2 * (launch + known + sampling)
    chain = p.c + known + sampling + p.sample
    most = max(2 * p.d, 2 * p.c, *turns, 2 * chain)
    return max(most, p.d + p.c + p.h + p.sum("mask"), p.d + p.c + known + sampling + launch)


def filled_by_host(*more: str) -> Callable[[Part], int]:
    def law(p: Part) -> int:
        host = p.h - p.sum("launch") + p.sum("postprocess")
        return p.sum("launch", "fill", *more) + max(p.d + p.c, host)

    return law


def filled_by_device(p: Part) -> int:
    host = p.h + p.sum("postprocess")
    return max(2 * p.d, 2 * host, 2 * p.c, p.d + p.c + host)


def burst(length: int) -> Callable[[Part], int]:
    def law(p: Part) -> int:
        first = p.sum("schedule", "prepare", "launch")
        again = max(p.sum("advance step", "launch"), p.d, p.c)
        return first + p.d + (length - 1) * again + p.c + length * p.known

    return law


GRAMMAR, PENALTY = {"regex": "[^a]{60}"}, {"presence_penalty": 0.5}


@dataclass(frozen=True)
class Rhythm:
    """A design, with requests in batches of their own."""

    design: str
    period: int  # so many steps
    law: Callable[[Part], int]  # take so long
    wish: dict[str, Any] | None = None
    count: int = 1
    splits: bool = False  # sampling is launched by itself, and costs a launch

    def __str__(self) -> str:
        return f"{self.design} x {self.count} {' '.join(self.wish or ())}".strip()


RHYTHMS = [
    *(Rhythm(name, 1, in_turn) for name in (
        "serial", "mini_normal", "mini_normal:host", "mindie_placeholder",
        "mindie_placeholder:pool")),
    *(Rhythm(name, 2, ahead(2)) for name in (
        "overlap", "overlap:pool", "overlap:token_pool", "overlap_pool_indexed", "mixed",
        "mini_overlap", "mini_overlap:ring", "mlx_async", "mlx_async:pool", "vllm_async",
        "mindie_single", "mindie_single:pool", "two_batch")),
    *(Rhythm(f"vllm_async:pool:depth={depth}", depth, ahead(depth)) for depth in (1, 3, 5)),
    *(Rhythm(f"vllm_batch_queue:host:depth={depth}", min(depth, count), batches(depth, count),
             count=count) for depth, count in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (5, 3))),
    *(Rhythm(f"vllm_pp{stages}", min(stages, count), pipeline(stages, count), count=count)
      for stages, count in ((2, 1), (2, 2), (2, 3), (4, 1), (4, 3), (4, 5))),
    *(Rhythm(f"vllm_pp{stages}:host:depth={stages + 1}", stages + 1,
             pipeline(stages, stages + 1, stages + 1), count=stages + 1) for stages in (2, 4)),
    Rhythm("mlx_async", 1, lambda p: in_turn(p) + p.sum("mask"), GRAMMAR),
    Rhythm("overlap:ring:delay_sample=true", 2, late_sampling, splits=True),
    *(Rhythm(name, 2, late_sampling, wish, splits=True)
      for name in ("overlap", "vllm_async", "mindie_single") for wish in (GRAMMAR, PENALTY)),
    *(Rhythm(name, 2, sampled_after(), splits=True)
      for name in ("trtllm_overlap", "trtllm_overlap:ring", "trtllm_max_utilization")),
    *(Rhythm("trtllm_overlap", 2, sampled_after("mask"), wish, splits=True)
      for wish in (GRAMMAR, PENALTY)),
    Rhythm("overlap_thread", 2, by_thread, splits=True),
    Rhythm("overlap_thread:ring:delay_sample=true", 2, by_thread_late, splits=True),
    Rhythm("overlap_thread", 2, by_thread_late, GRAMMAR, splits=True),
    *(Rhythm(name, 1, filled_by_host()) for name in ("mindie_plugin", "mindie_dual")),
    *(Rhythm(name, 1, filled_by_host("mask"), GRAMMAR) for name in (
        "mindie_plugin", "mindie_dual")),
    Rhythm("mindie_plugin:fill_device", 2, filled_by_device),
    *(Rhythm("vllm_step", 1, lambda p: max(p.forward, p.sum("mask")) + p.sample + p.c + p.h, wish)
      for wish in (GRAMMAR, PENALTY)),
    Rhythm("vllm_step", 1, in_turn),
    *(Rhythm(f"multi_step:{relay}:num_steps={length}", length, burst(length))
      for relay in ("pool", "chain") for length in range(1, NUM_STEPS + 1)),
]  # fmt: skip


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_a_settled_step_takes_what_the_design_says(rhythm: Rhythm) -> None:
    for seed in range(many(1, 10)):
        part = some_part(Random(seed))
        if not rhythm.splits:
            part.host["launch sample"] = 0
        cost = CostModel(part.host, part.forward, 0, part.sample, part.c, recv=part.recv)
        trace = run_alone(rhythm.design, rhythm.count, cost, **(rhythm.wish or {}))
        assert settled(trace, rhythm.period) == {rhythm.law(part)}, part


def test_every_loop_is_in_these_tables() -> None:
    assert {row.design.partition(":")[0] for row in RHYTHMS} == LOOPS.keys() - {"pd"}
    assert {design.partition(":")[0] for design in ENDS} == set(LOOPS)


# -- what an end wastes ----------------------------------------------------------------------------

Wastes = Callable[[int, int], int]  # from tokens given, and tokens that it might still have had


def one_after_the_first(given: int, left: int) -> int:
    return int(given > 1)


def rest_of_burst(length: int) -> Wastes:
    return lambda given, left: -(given - 1) % length


def in_flight_behind(depth: int) -> Wastes:
    return lambda given, left: min(depth - 1, left)


NONE, ONE = (lambda given, left: 0), (lambda given, left: 1)
AS_OF_0_5_21 = "enable_skip_finishing_decode=false"
ENDS: dict[str, tuple[Wastes, Wastes]] = {  # of a stop token that nobody foresaw; of a length
    **dict.fromkeys(
        ("serial", "mini_normal", "vllm_step", "vllm_batch_queue", "vllm_pp2", "vllm_pp4",
         "vllm_batch_queue:host:depth=4", "mindie_placeholder"), (NONE, NONE)),  # nobody is ahead
    **dict.fromkeys(
        ("overlap", "overlap:pool", "overlap_pool_indexed", "mixed", "two_batch"),
        (ONE, NONE)),  # enable_skip_finishing_decode
    **dict.fromkeys(("trtllm_overlap", "trtllm_max_utilization"), (ONE, NONE)),  # early exit, #8587
    "trtllm_overlap:pool:early_exit=false": (ONE, ONE),
    **dict.fromkeys(
        (f"overlap:ring:{AS_OF_0_5_21}", f"mixed:pool:{AS_OF_0_5_21}", "overlap_thread"),
        (ONE, ONE)),  # only finished() is looked at
    **dict.fromkeys(("mlx_async", "pd"), (one_after_the_first, one_after_the_first)),
    "mini_overlap": (ONE, NONE),  # complete_one() counts at launch
    "mindie_plugin": (ONE, ONE),  # the finishing round only flags
    "mindie_dual": (ONE, ONE),
    "mindie_single": (ONE, NONE),
    "vllm_async": (in_flight_behind(2), NONE),  # placeholders count
    "vllm_async:ring:depth=4": (in_flight_behind(4), NONE),
    "vllm_async:pool:depth=7": (in_flight_behind(7), NONE),
    "multi_step": (rest_of_burst(NUM_STEPS), rest_of_burst(NUM_STEPS)),
    "multi_step:pool:num_steps=3": (rest_of_burst(3), rest_of_burst(3)),
}  # fmt: skip
ALONE_ONLY = ("mlx_async", "pd")  # what one wastes depends on the others; in their own tests


@pytest.mark.parametrize("design", ENDS)
@given(data=st.data())
@settings(max_examples=many(4, 40))
def test_an_end_costs_what_the_design_says(design: str, data: st.DataObject) -> None:
    count = 1 if design in ALONE_ONLY else data.draw(st.integers(1, 3))
    requests = []
    for at in range(count):
        prompt = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9))
        params, name = tokens(data.draw(st.integers(1, 14))), f"r{at}"
        request = Request(name, prompt, params)
        if data.draw(st.booleans()):
            alone = hash_oracle(prompt, params, request.sampling_key, VOCAB, frozenset()).tokens
            stops = frozenset(alone[len(alone) // 2 :][:1])
            request = Request(name, prompt, SamplingParams(max_new_tokens=14, stop_token_ids=stops))
        requests.append(request)
    chunk = data.draw(st.integers(1, 9)) if count == 1 else 100
    config = SchedulerConfig(chunked_prefill_size=chunk, disable_radix_cache=True)
    model = HashModel(VOCAB, eos_ids=frozenset())
    trace = run_loop(design, SimDevice(), model, requests, config, SIM_COST).trace
    by_stop, by_length = ENDS[design]
    for req in requests:
        given = len(req.output_ids)
        left = req.params.max_new_tokens - given
        stopped = req.finish_reason is FinishReason.STOP and left > 0
        assert marked(trace)[req.rid] == (by_stop if stopped else by_length)(given, left)


# -- serial: host and device take turns ------------------------------------------------------------


@pytest.mark.parametrize("loop", ["serial", "mini_normal:host"])
def test_the_host_and_the_device_take_turns(loop: str) -> None:
    requests = [Request(f"r{i}", [i] * 5, tokens(9 + i)) for i in range(4)]
    trace = run_loop(loop, SimDevice(), HashModel(), requests, cost=SIM_COST).trace
    assert measure(trace).host_hidden_ns == measure(trace).wasted_rows == 0
    busy = [item for item in trace.slices if item.duration and item.name != "wait"]
    busy.sort(key=lambda item: item.start)
    assert all(before.end <= after.start for before, after in pairwise(busy))


# -- mini_normal: the serial schedule, all of it on the engine's stream ----------------------------


def test_all_that_the_device_does_but_the_copy_is_on_the_engines_stream() -> None:
    trace = run_loop("mini_normal", SimDevice(), HashModel(), [Request("a", [1], tokens(3))]).trace
    assert {item.lane for item in trace.slices} == {"host", "forward", "copy"}
    names = [item.name for item in trace.on("forward")]
    assert names == ["upload", *["forward", "sample"] * 3]


# -- mini_overlap: one step of lag -----------------------------------------------------------------


@pytest.mark.parametrize("loop", ["mini_overlap", "overlap", "overlap_thread", "vllm_async"])
def test_a_result_is_processed_while_the_next_step_runs(loop: str) -> None:
    cost = CostModel({"schedule": 5, "launch": 1, "process": 5}, 20, 0, 2, 4)
    trace = run_alone(loop, 1, cost)
    launches, done, samples = (named(trace, name) for name in ("launch", "process", "sample"))
    for step in range(2, 35):
        assert launches[step + 1].end <= done[step].start
        assert done[step].end <= samples[step + 1].end


# -- vllm_step: whoever gives up is heard while the step runs --------------------------------------


def test_an_abort_goes_before_the_tokens_of_the_step_that_ran_meanwhile() -> None:
    def heard(loop: str) -> list[Output]:
        outputs: list[Output] = []
        frontend = Frontend([Request("r", [1, 2, 3], tokens(9))], outputs.append)
        frontend.abort("r", at=2 * 200 + 105)  # in the middle of the third step
        cost = CostModel({"schedule": 40, "launch": 20, "process": 40}, forward_base=90, copy=10)
        engine = make_engine(loop, SimDevice(), HashModel(), SchedulerConfig(), frontend, cost)
        turns = LOOPS[loop].start(engine)
        while not engine.is_done:
            next(turns)
        assert outputs[-1].finish_reason is FinishReason.ABORT
        return outputs

    assert [item.token is None for item in heard("vllm_step")] == [False, False, True]
    assert [item.token is None for item in heard("serial")] == [False, False, False, True]
