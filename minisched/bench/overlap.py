"""The share of the hideable time that a loop hides, and the cost of the lock and the cores.

Of a settled decode step, all in milliseconds:

- ``serial`` and ``overlapped``: from the start of a step's forward to the start of the next one's,
  in the loop ``serial`` and in the device's overlapped loop.
- ``device``: how long the device was busy in a step of the serial run, undisturbed by the host.
- ``host`` = serial - device: the host's time while the device does nothing.
- ``hideable`` = min(host, device): the most that overlap can save, because no order of the same
  work takes less than max(host, device).
- ``hidden`` = serial - overlapped: the time that overlap saves. Its aim is 90 % of ``hideable``.

The host's added work is pure Python, which needs the interpreter lock and a core. A sleep of the
same length needs neither, so its hidden time is the loop's own. The step with Python takes longer
by the cost of the lock and the cores together.

The loops change places every few steps. The speed of a shared machine varies, and consecutive runs
differ by more than the effect measured here. Where repetitions still disagree, the aim is neither
met nor missed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..checks.overlap import device_busy, forwards, within
from ..core import NoBatch, Request, ScheduleBatch
from ..defaults import overlapped_loop
from ..devices.cost import MILLISECOND, NO_COST
from ..devices.registry import open_device
from ..devices.wall_clock import Way, compute, done_by
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import find_loop
from ..loops.run import drive, make_engine, run_to_end, warm_up
from ..models.base import Model
from ..models.checkpoint import AUTO
from ..models.registry import open_model
from ..trace import Trace
from .calibrate import CalibrationLoad
from .figures import BenchCall, BenchPart, Figure, not_measured
from .tiny_llama import write_tiny_llama

# -- What is run: requests alike that decode together, on models of two sizes ----------------------

PROMPT_LEN = 8  # tokens; decode is what is measured
SMALL = "small"  # what a bench calls a model of these sizes
SIZES: dict[str, Any] = {"vocab": 4096, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
         "intermediate": 1024, "context": 256}  # fmt: skip


@contextmanager
def opened(name: str, device: str, dtype: str | None = None) -> Iterator[Model]:
    """The model of that name, which may be ``small``.

    Raises:
        ValueError: there is none, or not for this device.
    """
    if name != SMALL:
        yield open_model(name, device, dtype or AUTO)
        return
    with TemporaryDirectory() as folder:
        yield open_model(str(write_tiny_llama(Path(folder), **SIZES)), device, dtype or AUTO)


# -- A loop that can be stopped between two of its turns, so that several go on side by side -------

SETTLING = 5  # turns: the prompts, then a pipeline that fills
# Options of devices that are open together: teams of threads of several would delay each other
# (``devices/thread.py``).
TOGETHER = {"thread": {"torch_threads": 1}}


class ArmStopped(RuntimeError):
    """A loop has nothing to run where it should have, or a request has failed."""


@dataclass(frozen=True)
class Arm:
    """A loop in the middle of its run, on a device of its own."""

    loop: str
    requests: Sequence[Request]
    engine: Engine
    turns: Iterator[ScheduleBatch | NoBatch]

    def go_on(self, turns: int) -> None:
        """Take this many turns, of a step each.

        Raises:
            ArmStopped: a turn has nothing to run, for example because a request has failed.
        """
        for _ in range(turns):
            if not next(self.turns):
                why = next((req.error for req in self.requests if req.error), "nothing left")
                raise ArmStopped(f"{self.loop} has nothing to run: {why}")

    def finish(self) -> Trace:
        """Go on to the end."""
        drive(self.turns, self.engine)
        device = self.engine.device
        device.close()
        return Trace.of(device.recorder, self.loop, device.name, "", device.clock)


@contextmanager
def running(
    name: str, model: Model, load: CalibrationLoad, loop: str, work_ms: float = 0.0
) -> Iterator[Arm]:
    """A loop after its first ``SETTLING`` turns; its device is open as long as the context.

    Raises:
        ArmStopped: a request has failed, or there are fewer steps.
    """
    device = open_device(name, **TOGETHER.get(name, {}))
    try:
        requests, cost = load.make(model.vocab_size), NO_COST.with_host_work(round(work_ms * 1e6))
        own = copy(model)  # the weights are shared; where its KV lies, a model keeps in itself
        engine = make_engine(loop, device, own, load.config, Frontend(requests), cost)
        turns = find_loop(loop).start(engine)
        arm = Arm(loop, requests, engine, turns)
        arm.go_on(SETTLING)
        yield arm
    finally:
        device.close()


# -- The time of a decode step, from the trace of a loop that took turns with others ---------------

ROUND = 5  # turns of a loop before it is the next one's turn
SKIPPED = 1  # step of a round, at its beginning: another loop's last step may still be running
SPARE = 3  # tokens of a request after the last round: no request ends in a round


class MeasuredStep(NamedTuple):
    """The time of a step, and the device's busy time in it, from the trace."""

    whole_ms: float
    device_ms: float


