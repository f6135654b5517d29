"""The steady part of a run: decode steps alone, without those in which requests come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple

from ..checks.overlap import device_busy, forwards, intersection, length, step_intervals
from ..core import NoBatch, Request, ScheduleBatch
from ..devices.cost import NO_COST, CostModel
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import find_loop, line_of
from ..loops.run import Run, drive, fresh, make_engine
from ..trace import Recorder, Trace
from .figures import BenchCase

# -- A loop that can be stopped between two of its turns, so that several go on side by side -------
#
# A machine that is shared is faster in one second than in the next. Runs that follow each other
# differ by more than what a bench looks for; loops that change places every few steps do not.

SETTLING = 4  # turns: the prompts, then a pipeline that fills
# Options of devices that are open together: teams of threads of several would delay each other
# (``devices/thread.py``).
TOGETHER = {"thread": {"torch_threads": 1}}


class ArmStopped(RuntimeError):
    """A loop has nothing to run where it should have, or a request has failed."""


class Spent(NamedTuple):
    """Nanoseconds of some turns: by the clock, and those in which the host's thread worked."""

    wall: int
    host: int


@dataclass(frozen=True)
class Arm:
    """A loop in the middle of its run, on a device of its own."""

    loop: str
    model: str
    requests: tuple[Request, ...]
    engine: Engine
    turns: Iterator[ScheduleBatch | NoBatch]

    def go_on(self, turns: int) -> Spent:
        """So many turns, of a step each.

        Raises:
            ArmStopped: there is nothing to run in one of them, as when a request has failed.
        """
        began, worked = perf_counter_ns(), thread_time_ns()
        for _ in range(turns):
            if not next(self.turns):
                raise ArmStopped(f"{self.loop} has nothing to run{self._reason()}")
        return Spent(perf_counter_ns() - began, thread_time_ns() - worked)

    def finish(self) -> Run:
        """Go on to the end.

        Raises:
            ArmStopped: a request has failed.
        """
        drive(self.turns, self.engine)
        device = self.engine.device
        device.close()
        if reason := self._reason():
            raise ArmStopped(f"{self.loop} lost a request{reason}")
        trace = device.recorder.trace(self.loop, device.name, self.model, device.clock)
        return Run(self.loop, self.requests, trace, metrics=self.engine.metrics)

    def _reason(self) -> str:
        return next((f": {req.rid}: {req.error}" for req in self.requests if req.error), "")


@contextmanager
def running(
    case: BenchCase,
    loop: str,
    cost: CostModel = NO_COST,
    recorder: Callable[[], Recorder] = Recorder,
    together: bool = False,
) -> Iterator[Arm]:
    """A loop after its first ``SETTLING`` turns; its device is open as long as the context.

    ``together`` has to be said of several.

    Raises:
        ArmStopped: a request has failed, or there are fewer steps.
    """
    device = open_device(case.device, **(TOGETHER.get(case.device, {}) if together else {}))
    try:
        device.recorder = recorder()
        device.recorder.now = device.now
        requests = tuple(fresh(request) for request in case.requests)
        model = copy(case.model)  # the weights are shared; where its KV lies, it keeps in itself
        engine = make_engine(loop, device, model, case.config, Frontend(requests), cost)
        turns = find_loop(loop).start(engine)
        device.recorder.line = line_of(turns)
        arm = Arm(loop, case.model.name, requests, engine, turns)
        arm.go_on(SETTLING)
        yield arm
    finally:
        device.close()


SETTLED = 3  # steps at each end that are left out


def steady_busy_percent(trace: Trace) -> float:
    """The share of the time between settled decode steps in which the device was busy.

    Raises:
        ValueError: the run has too few steps.
    """
    decodes = [item for item in forwards(trace) if item.mode == "decode"][SETTLED:-SETTLED]
    if len(decodes) < 2:
        raise ValueError(f"a run of {len(forwards(trace))} steps has no steady part.")
    whole = ((decodes[0].start, decodes[-1].start),)
    return 100 * length(intersection(device_busy(trace), whole)) / length(whole)


def steady_step_ms(trace: Trace) -> float:
    """The median time from one settled step's forward pass to the next one's."""
    return median(step_intervals(trace)[SETTLED:-SETTLED]) / 1e6
