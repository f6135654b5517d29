"""The laws on ``sim``, over the product of loops, relays, options and random workloads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.models.hash import HashModel

from .laws import LOOP_OPTIONS, check_all, play
from .workloads import VOCAB, Workload, workloads

costs = st.builds(
    lambda host, forward, sample, copy: CostModel(
        {"schedule": host, "launch": 1, "process": host}, forward, 0, sample, copy
    ),
    host=st.sampled_from([0, 1, 5, 30]),
    forward=st.sampled_from([1, 4, 10]),
    sample=st.sampled_from([0, 2]),
    copy=st.sampled_from([0, 1, 9]),
)


@pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS, ids=str)
@given(workload=workloads(), cost=costs)
@settings(max_examples=250, deadline=None)
def test_laws(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    check_all(workload, engine, outputs)
    assert device.is_idle
    reasons = Counter(mark.name for mark in device.recorder.trace("", "", "", "").marks)
    if loop == "serial" and not workload.aborts:
        assert reasons["wasted row"] == 0