def steps_by_round(trace: Trace, rounds: int) -> list[MeasuredStep]:
    """A step of each round: the mean of those that count."""
    starts = [item.start for item in forwards(trace)]
    device, steps = device_busy(trace), []
    for first in range(SETTLING + SKIPPED, SETTLING + SKIPPED + rounds * ROUND, ROUND):
        last = first + ROUND - SKIPPED - 1
        start, end, unit = starts[first], starts[last], (last - first) * MILLISECOND
        steps.append(MeasuredStep((end - start) / unit, within(device, start, end) / unit))
    return steps


def typical(rounds: Sequence[MeasuredStep], beside: Sequence[MeasuredStep]) -> MeasuredStep:
    """The median of a loop's rounds, each of them at the usual speed.

    ``beside`` are the rounds of another loop, in turn with these. Where the machine was slow, they
    took longer than their own median, and these are shortened by as much.
    """
    usual = median(step.whole_ms for step in beside)
    level = [
        [part * usual / other.whole_ms for part in step]
        for step, other in zip(rounds, beside, strict=True)
    ]
    return MeasuredStep(*map(median, zip(*level, strict=True)))


# -- The cells: devices, models, batches and added work, sized so that all take some minutes -------

SERIAL, PYTHON, SLEEP = "serial", "Python", "a sleep"  # the serial loop; how the other one works
DEVICES = ("thread", "mlx", "cuda")
MODELS = (SMALL, "smollm2")
BATCHES = (1, 8, 32)
WORKS_MS = (0.0, 5.0, 20.0)
MEASURE_S = 8.0  # about how long a repetition of one cell should take
FEWEST, MOST = 4, 40  # rounds of it
PROBE = 8  # steps
SLOW_S = 0.5  # beyond that, a step differs from the next one by more than any of these amounts


class LoneWork:
    """The undisturbed work, and a sleep that is as long as the work's last run."""

    def __init__(self) -> None:
        self.slowness = 1.0  # how many times as long as meant

    def __call__(self, cost: int) -> None:
        """Do it."""
        start = time.perf_counter_ns()
        compute(cost)
        self.slowness = (time.perf_counter_ns() - start) / cost

    def sleep(self, cost: int) -> None:
        """Let as much time pass."""
        time.sleep(self.slowness * cost / 1e9)


def measure(
    device: str, model: Model, load: CalibrationLoad, work_ms: float, rounds: int
) -> dict[str, MeasuredStep]:
    """Measure a step of each way in loops that take turns; the serial one gives the speed.

    Raises:
        ArmStopped: a request has failed, or is too short.
    """
    lone = LoneWork()
    ways: dict[str, Way] = {SERIAL: lone, PYTHON: compute, SLEEP: lone.sleep}
    if not work_ms:  # no work: a sleep can't differ from it
        del ways[SLEEP]
    with ExitStack() as stack:
        arms = {}
        for way in ways:
            loop = SERIAL if way == SERIAL else overlapped_loop(device)
            arms[way] = stack.enter_context(running(device, model, load, loop, work_ms))
        for _ in range(rounds):
            for way, arm in arms.items():
                with done_by(ways[way]):
                    arm.go_on(ROUND)
        found = {way: steps_by_round(arm.finish(), rounds) for way, arm in arms.items()}
    return {way: typical(steps, found[SERIAL]) for way, steps in found.items()}


def overlap_rows(call: BenchCall) -> list[Figure]:
    """Every cell, or those that options name.

    Raises:
        ValueError: the device or the model named can't be had.
    """
    rows = []
    for device in [call.device] if call.device else DEVICES:
        try:
            open_device(device).close()
        except ValueError as error:
            if call.device:
                raise
            rows.append(not_measured(device, "%", str(error)))
            continue
        for name in [call.model] if call.model else MODELS:
            with opened(name, device, call.dtype) as model:
                for batch in [call.requests] if call.requests else BATCHES:
                    title = f"{device}, {name}, batch {batch}"
                    rows += cell_rows(title, device, model, batch, call)
    return rows


