"""mini-sglang without overlap: the serial schedule on one stream, its inputs on the device."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.trace import Trace
from tests.support import VOCAB, Workload, check_all, fresh, play, workloads
from tests.test_overlap_check import C, D, run_steady

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 4)


def steps_of(workload: Workload, loop: str, relay: str) -> list[tuple[str, tuple[str, ...]]]:
    """The mode and the requests of every step; and every law is checked."""
    workload, device = fresh(workload), SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, loop, relay, {}, device, model, COST)
    check_all(workload, engine, outputs)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    return [(item.mode, item.rids) for item in trace.on("forward") if item.name == "forward"]


@pytest.mark.parametrize("relay", ["token_pool", "host"])
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_its_schedule_is_the_serial_one(relay: str, workload: Workload) -> None:
    """Step for step, whoever keeps the tokens."""
    assert steps_of(workload, "mini_normal", relay) == steps_of(workload, "serial", "host")


def run(requests: list[Request], **options: object) -> Trace:
    return run_loop("mini_normal", SimDevice(), HashModel(), requests, cost=COST, **options).trace


def test_all_that_the_device_does_but_the_copy_is_on_the_engines_stream() -> None:
    trace = run([Request("a", [1, 2, 3], SamplingParams(max_new_tokens=3, ignore_eos=True))])
    assert {item.lane for item in trace.slices} == {"host", "forward", "copy"}
    names = [item.name for item in trace.on("forward")]
    assert names == ["upload", *["forward", "sample"] * 3]


def test_receiving_blocks_only_if_there_is_nothing_else_to_do() -> None:
    """The host rests from the end of one request to the coming of the next, and never before."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    late = Request("b", [4, 5], params, arrival_time=1000)
    trace = run([Request("a", [1, 2, 3], params), late])
    busy = [item for item in trace.on("host") if item.duration]
    rests = [(a.end, b.start) for a, b in pairwise(busy) if b.start > a.end]
    (rest,) = rests
    assert rest[1] == late.arrival_time
    assert {item.rids for item in trace.slices if item.end > rest[1] and item.rids} == {("b",)}


@pytest.mark.parametrize("tenths", [1, 5, 10, 15, 20])
def test_a_settled_step_takes_host_device_and_copy_one_after_the_other(tenths: int) -> None:
    host = D * tenths // 10
    assert set(run_steady("mini_normal", host, D, C)) == {D + host + C}


@given(st.integers(1, 40), st.integers(11, 60), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_whatever_they_cost(host: int, device: int, copy: int) -> None:
    host, device, copy = 10 * host, 100 * device, 10 * copy
    assert set(run_steady("mini_normal", host, device, copy)) == {host + device + copy}
