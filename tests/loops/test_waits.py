"""Where each loop waits for history: exactly there, marked once, and with nothing but that op; and
what the waits cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import count, islice
from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.causes import ARRIVAL, HOST, lost_ns, num_waits, waits
from minisched.checks.draw import DRAFTERS, Variant, draw
from minisched.checks.judge import judge
from minisched.checks.overlap import measure
from minisched.core import NoBatch, Request, ScheduleBatch
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.layout import make_view
from minisched.loops.design import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Mark, Slice, Trace
from tests.support import LOOP_OPTIONS, many, named, tokens

LENGTH = 16
WISHES: dict[str, dict[str, Any]] = {
    "grammar": {"regex": "[a-z]{60}"},
    "penalty": {"frequency_penalty": 0.5},
}
HOST_FIRST = CostModel(
    {"schedule": 5, "prepare": 2, "launch": 3, "launch sample": 4, "mask": 6, "process": 5},
    forward_base=90, sample=7, copy=2,
)  # fmt: skip


def run_one(
    loop: str, relay: str, options: dict[str, Any], wish: dict[str, Any], **config: Any
) -> Trace:
    request = Request("r", [1, 2, 3], tokens(LENGTH, **wish))
    run = run_loop(
        loop, SimDevice(), HashModel(), [request], SchedulerConfig(**config), HOST_FIRST, relay,
        **options,
    )  # fmt: skip
    assert len(request.output_ids) == LENGTH
    return run.trace


# -- how often, in steady decode -------------------------------------------------------------------


def steps_that_wait(loop: str, relay: str, options: dict[str, Any]) -> dict[str, int]:
    """How many of a request's steps wait, by op: all but the prompt's, where one runs ahead.

    A step past its end, which nobody foresaw, waits as well. MLX chains nothing: what waits is the
    whole step, but the second, which is never chained. Where the plugin's host fills, its bitmask
    is in front of the forward pass. On ``pd`` the first token comes with the prompt's KV.
    """
    if loop in ("mlx_async", "pd"):
        return {"forward" if loop == "mlx_async" else "sample": LENGTH - 2 + (loop == "pd")}
    runs_ahead = relay != "host" and options.get("depth") != 1
    runs_ahead = runs_ahead and loop != "mindie_placeholder"
    op = "forward" if relay == "fill_host" else "sample"
    return {op: LENGTH - 1 + LOOPS[loop].overrun} if runs_ahead else {}


DESIGNS = [item for item in LOOP_OPTIONS if item[2] or item[1] == LOOPS[item[0]].relays[0]]
DESIGNS += [("vllm_async", "pool", {"depth": 1})]
TAKEN = [
    (*item, reason)
    for item in [*DESIGNS, ("pd", "pool", {})]
    for reason, feature in (("grammar", "grammar"), ("penalty", "penalties"))
    if feature not in LOOPS[item[0]].refusals(item[1])
]


@pytest.mark.parametrize(("loop", "relay", "options", "reason"), TAKEN, ids=str)
def test_every_step_waits_that_has_to_and_has_one_mask(
    loop: str, relay: str, options: dict[str, Any], reason: str
) -> None:
    trace = run_one(loop, relay, options, WISHES[reason])
    marks = [mark for mark in waits(trace) if mark.attrs["reason"] != "prefill"]
    assert Counter(str(mark.attrs["op"]) for mark in marks) == steps_that_wait(loop, relay, options)
    assert {mark.attrs["reason"] for mark in marks} <= {reason}
    steps = [mark.attrs["step"] for mark in marks]
    assert sorted(set(steps)) == steps, "once each, in order"
    masks = [item for item in trace.slices if item.name == "mask"]
    if loop == "pd":
        assert {mark.attrs["side"] for mark in marks} == {"decode"}
        masks = [item for item in masks if item.lane == "decode host"]
    lane = {"vllm_pp2": "stage 0", "vllm_pp4": "stage 0", "pd": "decode forward"}
    forwards = named(trace, "forward", lane.get(loop, "forward"))
    assert sorted(item.step for item in masks) == sorted(forwards)
    if reason == "penalty":
        late = run_one(loop, relay, options, WISHES[reason], late_penalties=True)
        assert bool(num_waits(late)) == (options.get("depth", 2) > 2 and relay != "host")


def test_who_wants_nothing_waits_for_nothing() -> None:
    for loop, relay, options in DESIGNS:
        trace = run_one(loop, relay, options, {"logit_bias": {5: 1.0}})
        has_masks = any(item.name == "mask" for item in trace.slices)
        assert not num_waits(trace) and has_masks == bool(options.get("delay_sample")), loop


# -- in any workload: a step waits if the host lacks a token for it, and else not ------------------


def lacks(batch: ScheduleBatch, late: bool) -> str:
    reasons = set()
    for row in batch.rows:
        missing = row.end - len(row.req.prompt) - len(row.req.output_ids)
        if row.deliver and missing > 0:
            if row.req.params.has_grammar:
                reasons.add("grammar")
            elif row.req.params.has_penalties and missing > late:
                reasons.add("penalty")
    return min(reasons, default="")


def has_sampling_extras(seed: int) -> bool:
    requests = [] if DRAFTERS[seed % len(DRAFTERS)] else drawn(seed).workload.requests
    return any(req.params.has_grammar or req.params.has_penalties for req in requests)


drawn = cache(partial(draw, odd=False))
SEEDS = list(islice(filter(has_sampling_extras, count()), many(2, 20)))


@pytest.mark.parametrize(("loop", "relay", "options"), DESIGNS, ids=str)
def test_a_step_waits_exactly_if_the_host_lacks_a_token(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    for seed in SEEDS:
        check_waits(drawn(seed).on(Variant(loop, relay, options)))


def check_waits(case: Case) -> None:
    late, lacked = case.workload.config.late_penalties, dict[int, str]()

    def watch(engine: Engine) -> None:
        next_batch, chain = engine.scheduler.next_batch, engine.scheduler.chain

        def scheduled() -> ScheduleBatch | NoBatch:
            batch = next_batch()
            if batch and (reason := lacks(batch, late)):
                lacked[batch.step] = reason
            return batch

        def once_more(batch: ScheduleBatch) -> ScheduleBatch | None:
            again = chain(batch)
            assert not (again and lacks(again, late)), "chained upon what has to be seen"
            return again

        engine.scheduler.next_batch = scheduled  # type: ignore[method-assign]
        engine.scheduler.chain = once_more  # type: ignore[method-assign]

    trace = judge(case, watch).trace
    op = "forward" if case.relay == "fill_host" else "sample"
    marks = [mark for mark in waits(trace) if mark.attrs["op"] == op]
    said = {mark.attrs["step"]: mark.attrs["reason"] for mark in marks}
    assert len(said) == len(marks)
    in_order = {m.attrs["step"] for m in waits(trace) if m.attrs["reason"] == "prefill"}
    assert {step: why for step, why in said.items() if why != "prefill"} == {
        step: why
        for step, why in lacked.items()
        if step not in in_order  # it waited for all then
    }
    lost = lost_ns(trace)
    assert sum(lost.values()) == measure(trace).bubble_ns and min(lost.values()) >= 0


# -- with drafts -----------------------------------------------------------------------------------


def run_speculative(loop: str, relay: str, algorithm: str, reason: str, **options: Any) -> Trace:
    wishes = {"regex": r"[\x00-\x02]{60}"} if reason == "grammar" else WISHES[reason]
    config = SchedulerConfig(speculative_algorithm=algorithm, speculative_num_draft_tokens=3)
    request = Request("r", [1, 2, 0, 1, 2, 0], tokens(30, **wishes))
    model = HashModel(3, eos_ids=frozenset())
    return run_loop(loop, SimDevice(), model, [request], config, HOST_FIRST, relay, **options).trace


@pytest.mark.parametrize("reason", WISHES)
def test_sampling_waits_with_drafts_and_before_the_barrier_of_sglang_the_forward_pass_did(
    reason: str,
) -> None:
    older = {"supports_grammar_overlap": False}
    for loop, options, op in (
        ("overlap", older, "forward"), ("overlap", {}, "sample"), ("vllm_async", {}, "sample"),
    ):  # fmt: skip
        trace = run_speculative(loop, "pool", "NGRAM_GPU", reason, **options)
        forwards, samples, processed = (
            named(trace, name) for name in ("forward", "sample", "process")
        )
        marks = waits(trace)
        assert {(mark.attrs["op"], mark.attrs["reason"]) for mark in marks} == {(op, reason)}
        steps = [int(mark.attrs["step"]) for mark in marks]
        assert loop != "overlap" or steps == sorted(forwards)[1:]
        has_barrier = loop == "overlap" and not options and reason == "grammar"
        for step in steps:
            copied = named(trace, "copy")[step - 1].end
            known = copied if has_barrier else processed[step - 1].end
            assert known <= (forwards if op == "forward" else samples)[step].start
            assert op == "forward" or forwards[step].start < known
    for loop in ("serial", "vllm_step", "vllm_batch_queue"):
        assert not num_waits(run_speculative(loop, "", "NGRAM", reason)), "nothing runs ahead"


# -- what waits cost -------------------------------------------------------------------------------


def test_nobody_there_is_not_the_hosts_fault() -> None:
    later = 2000 * MILLISECOND
    requests = [Request("a", [1, 2], tokens(3)), Request("b", [3, 4], tokens(3), later)]
    trace = run_loop("serial", SimDevice(), HashModel(), requests, cost=SIM_COST).trace
    lost = lost_ns(trace)
    assert lost[ARRIVAL] == later - named(trace, "process")[3].end
    assert lost[HOST] == measure(trace).bubble_ns - lost[ARRIVAL]


US = 1000  # nanoseconds


def test_a_wait_is_charged_the_gap_before_its_op_in_numbers_and_views() -> None:
    """Step 2's forward pass runs, its sampling waits for a grammar; step 3 is merely late."""
    ran = [
        ("host", "launch", 0, 10, 1), ("forward", "forward", 10, 20, 1),
        ("forward", "sample", 20, 22, 1), ("forward", "forward", 22, 30, 2),
        ("host", "mask", 30, 36, 2), ("forward", "sample", 36, 38, 2),
        ("forward", "forward", 41, 50, 3),
    ]  # fmt: skip
    slices = tuple(
        Slice(at, lane, name, start * US, end * US, step)
        for at, (lane, name, start, end, step) in enumerate(ran, 1)
    )
    marks = tuple(
        Mark("wait", time * US, {"step": step, "reason": reason, "op": "sample"})
        for time, step, reason in ((12, 2, "grammar"), (40, 9, "penalty"))
    )
    trace = Trace("late", "sim", "hash", "virtual", slices, (), (), marks)
    assert lost_ns(trace) == {"grammar": 6 * US, "penalty": 0, HOST: 3 * US, ARRIVAL: 0}
    odd = replace(trace, marks=(Mark("wait", 3, {"step": 2}),))
    assert lost_ns(odd) == {HOST: 9 * US, ARRIVAL: 0}, "a mark that says too little is no wait"
    stretches = [(b.start, b.end, b.cause) for b in make_view(trace).bubbles]
    assert stretches == [(30 * US, 36 * US, "grammar"), (38 * US, 41 * US, "")]
