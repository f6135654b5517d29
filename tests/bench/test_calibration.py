"""Calibrating returns the costs of a simulated machine: it fits runs and predicts other runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.bench.calibrate import CalibrationLoad, fit_costs, observe
from minisched.checks.recorded import find_out_of_time
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, CostModel, Pace
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.base import Model
from minisched.models.hash import HashModel
from minisched.replay.profiles import (
    HostCost,
    MachineCost,
    Profile,
    as_json,
    from_json,
    interpolate,
    read_profile,
)
from minisched.replay.replay import LengthModel
from minisched.scheduler import SchedulerConfig

LOOPS = ("overlap", "vllm_step", "mindie_plugin")
HELD_OUT = (
    CalibrationLoad(3, 50, 9),
    CalibrationLoad(6, 20, 11, 5 * MILLISECOND),
    CalibrationLoad(5, 33, 7, MILLISECOND, 9_000_000),
)
PHASES = ("receive", "schedule", "prepare", "launch", "launch sample", "fill", "postprocess",
          "process", "output")  # fmt: skip
MACHINE = MachineCost(
    forward_knots=((1, 7_654_321), (513, 7_654_321 + 512 * 43_210)),
    kv_read_ps=3_456_000,
    attention_ps=78_000,
    sample=456_789,
    sample_per_row=1234,
    copy=234_567,
    loops={"serial": HostCost(
        {name: 123_457 * at for at, name in enumerate(PHASES, 1)},
        {"prepare": 3210, "process": 4321}, {"prepare": 87, "process": 12},
        {"schedule": 23_456, "process": 34_567},
    )},
    pace=Pace(start={"sample": 21_000, "copy": 31_000}, wake=41_000),
    added_work=1234,
)  # fmt: skip


def makespan(loop: str, model: Model, load: CalibrationLoad, cost: CostModel) -> int:
    """Nanoseconds on ``sim`` from the first ``receive`` to the end."""
    trace, _ = observe(loop, "sim", model, load, cost)
    return trace.end - min(item.start for item in trace.slices if item.name == "receive")


def check_predictions(truth: MachineCost, found: MachineCost, most: float) -> None:
    """No predicted makespan is off by more than that share. Tokens make no difference to it."""
    model = HashModel()
    lengths: Any = LengthModel(model.vocab_size - 1, 1, model.context_len)
    for loop in ("serial", *LOOPS):
        for load in HELD_OUT:
            real, predicted = (
                makespan(loop, model, load, truth),
                makespan(loop, lengths, load, found),
            )
            assert abs(predicted / real - 1) < most


def test_calibrating_a_simulated_machine_gives_back_its_costs() -> None:
    found, serial = fit_costs("sim", HashModel(), LOOPS, 1, MACHINE), MACHINE.loops["serial"]
    ours = found.loops["serial"]
    assert ours.base == {name: serial.base[name] for name in ours.base}
    assert found.loops["mindie_plugin"].base["fill"] == serial.base["fill"]
    assert found.loops["vllm_step"].base["launch sample"] == serial.base["launch sample"]
    for name in ("prepare", "process"):
        assert ours.per_row.get(name, 0) == serial.per_row[name]
        assert ours.per_token.get(name, 0) == serial.per_token[name]
    for at, cost in found.forward_knots:
        assert cost == interpolate(MACHINE.forward_knots, at)
    for name in ("kv_read_ps", "attention_ps", "sample", "sample_per_row", "copy", "added_work"):
        assert getattr(found, name) == getattr(MACHINE, name), name
    assert replace(found.pace, start={}) == replace(MACHINE.pace, start={})
    check_predictions(MACHINE, found, 1e-6)


def test_what_both_sides_lose_is_found_too() -> None:
    truth = replace(MACHINE, pace=replace(MACHINE.pace, host_lost=310, device_lost=170))
    check_predictions(truth, fit_costs("sim", HashModel(), LOOPS, 1, truth), 2e-3)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 900), st.integers(0, 900))
def test_both_sides_at_once_lose_what_the_pace_says(
    host: int, device: int, host_lost: int, device_lost: int
) -> None:
    sim = SimDevice()
    sim.keep_pace(Pace(host_lost=host_lost, device_lost=device_lost))
    op = sim.stream("forward").launch(lambda: None, name="forward", cost=device)
    with sim.host("schedule", host):
        host_end = sim.time
    op.synchronize()
    first = min(host * 1000 / (1000 - host_lost), device * 1000 / (1000 - device_lost))
    expected_host = first + host - first * (1000 - host_lost) / 1000
    expected_device = first + device - first * (1000 - device_lost) / 1000
    assert host_end == pytest.approx(expected_host, abs=2)
    assert sim.time == pytest.approx(max(expected_host, expected_device), abs=2)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is no cost profile"),
        ("[]", "is no cost profile"),
        ('{"format": "minisched cost profile", "version": 2}', "version is 2"),
        ('{"format": "minisched cost profile", "version": 1, "cost": {"sample": -1}}', "-1"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=word) as found:
        read_profile(file)
    assert str(file) in str(found.value) and "\n" not in str(found.value)
    twice = MachineCost(forward_knots=((8, 1), (8, 5)))
    with pytest.raises(ValueError, match="forward_knots must ascend in tokens"):
        from_json(as_json(Profile("twice", "", twice, 64), twice, {}))


knots = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 60_000_000)), min_size=1, max_size=4
).map(lambda pairs: sorted(dict(pairs).items()))


@given(knots=knots, pad_to=st.integers(1, 8), tokens=st.lists(st.integers(1, 80), max_size=5))
@example(knots=[(8, 1_000_000), (16, 50_000_000)], pad_to=1, tokens=[1])
def test_on_any_accepted_profile_time_goes_forward(
    knots: list[tuple[int, int]], pad_to: int, tokens: list[int]
) -> None:
    """However steep measured knots are, no forward pass takes less than nothing."""
    cost = MachineCost(forward_knots=tuple(knots), pad_to=pad_to)
    profile = Profile("steep", "", cost, 64)
    assert from_json(json.loads(json.dumps(as_json(profile, cost, {})))) == profile
    read = profile.cost
    assert all(read.forward(count) >= 0 for count in tokens)
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    requests = [Request(f"r{i}", [1] * size, params) for i, size in enumerate([1, *tokens])]
    run = run_loop("overlap", SimDevice(), HashModel(), requests, SchedulerConfig(), read)
    assert not list(find_out_of_time(run.trace))
