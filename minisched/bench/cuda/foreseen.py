"""What the simulator says of the same load, by costs that were measured on this GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core import Request
from ...devices.cost import CostModel
from ...loops.run import Run, run_to_end
from ...models.base import Model
from ...scheduler import SchedulerConfig
from ...trace import Trace
from ..calibration.calibrate import fit_costs, makespan, observe_all, stand_in
from ..calibration.design import WORK, Design, Load
from ..calibration.prediction import off, row
from ..rows import Figure, figure

REPETITIONS = 2  # of the workloads that costs are fitted to
SHORT, NEW = 64, 16  # tokens of a prompt at least, where it does not matter, and of an answer
MILLISECOND = 1e6  # nanoseconds
Keep = Callable[[str, Trace, Trace], None]  # is given a loop, its run, and the one foreseen


def keep_nothing(loop: str, measured: Trace, foreseen: Trace) -> None:
    """Nobody looks at them again."""


def design_of(requests: Sequence[Request], config: SchedulerConfig) -> Design:
    """What costs are fitted to: up to as many rows as requests, and prompts and steps as long.

    Decodes run as graphs, prompts kernel by kernel. Both lie on one line of costs, so a step of
    prompts has more tokens than any decode has rows. All take the same memory: it is part of a
    graph.
    """
    rows, prompt_len = len(requests), max(len(request.prompt) for request in requests)
    short = min(prompt_len, max(SHORT, 2 * rows))
    counts = [1 << power for power in range((rows - 1).bit_length())]
    decodes = [Load(count, short, NEW) for count in (*counts, rows)]
    prompts = [Load(min(2, rows), prompt_len, 2), Load(rows, prompt_len, NEW)]
    every = [Load(rows, short, NEW), Load(rows, short, NEW, WORK)]
    return Design([*decodes, *prompts], every, config)


def foreseen_figures(
    shape: str,
    device: str,
    model: Model,
    runs: Mapping[str, Sequence[Run]],
    make_requests: Callable[[], list[Request]],
    config: SchedulerConfig,
    report: Callable[[str], None],
    keep: Keep = keep_nothing,
) -> list[Figure]:
    """For each loop the makespan measured, the one foreseen, and by how much that is off.

    ``keep`` gets the last run of each loop and the one foreseen. Costs come from other workloads
    (``minisched calibrate``), those of ``design_of``: nothing of ``runs`` is fitted to.
    """
    design = design_of(make_requests(), config)
    observe_all(device, model, list(runs), report=report, design=design)  # captures graphs
    cost = fit_costs(device, model, list(runs), REPETITIONS, report=report, design=design)
    found = []
    for loop, kept in runs.items():
        report(f"predicting {loop}")
        measured = [makespan(run.trace) for run in kept]
        twin = foreseen_trace(loop, model, make_requests(), config, cost)
        keep(loop, kept[-1].trace, twin)
        foreseen = makespan(twin)
        errors = [off(foreseen, each) for each in measured]
        name = f"{shape}: {loop}, makespan"
        found += [
            figure(name, [each / MILLISECOND for each in measured], "ms"),
            figure(f"{name} that sim predicts", [foreseen / MILLISECOND], "ms"),
            row(f"{name}, off by", errors),
        ]
    return found


def foreseen_trace(
    loop: str, model: Model, requests: list[Request], config: SchedulerConfig, cost: CostModel
) -> Trace:
    """What these requests do on ``sim``, where nothing is computed."""
    return run_to_end(loop, "sim", stand_in(model), requests, config, cost).trace
