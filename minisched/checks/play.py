"""Drives one workload through one loop, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core import Output
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.registry import LOOPS
from ..loops.run import make_engine
from ..models.base import Model
from .workload import Workload

MAX_TURNS = 3000  # no small workload needs a tenth of it: more is a livelock


class Hooks(NamedTuple):
    """What is called with an engine before it starts, and after each of its turns."""

    patch: Callable[[Engine], None] = lambda engine: None
    each_turn: Callable[[Engine], None] = lambda engine: None


class Livelock(AssertionError):
    """Turns go by and requests never end."""


def play(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Callable[[Engine], None] = lambda engine: None,
    each_turn: Callable[[Engine], None] = lambda engine: None,
) -> tuple[Engine, list[Output]]:
    """Drive the loop turn by turn; requests and aborts come in on their turns.

    ``patch`` may change the engine before it starts, and ``each_turn`` look at it after every turn
    (``leaks/books.py:check_step`` of its scheduler does). The device is closed at the end.

    Raises:
        Livelock: requests are left after ``MAX_TURNS``.
    """
    outputs: list[Output] = []
    frontend = Frontend(on_output=outputs.append)
    engine = make_engine(loop, device, model, workload.config, frontend, cost, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    last = max([*workload.arrivals, *workload.aborts, *workload.flushes])
    try:
        for turn in range(MAX_TURNS):
            for req, arrival in zip(workload.requests, workload.arrivals, strict=True):
                if arrival == turn:
                    frontend.push(req)
            if turn in workload.aborts:
                frontend.abort(workload.aborts[turn])
            if turn in workload.flushes:
                frontend.flush_cache()
            next(turns)
            each_turn(engine)
            if turn > last and engine.is_done:
                return engine, outputs
        raise Livelock("every request must end within a bounded number of turns")
    finally:
        let_end(device)
        device.close()


def let_end(device: Device) -> None:
    """On ``sim``, what was launched ends, so that the trace of a run that stopped has it, too."""
    for _ in range(MAX_TURNS):
        if not isinstance(device, SimDevice) or device.next_event is None:
            break
        device.idle_until(device.next_event)
