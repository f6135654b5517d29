"""What ops declare is what they touch, on every loop, and nothing that is touched is a race."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.races import examine
from minisched.checks.touches import Touched
from minisched.checks.workload import fresh
from minisched.core import Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.loops.pd import Pair
from minisched.loops.pd_run import RELAYS
from minisched.models.base import Model
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Trace
from minisched.trace.lanes import is_host
from tests.pd_runs import links, play_pd, timed
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    Workload,
    hash_model,
    in_real_time,
    play,
    workloads,
)
from tests.test_speculation import EVERY, SPECULATIVE, speculative_workloads, target

Options = dict[str, Any]


def check_no_race(trace: Trace) -> None:
    """Whatever two lanes do to the same memory is ordered, and no act waits for ever."""
    found = examine(trace)
    assert not (found.races or found.waits), [str(item) for item in (*found.races, *found.waits)]


def traced(
    workload: Workload, loop: str, relay: str, options: Options, backend: str, model: Model
) -> tuple[Trace, Touched]:
    """A run, and what it really touched where the device is ``sim``."""
    device, touched = open_device(backend), Touched()
    play(workload, loop, relay, options, device, model, patch=touched.watch)
    return device.recorder.trace(loop, backend, "hash", device.clock), touched


# -- on the simulator, where every access can be watched ------------------------------------------


@EVERY_LOOP
@given(workload=workloads(max_requests=4))
@settings(max_examples=4, deadline=None)
def test_ops_declare_what_they_touch(
    loop: str, relay: str, options: Options, workload: Workload
) -> None:
    model = hash_model("sim", workload.eos_ids)
    trace, touched = traced(workload, loop, relay, options, "sim", model)
    assert list(touched.check(trace)) == []
    check_no_race(trace)


@EVERY
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_with_drafts_ops_declare_what_they_may_touch(
    loop: str, relay: str, options: Options, algorithm: str, data: Any
) -> None:
    """More than they do, where only the device knows where a row begins."""
    workload = data.draw(speculative_workloads(algorithm))
    model = target("sim", workload.eos_ids)
    trace, touched = traced(workload, loop, relay, options, "sim", model)
    assert list(touched.check(trace)) == []
    check_no_race(trace)


@pytest.mark.parametrize("relay", RELAYS)
@given(workload=timed, options=links)
@settings(max_examples=5, deadline=None)
def test_both_sides_of_pd_declare_what_they_touch(
    relay: str, workload: Workload, options: Options
) -> None:
    """And a transfer, which reads one side's KV and writes the other's."""
    touched = Touched()

    def watch(pair: Pair) -> None:
        touched.watch(pair.prefill)
        touched.watch(pair.decode)

    run = play_pd(workload, options, watch, relay)
    assert list(touched.check(run.trace)) == []
    check_no_race(run.trace)


def small_workload() -> Workload:
    """Four requests on a pool too small for them: chunks, a cached prefix, a retraction."""
    prompts = [[7, 7, 11, 2, 7, 7], [7, 7, 11, 2, 5], [1, 2, 3, 4, 5, 6, 7], [7, 7, 11, 2, 9]]
    requests = [
        Request(f"r{i}", prompt, SamplingParams(i % 2 * 0.8, max_new_tokens=6))
        for i, prompt in enumerate(prompts)
    ]
    config = SchedulerConfig(
        kv_tokens=22, page_size=2, max_running_requests=3, chunked_prefill_size=4, context_len=32,
        schedule_conservativeness=0.0,
    )  # fmt: skip
    return Workload(requests, [0, 1, 3, 6], {}, config)


@pytest.mark.parametrize("kind, resource, words", [
    ("read", "kv", "KV slot"), ("write", "kv", "KV slot"), ("read", "page table", "page table"),
    ("write", "page table", "page table"), ("read", "future map", "future slot"),
    ("write", "future map", "future slot"), ("write", "output 1", "device output buffer 1"),
    ("read", "output 1", "device output buffer 1"),
    ("write", "host output 1", "host output buffer 1"),
])  # fmt: skip
def test_what_is_not_declared_and_what_is_declared_in_vain_is_noticed(
    kind: str, resource: str, words: str
) -> None:
    model = hash_model("sim", frozenset())
    trace, touched = traced(small_workload(), "overlap", "pool", {}, "sim", model)
    assert list(touched.check(trace)) == [] and touched.accesses

    def with_acts(change: Any) -> Trace:
        its = [a for a in trace.program if (a.kind, a.resource) == (kind, resource)]
        change_of = {id(act): change(act) for act in its[1:2]}  # in one op, not the first
        acts = (change_of.get(id(act), act) for act in trace.program)
        return replace(trace, program=tuple(act for act in acts if act is not None))

    [unsaid] = touched.check(with_acts(lambda act: None))
    assert f" {kind}s " in unsaid and words in unsaid and unsaid.endswith(", and has not said so")
    [in_vain] = touched.check(with_acts(lambda act: replace(act, at=f"{act.at} 999")))
    assert f"says that it {kind}s" in in_vain and in_vain.endswith(", and does not")


# -- in real time, where the same is declared ------------------------------------------------------


def declared_by_op(trace: Trace) -> dict[tuple[str, str, int], list[tuple[str, ...]]]:
    """What the ops on streams declare, by lane, name and step."""
    ops = {item.id: (item.lane, item.name, item.step) for item in trace.slices}
    found = defaultdict(list)
    for act in trace.program:
        if act.op in ops and act.resource not in ("", "value") and not is_host(act.lane):
            found[ops[act.op]].append(accessed(act))
    return found


def accessed(act: Act) -> tuple[str, ...]:
    """What an act touches."""
    return act.kind, act.resource, act.at, act.rid


@in_real_time(LOOP_OPTIONS)
def test_the_same_is_declared_in_real_time(
    backend: str, loop: str, relay: str, options: Options
) -> None:
    """Op by op as on ``sim``; and nothing of it is a race.

    Where a loop asks whether a step has ended, its batches are the clock's affair.
    """
    workload = small_workload()
    ideal, _ = traced(fresh(workload), loop, relay, options, "sim", hash_model("sim", frozenset()))
    trace, _ = traced(workload, loop, relay, options, backend, hash_model(backend, frozenset()))
    if "harvest_when_done" not in options:
        assert declared_by_op(trace) == declared_by_op(ideal) != {}
    check_no_race(trace)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@pytest.mark.parametrize(
    ("loop", "relay", "options", "algorithm"), [*SPECULATIVE[::5], SPECULATIVE[-1]], ids=str
)
@given(data=st.data())
@settings(max_examples=2, deadline=None)
def test_no_race_with_drafts_in_real_time(
    loop: str, relay: str, options: Options, algorithm: str, backend: str, data: Any
) -> None:
    workload = data.draw(speculative_workloads(algorithm))
    model = target(backend, workload.eos_ids)
    trace, _ = traced(workload, loop, relay, options, backend, model)
    check_no_race(trace)
