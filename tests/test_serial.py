"""The serial loop: nothing overlaps, nothing is wasted."""

from __future__ import annotations

from hypothesis import given, settings

from minisched.checks.overlap.overlap import measure
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.models.hash import HashModel
from tests.support import VOCAB, Workload, play, workloads


@given(workload=workloads(with_aborts=False))
@settings(max_examples=60, deadline=None)
def test_the_host_and_the_device_take_turns(workload: Workload) -> None:
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "serial", "host", {}, device, model, SIM_COST)
    trace = device.recorder.trace("serial", "sim", "hash", "virtual")
    report = measure(trace)
    assert report.host_hidden_ns == 0 and report.wasted_rows == 0
    steps = [(item.start, item.end) for item in trace.slices if item.lane != "host"]
    work = [(s.start, s.end) for s in trace.on("host") if s.name != "wait"]
    assert not any(a < end and start < b for a, b in steps for start, end in work)
