"""What does not go together is refused, in one sentence that says why."""

from __future__ import annotations

import pytest

from minisched.core import Request
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import run_loop
from minisched.loops.spec import DEVICES
from minisched.models.hash import HashModel
from minisched.relay.registry import RELAYS

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
def test_a_relay_that_does_not_fit_says_what_it_needs(loop: str, relay: str) -> None:
    device = SimDevice()
    with pytest.raises(ValueError) as caught:
        run_loop(loop, device, HashModel(), [Request("r", [1])], relay=relay)
    message = str(caught.value)
    assert message.startswith(f"relay {relay!r} does not fit loop {loop!r}: it needs ")
    assert RELAYS[relay].needs in message and message.count("\n") == 0
    with pytest.raises(ValueError, match="does not fit"):
        find_loop(f"{loop}:{relay}")
    assert not device.recorder.trace("", "", "", "").slices, "nothing has run"


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
