"""Drives one workload through one loop, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

from ..core import Output
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import LOOPS
from ..loops.run import make_engine
from ..models.base import Model
from .workload import Workload

EACH = 2  # turns for each step that is needed; see ``most_turns``


class Hooks(NamedTuple):
    """What is called with an engine before it starts, and after each of its turns."""

    patch: Callable[[Engine], None] = lambda engine: None
    each_turn: Callable[[Engine], None] = lambda engine: None


class Livelock(AssertionError):
    """Turns go by and requests never end."""


def most_turns(workload: Workload, depth: int, run_ahead: bool = True) -> int:
    """Turns that a workload may take on a loop with ``depth`` steps in flight: more is a livelock.

    As many steps as if requests ran one after the other, each prompt twice, as whoever loses its
    memory computes all of it again; and ``EACH`` turns for a step, as some only wait. Of 2,064
    healthy runs, half of them so short of memory that many were retracted, none took more than 0.67
    of that; on ``pd``, where it is ``SIDES`` times as many, none more than 0.34. A loop that fills
    its queue but does not ``run_ahead`` may let each token wait for ``depth`` turns (vllm_pp4).
    """
    budget, steps = workload.config.prefill_budget, depth
    each = EACH if run_ahead else max(EACH, depth)
    for req in workload.requests:
        if not req.problem():
            outputs = req.params.max_new_tokens
            steps += ceil(len(req.prompt) / budget) + ceil(req.max_device_len / budget) + outputs
    return 1 + last_event(workload) + each * steps


def last_event(workload: Workload) -> int:
    """The last turn in which anything comes from outside."""
    return max([0, *workload.arrivals, *workload.aborts, *workload.flushes])


def livelock(workload: Workload, turns: int) -> Livelock:
    """So many turns are over."""
    left = [req.name for req in workload.requests if not req.finished]
    who = f"{' and '.join(left)} {'has' if len(left) == 1 else 'have'} not ended"
    if not left:
        who = "a step is still in flight"
    return Livelock(f"every request must end within {turns} turns of this workload, but {who}")


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
        Livelock: requests are left after ``most_turns``.
    """
    outputs: list[Output] = []
    frontend = Frontend(on_output=outputs.append)
    engine = make_engine(loop, device, model, workload.config, frontend, cost, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    last, most = (
        last_event(workload),
        most_turns(workload, engine.worker.depth, engine.scheduler.config.run_ahead),
    )
    try:
        for turn in range(most):
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
        raise livelock(workload, most)
    finally:
        let_end(device)
        device.close()


def let_end(device: Device) -> None:
    """On ``sim``, what was launched ends, so that the trace of a run that stopped has it, too."""
    while isinstance(device, SimDevice) and device.next_event is not None:
        device.idle_until(device.next_event)
