"""Which loops a command runs."""

from __future__ import annotations

from collections.abc import Sequence

from ..loops.registry import find_loop


def choose_loops(asked: Sequence[str], device: str, only_serial: bool) -> list[str]:
    """The loops asked for; if none were, the one that overlaps on ``device``.

    ``only_serial`` is ``--disable-overlap-schedule``.

    Raises:
        ValueError: a loop is unknown, or overlaps although only the serial one may run.
    """
    for name in asked:
        find_loop(name)
    if not asked:
        return ["serial" if only_serial else overlapped_loop(device)]
    for name in asked:
        if only_serial and name != "serial":
            raise ValueError(
                f"--disable-overlap-schedule leaves only serial, but the loop {name} was asked for."
            )
    return list(asked)


def overlapped_loop(device: str) -> str:
    """The loop that overlaps on a device, unless told otherwise."""
    return "mlx_async" if device == "mlx" else "overlap"
