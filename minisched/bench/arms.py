"""What a bench runs on a real device: loops that stop between two turns, so that they take turns.

Of a run it looks at the steady part: decode steps, without those in which requests come and go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

from ..checks.overlap import device_busy, forwards, intersection, length, step_intervals
from ..core import NoBatch, Request, SamplingParams, ScheduleBatch
from ..devices.cost import NO_COST, CostModel
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import find_loop, line_of
from ..loops.run import drive, fresh, make_engine
from ..models.base import Model
from ..models.llama import AUTO, write_tiny_llama
from ..models.registry import open_model
from ..scheduler import SchedulerConfig
from ..trace import Trace

# -- What a bench runs on a real device ------------------------------------------------------------


@dataclass(frozen=True)
class BenchCase:
    """A workload for one device."""

    device: str
    model: Model
    requests: Sequence[Request]
    config: SchedulerConfig


def batch_of(device: str, model: Model, batch: int, prompt_len: int, new_tokens: int) -> BenchCase:
    """``batch`` requests alike that come at once and run to their length together."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [
        Request(f"r{row}", [(row + at) % model.vocab_size for at in range(prompt_len)], params)
        for row in range(batch)
    ]
    longest = prompt_len + new_tokens
    config = SchedulerConfig(
        kv_tokens=batch * (longest + 1) + 1,
        max_running_requests=batch,
        context_len=longest,
        chunked_prefill_size=-1,
    )
    return BenchCase(device, model, requests, config)


NAME = "small"  # what a bench calls it
SIZES: dict[str, Any] = {"vocab": 4096, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
         "intermediate": 1024, "context": 256}  # fmt: skip


@contextmanager
def opened(name: str, device: str, dtype: str = AUTO) -> Iterator[Model]:
    """The model of that name, which may be ``small``.

    Raises:
        ValueError: there is none, or not for this device.
    """
    if name != NAME:
        yield open_model(name, device, dtype)
        return
    with TemporaryDirectory() as folder:
        yield open_model(str(write_tiny_llama(Path(folder), **SIZES)), device, dtype)


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


@dataclass(frozen=True)
class Arm:
    """A loop in the middle of its run, on a device of its own."""

    loop: str
    case: BenchCase
    engine: Engine
    turns: Iterator[ScheduleBatch | NoBatch]

    def go_on(self, turns: int) -> int:
        """Take so many turns, of a step each; nanoseconds.

        Raises:
            ArmStopped: there is nothing to run in one of them, as when a request has failed.
        """
        began = perf_counter_ns()
        for _ in range(turns):
            if not next(self.turns):
                raise ArmStopped(f"{self.loop} has nothing to run{self._reason()}")
        return perf_counter_ns() - began

    def finish(self) -> Trace:
        """Go on to the end.

        Raises:
            ArmStopped: a request has failed.
        """
        drive(self.turns, self.engine)
        device = self.engine.device
        device.close()
        if reason := self._reason():
            raise ArmStopped(f"{self.loop} lost a request{reason}")
        model = self.case.model.name
        return device.recorder.trace(self.loop, device.name, model, device.clock)

    def _reason(self) -> str:
        requests = self.case.requests
        return next((f": {req.rid}: {req.error}" for req in requests if req.error), "")


@contextmanager
def running(
    case: BenchCase, loop: str, cost: CostModel = NO_COST, together: bool = False
) -> Iterator[Arm]:
    """A loop after its first ``SETTLING`` turns; its device is open as long as the context.

    ``together`` has to be said of several.

    Raises:
        ArmStopped: a request has failed, or there are fewer steps.
    """
    device = open_device(case.device, **(TOGETHER.get(case.device, {}) if together else {}))
    try:
        # The weights are shared; where its KV lies, a model keeps in itself.
        own = replace(case, model=copy(case.model), requests=[*map(fresh, case.requests)])
        engine = make_engine(loop, device, own.model, own.config, Frontend(own.requests), cost)
        turns = find_loop(loop).start(engine)
        device.recorder.line = line_of(turns)
        arm = Arm(loop, own, engine, turns)
        arm.go_on(SETTLING)
        yield arm
    finally:
        device.close()


# -- The steady part of a run ----------------------------------------------------------------------

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
