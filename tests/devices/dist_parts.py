"""What the other ranks do in tests: a part of a run goes by its name."""

from __future__ import annotations

import time

from minisched.devices.dist import Ranks
from minisched.engine.frontend import Message
from minisched.engine.ranks import TPEngine
from minisched.museum import find as find_exhibit
from minisched.museum.patch import put_in


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


def put_bug_in(ranks: Ranks, name: str) -> None:
    """Have a bug of the museum from now on."""
    put_in(find_exhibit(name).edits).__enter__()


def go_by_own_clock(ranks: Ranks) -> None:
    """Take in what rank 0 tells one turn later, as if this rank's clock were behind."""
    told: list[list[Message]] = [[], []]
    inner = TPEngine.broadcast

    def late(engine: TPEngine, messages: list[Message]) -> list[Message]:
        told.append(inner(engine, messages))
        return told[-2 if engine.scheduler.live else -1]

    TPEngine.broadcast = late  # type: ignore[method-assign]
