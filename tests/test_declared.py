"""What ops declare is what they touch, and nothing that is touched is a race."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.races import examine
from minisched.devices.registry import open_device
from minisched.loops.pd_run import RELAYS
from minisched.trace import Trace

from .backends import EVERY_LOOP, hash_model
from .laws import play
from .pd_runs import links, play_pd, timed
from .test_speculation import EVERY, speculative_workloads, target
from .touched import check_declared, watched
from .workloads import Workload, workloads


def check_no_race(trace: Trace) -> None:
    """Whatever two lanes do to the same memory is ordered, and no act waits for ever."""
    found = examine(trace)
    assert not found.races and not found.waits, [str(item) for item in (*found.races, *found.waits)]


def check_speculating(workload: Workload, loop: str, relay: str, options: dict[str, Any]) -> None:
    device, model = open_device("sim"), target("sim", workload.eos_ids)
    with watched() as log:
        engine, _ = play(workload, loop, relay, options, device, model)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    check_declared(trace, log, engine, exact=False)
    check_no_race(trace)


@EVERY_LOOP
@given(workload=workloads())
@settings(max_examples=8, deadline=None)
def test_ops_declare_what_they_touch(
    loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    device, model = open_device("sim"), hash_model("sim", workload.eos_ids)
    with watched() as log:
        engine, _ = play(workload, loop, relay, options, device, model)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    check_declared(trace, log, engine)
    check_no_race(trace)


@EVERY
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_with_drafts_ops_declare_what_they_may_touch(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any
) -> None:
    """More than they do, where only the device knows where a row begins."""
    workload = data.draw(speculative_workloads(algorithm))
    check_speculating(workload, loop, relay, options)


@pytest.mark.parametrize("relay", RELAYS)
@given(workload=timed, options=links)
@settings(max_examples=20, deadline=None)
def test_both_sides_of_pd_declare_what_they_touch(
    relay: str, workload: Workload, options: dict[str, Any]
) -> None:
    with watched() as log:
        run = play_pd(workload, options, relay=relay)
    check_declared(run.trace, log, run.pair.prefill, run.pair.decode)
    check_no_race(run.trace)
