"""The laws, over the product of loops, relays, options, backends and random workloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    Workload,
    check_all,
    check_no_thread_left,
    hash_model,
    in_real_time,
    open_device,
    play,
    workloads,
)

costs = st.builds(
    lambda host, forward, sample, copy: CostModel(
        {"schedule": host, "launch": 1, "process": host}, forward, 0, sample, copy
    ),
    host=st.sampled_from([0, 1, 5, 30]),
    forward=st.sampled_from([1, 4, 10]),
    sample=st.sampled_from([0, 2]),
    copy=st.sampled_from([0, 1, 9]),
)


@EVERY_LOOP
@given(workload=workloads(), cost=costs)
@settings(max_examples=150, deadline=None)
def test_laws_on_sim(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    device = SimDevice()
    model = hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    check_all(workload, engine, outputs)
    assert device.is_idle
    wasted = [mark for mark in device.recorder.trace("", "", "", "").marks if "waste" in mark.name]
    assert loop != "serial" or workload.aborts or not wasted


@in_real_time(LOOP_OPTIONS)
@given(workload=workloads())
@settings(max_examples=40, deadline=None)
def test_laws_in_real_time(
    backend: str, loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    model = hash_model(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, open_device(backend), model)
    check_all(workload, engine, outputs)
    check_no_thread_left()


@pytest.mark.parametrize("relay", LOOPS["mixed"].relays)
@given(workload=workloads(), cost=costs)
@settings(max_examples=60, deadline=None)
def test_laws_of_mixed(relay: str, workload: Workload, cost: CostModel) -> None:
    """It settles who runs by itself, and needs chunks for that."""
    if workload.config.chunked_prefill_size == -1:
        page_size = workload.config.page_size
        workload.config = replace(workload.config, chunked_prefill_size=2 * page_size)
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, "mixed", relay, {}, device, model, cost)
    check_all(workload, engine, outputs)
