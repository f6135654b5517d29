"""What the simulator says of the same load, by costs that were measured on this GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core import Request
from ...devices.cost import CostModel
from ...devices.registry import open_device
from ...loops.run import Run, run_loop
from ...models.base import Model
from ...models.hash import HashModel
from ...scheduler import SchedulerConfig
from ..calibration.calibrate import calibrate, makespan
from ..calibration.prediction import AIM, off
from ..rows import Figure, figure

REPETITIONS = 2  # of the workloads that costs are fitted to
MILLISECOND = 1e6  # nanoseconds


def foreseen_figures(
    shape: str,
    device: str,
    model: Model,
    runs: Mapping[str, Sequence[Run]],
    make_requests: Callable[[], list[Request]],
    config: SchedulerConfig,
    report: Callable[[str], None],
) -> list[Figure]:
    """For each loop the makespan measured, the one foreseen, and by how much that is off.

    Costs come from other workloads (``minisched calibrate``): nothing of ``runs`` is fitted to.
    """
    cost = calibrate(device, model, list(runs), REPETITIONS, report=report)
    found = []
    for loop, kept in runs.items():
        report(f"predicting {loop}")
        measured = [makespan(run.trace) for run in kept]
        foreseen = foreseen_ns(loop, model.vocab_size, make_requests(), config, cost)
        errors = sorted(off(foreseen, each) for each in measured)
        middle = errors[len(errors) // 2]
        name = f"{shape}: {loop}, makespan"
        found += [
            figure(name, [each / MILLISECOND for each in measured], "ms"),
            figure(f"{name} that sim predicts", [foreseen / MILLISECOND], "ms"),
            Figure(f"{name}, off by", middle, errors[0], errors[-1], "%", AIM, at_most=True),
        ]
    return found


def foreseen_ns(
    loop: str, vocab: int, requests: list[Request], config: SchedulerConfig, cost: CostModel
) -> int:
    """Nanoseconds that these requests take on ``sim``, with the hash model."""
    return makespan(
        run_loop(loop, open_device("sim"), HashModel(vocab), requests, config, cost).trace
    )
