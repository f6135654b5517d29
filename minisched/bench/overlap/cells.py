"""Which workloads ``bench overlap`` measures, sized so that all of them take some minutes."""

from __future__ import annotations

import time

from ...loops.run import run_to_end, warm_up
from ...models.base import Model
from ..bench_model import NAME
from ..case import Case, batch_of
from .in_turn import rounds_in, tokens_for
from .shares import Cell
from .step import ROUND
from .ways import ways_for

DEVICES = ("thread", "mlx", "cuda")
MODELS = (NAME, "smollm2")
BATCHES = (1, 8, 32)
WORKS_MS = (0.0, 5.0, 20.0)
PROMPT_LEN = 8  # tokens; decode is what is measured
MEASURE_S = 8.0  # about how long a repetition of one cell should take
FEWEST, MOST = 4, 40  # rounds of it
PROBE = 8  # steps
SLOW_S = 0.5  # beyond that, a step differs from the next one by more than any of these amounts


def make_case(device: str, model: Model, batch: int, new_tokens: int) -> Case:
    """Requests that decode."""
    return batch_of(device, model, batch, PROMPT_LEN, new_tokens)


def make_cells(name: str, device: str, model: Model, batch: int, loop: str) -> list[Cell]:
    """One for each amount of work, with as many rounds as take their time; or why there is none."""
    probe = make_case(device, model, batch, PROBE)
    step_s = time_step(probe)
    if step_s > SLOW_S:
        share = WORKS_MS[-1] / 1000 / step_s
        reason = f"a step takes {step_s:.1f} s, and {WORKS_MS[-1]:g} ms are {share:.1%} of it"
        return [Cell(name, probe, loop, 0.0, 0, reason)]
    cells = []
    for added in WORKS_MS:
        round_s = ROUND * len(ways_for(added)) * (step_s + added / 1000)
        most = min(MOST, rounds_in(model.context_len - PROMPT_LEN))
        rounds = min(most, max(FEWEST, round(MEASURE_S / round_s)))
        case = make_case(device, model, batch, tokens_for(rounds))
        cells.append(Cell(f"{name}, {added:g} ms", case, loop, added, rounds))
    return cells


def time_step(case: Case) -> float:
    """Seconds of a step without added work, about."""
    warm_up(case.device, case.model, case.config)
    start = time.perf_counter()
    run_to_end("serial", case.device, case.model, case.requests, case.config)
    return (time.perf_counter() - start) / (PROBE + 1)
