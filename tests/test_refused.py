"""What does not go together is refused, in one sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.devices.base import Device
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops import pd_run
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import Run, run_loop
from minisched.loops.spec import DEVICES
from minisched.models.hash import HashModel
from minisched.relay import Relay
from minisched.relay.registry import RELAYS, RelayShape, RelaySpec

REFUSED = [
    (loop, relay) for loop, spec in LOOPS.items() for relay in RELAYS if relay not in spec.relays
]
NOT_THERE = [
    (loop, device)
    for loop, spec in LOOPS.items()
    for device in DEVICES
    if device not in spec.devices
]


def test_names_are_known_names() -> None:
    for spec in LOOPS.values():
        assert spec.relays and set(spec.relays) <= set(RELAYS)
        assert spec.devices and set(spec.devices) <= set(DEVICES)
        assert bool(spec.only) == (spec.devices != DEVICES)
    assert {relay for spec in LOOPS.values() for relay in spec.relays} == set(RELAYS)


@pytest.mark.parametrize(("loop", "relay"), REFUSED)
def test_a_relay_that_does_not_fit_says_why(loop: str, relay: str) -> None:
    device = SimDevice()
    with pytest.raises(ValueError) as caught:
        run_loop(loop, device, HashModel(), [Request("r", [1])], relay=relay)
    message = str(caught.value)
    takes, needs = LOOPS[loop].takes, RELAYS[relay].needs
    reason = f"the loop wants {takes}" if takes else f"it needs {needs}"
    assert message.startswith(f"relay {relay!r} does not fit loop {loop!r}: {reason}; ")
    assert message.count("\n") == 0
    with pytest.raises(ValueError, match="does not fit"):
        find_loop(f"{loop}:{relay}")
    assert not device.recorder.trace("", "", "", "").slices, "nothing has run"


# -- the reason is true --------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "relay"), REFUSED)
def test_the_reason_is_true(monkeypatch: pytest.MonkeyPatch, loop: str, relay: str) -> None:
    """One of two runs ahead and the other does not, or the two together do wrong."""
    carries, has_some = carries_unknown(relay), launches_unknown(loop)
    if carries == has_some:
        assert carries, "a loop that waits for each token takes the relay that carries none"
        force(monkeypatch, loop, relay)
        assert goes_wrong(loop), "nothing is wrong with it: the loop should take this relay"


@pytest.mark.parametrize("name", RELAYS)
def test_a_relay_knows_its_name(name: str) -> None:
    relay = RELAYS[name].make(SimDevice(), RelayShape(4, 64))
    assert relay.name == name
    assert relay.most_in_flight is None or relay.most_in_flight >= 2


def carries_unknown(relay: str) -> bool:
    """Whether the relay carries tokens that the host does not know."""
    return RELAYS[relay].make(SimDevice(), RelayShape(4, 64)).run_ahead


def launches_unknown(loop: str) -> bool:
    """Whether the loop, as it is, launches a step on a token that the host does not know."""
    seen: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, spec in RELAYS.items():

            def make(device: Device, shape: RelayShape, spec: RelaySpec = spec) -> Relay:
                relay = spec.make(device, shape)
                bind = relay.bind

                def watch(
                    batch: ScheduleBatch, previous: ScheduleBatch | None
                ) -> tuple[list[int], list[int]]:
                    seen.append(any(None in ids for ids in batch.ids))
                    return bind(batch, previous)

                relay.bind = watch  # type: ignore[method-assign]
                return relay

            patch.setitem(RELAYS, name, spec._replace(make=make))
        assert not goes_wrong(loop) and seen
    return any(seen)


def force(monkeypatch: pytest.MonkeyPatch, loop: str, relay: str) -> None:
    """Let the loop take this relay, whatever its spec says."""
    monkeypatch.setitem(LOOPS, loop, replace(LOOPS[loop], relays=(relay,)))
    for side in ("PREFILL", "DECODE"):
        monkeypatch.setattr(pd_run, side, replace(getattr(pd_run, side), relays=(relay,)))


def goes_wrong(loop: str) -> bool:
    """Whether a small run raises, fails a request, or gives other tokens than the serial loop."""
    options: dict[str, Any] = (
        {"max_async_schedule_times": 2} if loop == "mindie_placeholder" else {}
    )
    relay = "fill_device" if options and len(LOOPS[loop].relays) > 1 else ""
    cost = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)

    def run(name: str, relay: str, **options: Any) -> Run:
        params = [SamplingParams(max_new_tokens=5 + 3 * i) for i in range(4)]
        requests = [Request(f"r{i}", [i + 1] * (3 + i), params[i]) for i in range(4)]
        return run_loop(name, SimDevice(), HashModel(), requests, None, cost, relay, **options)

    try:
        forced = run(loop, relay, **options)
    except (ValueError, TypeError):
        return True
    return bool(forced.errors) or forced.outputs != run("serial", "").outputs


# -- devices and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "device"), NOT_THERE)
def test_a_loop_says_why_it_does_not_run_on_a_device(loop: str, device: str) -> None:
    with pytest.raises(ValueError, match="does not run on device") as caught:
        find_loop(loop).check_device(loop, device)
    assert LOOPS[loop].only in str(caught.value)


@pytest.mark.parametrize("name", ["nonsense", "overlap:nonsense", ":ring", "overlap:"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown (loop|relay) .* are .*(serial|host)"):
        find_loop(name)


@pytest.mark.parametrize("loop", LOOPS)
def test_naming_the_default_relay_changes_nothing(loop: str) -> None:
    spec = find_loop(f"{loop}:{LOOPS[loop].relays[0]}")
    assert spec.relays == LOOPS[loop].relays[:1] and spec.run is LOOPS[loop].run
