"""Events on the host's clock: to a few microseconds, however long the run, and nobody waits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from minisched.devices.cuda import PATIENCE, ZERO_LASTS, GpuClock, Zero

MICROSECOND, SECOND = 1_000, 1_000_000_000
MINUTE = 60 * SECOND


class Machine:
    """A host and a GPU whose clocks drift; ``latency`` is how long an event takes to get there."""

    def __init__(self, drift: float, seed: int = 0) -> None:
        self.time, self.drift, self.random = 0, drift, random.Random(seed)
        self.latency = 5 * MICROSECOND
        self.synchronized = 0

    def now(self) -> int:
        """The host's clock; looking takes a moment."""
        self.time += self.random.randrange(50, 500)
        return self.time

    def pass_by(self, nanoseconds: int) -> None:
        self.time += nanoseconds


class Event:
    """``torch.cuda.Event`` on that machine."""

    machine: Machine

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        machine = self.machine
        self.at = machine.time + machine.random.randrange(1, 2 + machine.latency)

    def query(self) -> bool:
        return self.machine.now() >= self.at

    def synchronize(self) -> None:
        self.machine.synchronized += 1
        self.machine.time = max(self.machine.time, self.at) + 8 * MICROSECOND

    def elapsed_time(self, end: Event) -> float:
        between = (end.at - self.at) * (1 + self.machine.drift) / 1e6
        assert between >= 0, "CUDA is asked how long before the zero an event was"
        return float(np.float32(between))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    machine = Machine(getattr(request, "param", 0.0))
    monkeypatch.setattr(Event, "machine", machine, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return machine


def errors(machine: Machine, clock: GpuClock, until: int, each: int) -> list[int]:
    """A run with a step every ``each`` nanoseconds: how far off the time of each one is."""
    found = []
    while machine.time < until:
        zero, event = clock.zero, Event(enable_timing=True)
        event.record(None)
        machine.pass_by(each)
        clock.renew()
        found.append(clock.time(zero, event) - event.at)
    return found


@pytest.mark.parametrize("machine", [0.0, 3e-5, -3e-5], indirect=True)
def test_an_event_is_where_it_was_after_an_hour_as_after_a_second(machine: Machine) -> None:
    clock = GpuClock(machine.now, torch.cuda.Stream)  # type: ignore[arg-type]
    at_first, asked = clock.zero, machine.synchronized
    drift = abs(machine.drift) * 2 * ZERO_LASTS
    found = errors(machine, clock, 60 * MINUTE, SECOND // 4)
    assert max(map(abs, found)) < 20 * MICROSECOND + drift
    assert machine.synchronized == asked  # only as the device was opened
    late = Event(enable_timing=True)
    late.record(None)
    now = [abs(clock.time(zero, late) - late.at) for zero in (clock.zero, at_first)]
    assert now[0] < 20 * MICROSECOND + drift
    if machine.drift:  # the measure itself: what a single zero makes of it
        assert now[1] > 1000 * MICROSECOND


def test_float32_alone_is_coarse_after_ten_minutes(machine: Machine) -> None:
    clock = GpuClock(machine.now, torch.cuda.Stream)  # type: ignore[arg-type]
    first = clock.zero
    errors(machine, clock, 10 * MINUTE, SECOND)
    event, other = Event(enable_timing=True), Event(enable_timing=True)
    event.record(None)
    other.at = event.at + 9 * MICROSECOND  # as long as a small kernel
    lengths = [clock.time(zero, other) - clock.time(zero, event) for zero in (clock.zero, first)]
    assert lengths[0] == pytest.approx(9 * MICROSECOND, abs=300)
    assert lengths[1] in (0, 62_500)


def test_a_zero_that_the_gpu_is_slow_to_reach_is_taken_later(machine: Machine) -> None:
    clock = GpuClock(machine.now, torch.cuda.Stream)  # type: ignore[arg-type]
    first = clock.zero
    machine.latency = 20 * PATIENCE
    machine.random = random.Random(1)
    machine.pass_by(2 * ZERO_LASTS)
    before = machine.time
    clock.renew()
    assert clock.zero is first and machine.time < before + 2 * PATIENCE
    assert clock.asked is not None
    event = clock.asked[0]
    machine.pass_by(20 * PATIENCE)
    clock.renew()
    assert clock.zero == Zero(event, clock.zero.at)
    assert abs(clock.zero.at - event.at) < 20 * MICROSECOND
