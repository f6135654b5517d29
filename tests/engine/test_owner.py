"""A model object computes for one engine at a time, because its KV is in it."""

from __future__ import annotations

import gc
from copy import copy
from typing import Any

import pytest

from minisched.core import Request
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.design import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB, tokens

REFUSED = (
    r"model 'hash' is in use by another engine with requests that have not ended; .* copy\.copy"
)


def some(first: int) -> list[Request]:
    return [Request(f"r{at}", [first, at + 1, 2], tokens(20)) for at in range(3)]


def engine_of(model: HashModel, requests: list[Request], loop: str = "overlap") -> Engine:
    frontend = Frontend(requests)
    return make_engine(loop, SimDevice(), model, SchedulerConfig(), frontend, SIM_COST)


def turn_in_turns(engines: list[Engine]) -> None:
    turns = {id(engine): LOOPS["overlap"].start(engine) for engine in engines}
    while not all(engine.is_done for engine in engines):
        for engine in engines:
            if not engine.is_done:
                next(turns[id(engine)])


def test_a_model_in_use_is_refused_and_a_copy_is_not() -> None:
    """Two engines with one model said wrong tokens; with a copy they say what each says alone."""
    model = HashModel(VOCAB)
    right = [run_loop("serial", SimDevice(), model, some(n)).outputs for n in (1, 2)]
    first, second = some(1), some(2)
    engine = engine_of(model, first)
    for refused in (lambda: engine_of(model, second), lambda: run_loop_of(model, second)):
        with pytest.raises(ValueError, match=REFUSED):
            refused()
    turn_in_turns([engine, engine_of(copy(model), second)])
    assert [{req.rid: req.output_ids for req in reqs} for reqs in (first, second)] == right


def run_loop_of(model: HashModel, requests: list[Request]) -> Any:
    return run_loop("serial", SimDevice(), model, requests)


@pytest.mark.parametrize("loop", ["serial", "overlap", "pd"])
def test_a_model_is_free_once_its_engine_has_ended(loop: str) -> None:
    """However it ended: by its last request, by an error, or because it was dropped."""
    model = HashModel(VOCAB)
    run_loop(loop, SimDevice(), model, some(1))
    engine = engine_of(model, some(1))
    drive(LOOPS["overlap"].start(engine), engine)
    run_loop(loop, SimDevice(), model, some(2))

    def stop(output: object) -> None:
        raise KeyboardInterrupt

    broken = HashModel(VOCAB)
    with pytest.raises(KeyboardInterrupt):
        run_loop(loop, SimDevice(), broken, some(1), on_output=stop)
    run_loop(loop, SimDevice(), broken, some(1))
    gc.disable()
    try:
        dropped = engine_of(model, some(1))
        next(LOOPS["overlap"].start(dropped))
        del dropped
        run_loop(loop, SimDevice(), model, some(1))
    finally:
        gc.enable()


def test_an_idle_engine_whose_model_was_taken_says_so_at_its_next_launch() -> None:
    model = HashModel(VOCAB)
    idle = engine_of(model, [])
    other = engine_of(model, some(1))
    turns = LOOPS["overlap"].start(idle)
    idle.frontend.push(some(2)[0])
    with pytest.raises(RuntimeError, match="model 'hash' belongs to another engine now"):
        for _ in range(9):
            next(turns)
    drive(LOOPS["overlap"].start(other), other)