def cell_rows(title: str, device: str, model: Model, batch: int, call: BenchCall) -> list[Figure]:
    """Measure one batch with each amount of added work; a row has the reason if it can't."""
    call.report(title)
    probe = CalibrationLoad(batch, PROMPT_LEN, PROBE)
    warm_up(device, model, probe.config)
    start = time.perf_counter()
    run_to_end(SERIAL, device, model, probe.make(model.vocab_size), probe.config)
    step_s = (time.perf_counter() - start) / (PROBE + 1)
    if step_s > SLOW_S:
        share = WORKS_MS[-1] / 1000 / step_s
        why = f"a step takes {step_s:.1f} s, and {WORKS_MS[-1]:g} ms are {share:.1%} of it"
        return [not_measured(f"{title}: hidden", "%", why)]
    rows = []
    for added in WORKS_MS:
        name = f"{title}, {added:g} ms"
        round_s = ROUND * 3 * (step_s + added / 1000)
        most = min(MOST, (model.context_len - PROMPT_LEN - SETTLING - SPARE) // ROUND)
        rounds = min(most, max(FEWEST, round(MEASURE_S / round_s)))
        load = CalibrationLoad(batch, PROMPT_LEN, SETTLING + rounds * ROUND + SPARE)
        steps = []
        try:
            for repetition in range(call.repetitions):
                call.report(f"{name}, repetition {repetition + 1} of {call.repetitions}")
                steps.append(measure(device, model, load, added, rounds))
            rows += share_rows(name, steps)
        except ArmStopped as error:
            rows.append(not_measured(f"{name}: hidden", "%", str(error)))
    return rows


# -- The hidden share of the hideable time ---------------------------------------------------------

AIM = 90.0  # percent of what could be hidden
LEAST_MS = 1.0  # hideable; of less, the share means nothing and has no aim
AGREE = 0.8  # of the repetitions have to be on one side of the aim, for it to be met or missed


def share_rows(name: str, steps: Sequence[Mapping[str, MeasuredStep]]) -> list[Figure]:
    """Return the figures of one cell, from each way's step in each repetition."""
    taken = {way: [step[way].whole_ms for step in steps] for way in steps[0]}
    device = [step[SERIAL].device_ms for step in steps]
    host = [max(0.0, value) for value in less(taken[SERIAL], device)]
    hideable = [min(pair) for pair in zip(host, device, strict=True)]

    def hidden(way: str, label: str, why: str = "") -> Figure:
        """Return the share of the hideable time that an arm hid, in percent."""
        saved = less(taken[SERIAL], taken[way])
        share = [100 * a / b if b else 0.0 for a, b in zip(saved, hideable, strict=True)]
        row = Figure(f"{name}: {label}", share, "%", AIM if median(hideable) >= LEAST_MS else None)
        same_side = [(value >= AIM) == row.met for value in share]
        if row.met is not None and sum(same_side) < AGREE * len(share):
            alone = f"from {min(taken[SERIAL]):.1f} to {max(taken[SERIAL]):.1f} ms"
            why = f"undecided. Serial steps take {alone}. {median(hideable):.1f} ms could be hidden"
            return replace(row, aim=None, reason=why)
        return row.because(why)

    longer = less([step[PYTHON].device_ms for step in steps], device)
    why = f"next to the host, the device takes {median(longer):.1f} ms longer"
    rows = [Figure(f"{name}: host", host, "ms"), Figure(f"{name}: device", device, "ms")]
    if SLEEP not in taken:
        return [*rows, hidden(PYTHON, "hidden", why)]
    cost = less(taken[PYTHON], taken[SLEEP])
    why += f". The lock and the cores cost {median(cost):.1f} ms"
    return [
        *rows,
        hidden(PYTHON, "hidden", why),
        hidden(SLEEP, "hidden, by a sleep"),
        Figure(f"{name}: the lock and the cores cost", cost, "ms"),
    ]


def less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Differences, repetition by repetition."""
    return [a - b for a, b in zip(one, other, strict=True)]


PART = BenchPart(overlap_rows, ("device", "model", "dtype", "requests"), DEVICES)
