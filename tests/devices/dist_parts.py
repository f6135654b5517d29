"""What the other ranks do in tests: a part of a run goes by its name."""

from __future__ import annotations

import time

from minisched.devices.dist import Ranks


def echo(ranks: Ranks, count: int) -> None:
    """Send so many messages back."""
    for _ in range(count):
        message = ranks.receive(0, "there")
        ranks.send(0, "back", message.value, message.tensors)


def compare_clocks(ranks: Ranks) -> None:
    """Hold the other end."""
    ranks.compare_clocks()


def fail(ranks: Ranks) -> None:
    """Go wrong."""
    raise ValueError("it has gone wrong")


def sleep(ranks: Ranks, seconds: float) -> None:
    """Do something else than what is waited for."""
    time.sleep(seconds)
