"""Which loops a command runs."""

from __future__ import annotations

from collections.abc import Sequence

from ..defaults import overlapped_loop
from ..loops.design import LOOPS, find_loop


def choose_loops(asked: Sequence[str], device: str, only_serial: bool) -> list[str]:
    """The loops asked for; if none were, the one that overlaps on ``device``.

    ``LOOP:RELAY`` is a loop with another relay than its own. ``all`` stands for every design that
    runs on ``device`` (but for ``pd``, which is two schedulers, and ``mixed``, which is a policy).
    ``only_serial`` is ``--disable-overlap-schedule``.

    Raises:
        ValueError: a loop is unknown, or overlaps although only the serial one may run.
    """
    names = [every for name in asked for every in (designs(device) if name == "all" else [name])]
    for name in names:
        find_loop(name).check_device(name, device)
    if not names:
        return ["serial" if only_serial else overlapped_loop(device)]
    for name in names:
        if only_serial and name != "serial":
            raise ValueError(
                f"--disable-overlap-schedule leaves only serial, but the loop {name} was asked for."
            )
    return list(dict.fromkeys(names))


def designs(device: str) -> list[str]:
    """The published loops that run on a device, in the order of the registry."""
    beside = ("pd", "mixed")
    return [name for name, spec in LOOPS.items() if device in spec.devices and name not in beside]
