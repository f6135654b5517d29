"""Calibrating gives back the costs that a simulated machine has, and then foresees its runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisched.bench.calibration.calibrate import calibrate, makespan, observe, predict
from minisched.bench.calibration.design import Load
from minisched.bench.calibration.least_squares import fit, not_negative, trimmed
from minisched.checks.laws import check_times
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, Pace
from minisched.devices.measured_cost import HostCost, MeasuredCost, interpolate
from minisched.devices.profile_file import as_json, from_json, read_profile
from minisched.devices.profiles import Profile
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import many

LOOPS = ("overlap", "vllm_step", "mindie_plugin")
HELD_OUT = (
    Load(3, 50, 9),
    Load(6, 20, 11, 5 * MILLISECOND),
    Load(5, 33, 7, MILLISECOND, 9_000_000),
)
PHASES = ("receive", "schedule", "prepare", "launch", "launch sample", "fill", "postprocess",
          "process", "output")  # fmt: skip
GROWS = ("prepare", "process")


@st.composite
def machines(draw: st.DrawFn, lost: int = 0) -> MeasuredCost:
    """A machine on which each phase takes time, and grows or does not."""
    base = {name: draw(st.integers(10_000, 3_000_000)) for name in PHASES}
    per_row = {name: draw(st.integers(0, 5_000)) for name in GROWS}
    per_token = {name: draw(st.integers(0, 100)) for name in GROWS}
    after = {name: draw(st.integers(0, 50_000)) for name in ("schedule", "process")}
    first, slope = draw(st.integers(1_000_000, 30_000_000)), draw(st.integers(0, 90_000))
    pace = Pace(
        start={"sample": draw(st.integers(0, 40_000)), "copy": draw(st.integers(0, 40_000))},
        wake=draw(st.integers(0, 60_000)),
        host_lost=draw(st.integers(0, lost)),
        device_lost=draw(st.integers(0, lost)),
    )
    return MeasuredCost(
        forward_knots=((1, first), (513, first + 512 * slope)),
        kv_read_ps=1000 * draw(st.integers(0, 9_000)),
        attention_ps=1000 * draw(st.integers(0, 90)),
        sample=draw(st.integers(1_000, 900_000)),
        sample_per_row=draw(st.integers(0, 3_000)),
        copy=draw(st.integers(1_000, 500_000)),
        loops={"serial": HostCost(base, per_row, per_token, after)},
        pace=pace,
        added_work=draw(st.integers(900, 1500)),
    )


def error(loop: str, load: Load, truth: MeasuredCost, found: MeasuredCost) -> float:
    """By how much of itself a makespan is foreseen wrongly."""
    model = HashModel()
    real = makespan(observe(loop, "sim", model, load, truth).trace)
    return abs(makespan(predict(loop, model, load, found).trace) / real - 1)


@settings(max_examples=many(1, 6))
@given(machines())
def test_calibrating_a_simulated_machine_gives_back_its_costs(truth: MeasuredCost) -> None:
    found = calibrate("sim", HashModel(), LOOPS, 1, truth)
    serial = truth.loops["serial"]
    assert found.loops["serial"].base == {
        name: cost for name, cost in serial.base.items() if name in found.loops["serial"].base
    }
    assert found.loops["mindie_plugin"].base["fill"] == serial.base["fill"]
    assert found.loops["vllm_step"].base["launch sample"] == serial.base["launch sample"]
    for name in GROWS:
        assert found.loops["serial"].per_row.get(name, 0) == serial.per_row[name]
        assert found.loops["serial"].per_token.get(name, 0) == serial.per_token[name]
    for at, cost in found.forward_knots:
        assert cost == interpolate(truth.forward_knots, at)
    for name in ("kv_read_ps", "attention_ps", "sample", "sample_per_row", "copy", "added_work"):
        assert getattr(found, name) == getattr(truth, name), name
    assert replace(found.pace, start={}) == replace(truth.pace, start={})
    for loop in ("serial", *LOOPS):
        for load in HELD_OUT:
            assert error(loop, load, truth, found) < 1e-6


@settings(max_examples=many(1, 3))
@given(machines(lost=500))
def test_what_both_sides_lose_is_found_too(truth: MeasuredCost) -> None:
    found = calibrate("sim", HashModel(), LOOPS, 1, truth)
    for loop in ("serial", *LOOPS):
        for load in HELD_OUT:
            assert error(loop, load, truth, found) < 2e-3


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
    alone = (host * 1000 / (1000 - host_lost), device * 1000 / (1000 - device_lost))
    first = min(alone)
    expected_host = first + host - first * (1000 - host_lost) / 1000
    expected_device = first + device - first * (1000 - device_lost) / 1000
    assert host_end == pytest.approx(expected_host, abs=2)
    assert sim.time == pytest.approx(max(expected_host, expected_device), abs=2)


@given(
    st.lists(st.integers(-1000, 1000), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=12, max_size=30),
)
def test_least_squares_is_exact_on_exact_data(
    truth: list[int], points: list[tuple[int, int]]
) -> None:
    rows = [[1, *point] for point in points]
    values = [10**5 + sum(a * b for a, b in zip(truth, row, strict=True)) for row in rows]
    found = fit(rows, values)
    for row, value in zip(rows, values, strict=True):
        assert sum(a * b for a, b in zip(found, row, strict=True)) == value


def test_outliers_are_left_out_and_nothing_gets_cheaper_by_growing() -> None:
    rows = [[1, at] for at in range(20)]
    values = [1000 + 5 * at for at in range(20)]
    values[7] = 90_000
    assert trimmed(rows, values) == [1000, 5]
    assert not_negative(rows, [1000 - at % 2 - at for at in range(20)], free=1)[1] == 0


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    side = HostCost({"schedule": 3}, {"process": 2}, {}, {"launch": 1})
    cost = MeasuredCost(
        forward_knots=((1, 10), (8, 50)), sample=4, copy=2, pad_to=4, loops={"serial": side},
        pace=Pace({}, {"copy": 7}, 5, 100, 200), added_work=1100,
    )  # fmt: skip
    file = tmp_path / "p.json"
    file.write_text(json.dumps(as_json(Profile("p", "a test", cost, 64), cost, {})))
    assert read_profile(file) == Profile("p", "a test", cost, 64)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is not JSON"),
        ("[]", "is no cost profile"),
        ('{"format": "minisched cost profile", "version": 2}', "version 2"),
        ('{"format": "minisched cost profile", "version": 1, "cost": {"sample": -1}}', "-1"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=word) as found:
        read_profile(file)
    assert str(file) in str(found.value) and "\n" not in str(found.value)


def test_compare_takes_a_published_profile_and_a_measured_one(cli: Any) -> None:
    """Two milliseconds for each forward pass here, one for each schedule."""
    side = HostCost({"schedule": MILLISECOND})
    slow = MeasuredCost(forward_knots=((1, 2 * MILLISECOND),), loops={"serial": side})
    cost = replace(calibrate("sim", HashModel(), [], 1, slow), added_work=1000)
    Path("p.json").write_text(json.dumps(as_json(Profile("p", "a test", cost, 64), cost, {})))
    took = []
    for profile in ("llama8b-h100", "p.json"):
        code, out, _ = cli(f"compare --profile {profile} --requests 2 --max-new-tokens 4 --json")
        found = json.loads(out)
        assert code == 0 and found["identical"]
        took.append(found["runs"][0]["makespan_ns"])
    assert took[1] > 4 * 2_000_000 and took[0] != took[1]


knots = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 60_000_000)), min_size=1, max_size=4
).map(lambda pairs: sorted(dict(pairs).items()))


@given(knots=knots, pad_to=st.integers(1, 8), tokens=st.lists(st.integers(1, 80), max_size=5))
@example(knots=[(8, 1_000_000), (16, 50_000_000)], pad_to=1, tokens=[1])
def test_on_any_accepted_profile_time_goes_forward(
    knots: list[tuple[int, int]], pad_to: int, tokens: list[int]
) -> None:
    """However steep measured knots are, no forward pass takes less than nothing."""
    cost = MeasuredCost(forward_knots=tuple(knots), pad_to=pad_to)
    written = as_json(Profile("steep", "", cost, 64), cost, {})
    read = from_json(json.loads(json.dumps(written))).cost
    assert all(read.forward(count) >= 0 for count in tokens)
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    requests = [Request(f"r{i}", [1] * size, params) for i, size in enumerate([1, *tokens])]
    run = run_loop("overlap", SimDevice(), HashModel(), requests, SchedulerConfig(), read)
    check_times(run.trace)


def test_a_profile_with_two_costs_for_one_size_is_refused() -> None:
    cost = MeasuredCost(forward_knots=((8, 1), (8, 5)))
    with pytest.raises(ValueError, match="forward_knots must ascend in tokens"):
        from_json(as_json(Profile("twice", "", cost, 64), cost, {}))
