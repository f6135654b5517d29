"""How much of what could be hidden a loop hides, and what the lock and the cores cost.

Of a settled decode step, all in milliseconds:

- ``serial`` and ``overlapped``: from the start of a step's forward to the start of the next one's,
  in the loop ``serial`` and in the device's overlapped loop.
- ``device``: how long the device was busy in a step of the serial run, undisturbed by the host.
- ``host`` = serial - device: what the host takes when the device does nothing meanwhile.
- ``hideable`` = min(host, device) is what overlap could save: no order of the same work takes less
  than max(host, device).
- ``hidden`` = serial - overlapped: what it does save. Its aim is 90 % of what is hideable.
- ``side by side``: of the overlapped step alone, how much of the shorter of host and device ran
  beside the longer. It tells that the order is right, on a machine that is faster in one run than
  in the next too. What running side by side costs, such as waiting for the lock, it does not tell:
  so it has no aim.

The host's added work is pure Python. What the lock costs is how much longer the overlapped step
takes than with the same work in a worker process; what the cores cost, how much longer that takes
than with a sleep. Handing work over and back takes some 0.5 ms, which goes with the cores: where
the lock costs less than nothing, Python beside the device is the better way. A sleep needs neither
of them, so what it hides is what the loop by itself hides.

All of them change places every few steps, as a machine that is shared is faster at one moment and
slower at the next: runs that follow each other differ by more than what is looked for here. Where
repetitions still disagree, the aim is neither met nor missed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ..checks.overlap import Interval, device_busy, forwards, host_busy, intersection, length
from ..core import NoBatch, Request, SamplingParams, ScheduleBatch
from ..defaults import overlapped_loop
from ..devices.cost import MILLISECOND, NO_COST
from ..devices.registry import open_device
from ..devices.wall_clock import Way, compute, done_by, rounds_of, work
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import find_loop, line_of
from ..loops.run import drive, fresh, make_engine, run_to_end, warm_up
from ..models.base import Model
from ..models.llama import AUTO, write_tiny_llama
from ..models.registry import open_model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .figures import BenchCall, BenchPart, Figure, figure, not_measured

# -- What is run: requests alike that decode together, on models of two sizes ----------------------


@dataclass(frozen=True)
class BenchCase:
    """A workload for one device."""

    device: str
    model: Model
    requests: Sequence[Request]
    config: SchedulerConfig


def batch_of(device: str, model: Model, batch: int, new_tokens: int) -> BenchCase:
    """``batch`` requests alike that come at once and run to their length together."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [
        Request(f"r{row}", [(row + at) % model.vocab_size for at in range(PROMPT_LEN)], params)
        for row in range(batch)
    ]
    longest = PROMPT_LEN + new_tokens
    config = SchedulerConfig(
        kv_tokens=batch * (longest + 1) + 1,
        max_running_requests=batch,
        context_len=longest,
        chunked_prefill_size=-1,
    )
    return BenchCase(device, model, requests, config)


SMALL = "small"  # what a bench calls a model of these sizes
SIZES: dict[str, Any] = {"vocab": 4096, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
         "intermediate": 1024, "context": 256}  # fmt: skip
PROMPT_LEN = 8  # tokens; decode is what is measured


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

    def go_on(self, turns: int) -> None:
        """Take so many turns, of a step each.

        Raises:
            ArmStopped: there is nothing to run in one of them, as when a request has failed.
        """
        for _ in range(turns):
            if not next(self.turns):
                raise ArmStopped(f"{self.loop} has nothing to run{self._reason()}")

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
        return device.recorder.trace(self.loop, device.name, self.case.model.name, device.clock)

    def _reason(self) -> str:
        requests = self.case.requests
        return next((f": {req.rid}: {req.error}" for req in requests if req.error), "")


@contextmanager
def running(case: BenchCase, loop: str, work_ms: float = 0.0) -> Iterator[Arm]:
    """A loop after its first ``SETTLING`` turns; its device is open as long as the context.

    Raises:
        ArmStopped: a request has failed, or there are fewer steps.
    """
    device = open_device(case.device, **TOGETHER.get(case.device, {}))
    try:
        # The weights are shared; where its KV lies, a model keeps in itself.
        own = replace(case, model=copy(case.model), requests=[*map(fresh, case.requests)])
        cost = NO_COST.with_host_work(round(work_ms * MILLISECOND))
        engine = make_engine(loop, device, own.model, own.config, Frontend(own.requests), cost)
        turns = find_loop(loop).start(engine)
        device.recorder.line = line_of(turns)
        arm = Arm(loop, own, engine, turns)
        arm.go_on(SETTLING)
        yield arm
    finally:
        device.close()


# -- What a decode step took, read off the trace of a loop that took turns with others -------------

ROUND = 5  # turns of a loop before it is the next one's turn
SKIPPED = 1  # step of a round, at its beginning: another loop's last step may still be running
SPARE = 3  # tokens of a request that come after the last round: nobody ends in one


@dataclass(frozen=True)
class MeasuredStep:
    """What a step took, by the trace; ``both_ms`` is when host and device both worked."""

    whole_ms: float
    device_ms: float
    host_ms: float
    both_ms: float

    @property
    def beside_percent(self) -> float:
        """How much of the shorter of host and device ran beside the longer."""
        shorter = min(self.device_ms, self.host_ms)
        return 100 * self.both_ms / shorter if shorter else 0.0


def steps_by_round(trace: Trace, rounds: int) -> list[MeasuredStep]:
    """A step of each round: the mean of those that count."""
    starts = [item.start for item in forwards(trace)]
    device, host = device_busy(trace), host_busy(trace)
    both = intersection(device, host)
    steps = []
    for first in range(SETTLING + SKIPPED, SETTLING + SKIPPED + rounds * ROUND, ROUND):
        last = first + ROUND - SKIPPED - 1
        span: tuple[Interval, ...] = ((starts[first], starts[last]),)
        parts = (length(intersection(busy, span)) for busy in (span, device, host, both))
        steps.append(MeasuredStep(*(part / (last - first) / MILLISECOND for part in parts)))
    return steps


def typical(rounds: Sequence[MeasuredStep], beside: Sequence[MeasuredStep]) -> MeasuredStep:
    """The median of a loop's rounds, each of them at the usual speed.

    ``beside`` are the rounds of another loop, in turn with these: where the machine was slow, they
    took longer than their own median, and these are shortened by as much.
    """
    usual = median(step.whole_ms for step in beside)
    level = [
        [part * usual / other.whole_ms for part in astuple(step)]
        for step, other in zip(rounds, beside, strict=True)
    ]
    return MeasuredStep(*map(median, zip(*level, strict=True)))


# -- Ways to do the host's added work, which tell what the lock takes and what the cores take ------
#
# Pure Python needs the interpreter lock and a core. The same rounds in a worker process need a core
# alone: the thread that waits for them has let the lock go. A sleep needs neither; it is as long as
# the rounds were a moment ago in the serial loop, where nobody disturbs them: on a shared machine
# that changes.
#
# A thread that got the lock from a busy one after 0.005 ms hid less: the device's own Python is
# interrupted as soon. Where others want the cores, threads then do little but take it from each
# other, and a serial step of 4 to 6 ms was seen to take 8 to 37. So devices do not ask for that.

PYTHON, PROCESS, SLEEP = "Python", "a worker process", "a sleep"
SERIAL = "serial"  # Python too, and the loop is the serial one
WAYS = (SERIAL, PYTHON, PROCESS, SLEEP)


class LoneWork:
    """The work where nobody disturbs it, and a sleep that is as long as it took the last time."""

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


@contextmanager
def ways() -> Iterator[dict[str, Way]]:
    """Each way by its name; the worker process lives as long as the context."""
    context = get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=serve, args=(there,), daemon=True)
    worker.start()
    there.close()
    here.recv()  # it has started

    def in_process(cost: int) -> None:
        here.send(rounds_of(cost))
        here.recv()

    alone = LoneWork()
    try:
        yield dict(zip(WAYS, (alone, compute, in_process, alone.sleep), strict=True))
    finally:
        here.close()
        worker.join()


def serve(pipe: Connection) -> None:
    """The worker's side: says that it is there, then does what it is sent until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which closes the pipe
    pipe.send(0)
    try:
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return


# -- The cells: devices, models, batches and added work, sized so that all take some minutes -------

DEVICES = ("thread", "mlx", "cuda")
MODELS = (SMALL, "smollm2")
BATCHES = (1, 8, 32)
WORKS_MS = (0.0, 5.0, 20.0)
MEASURE_S = 8.0  # about how long a repetition of one cell should take
FEWEST, MOST = 4, 40  # rounds of it
PROBE = 8  # steps
SLOW_S = 0.5  # beyond that, a step differs from the next one by more than any of these amounts


@dataclass(frozen=True)
class OverlapCell:
    """A loop beside the serial one, with so much work added to a step, for some rounds."""

    name: str
    case: BenchCase
    loop: str
    work_ms: float
    rounds: int

    @property
    def ways(self) -> tuple[str, ...]:
        """All of them, but where no work is added, nobody can tell who does it."""
        return WAYS if self.work_ms else (SERIAL, PYTHON)

    def measure(self, ways: Mapping[str, Way]) -> dict[str, MeasuredStep]:
        """A step of each way, from loops that take turns; the serial one tells how fast it was.

        Raises:
            ArmStopped: a request has failed, or is too short.
        """
        arms: dict[str, Arm] = {}
        with ExitStack() as stack:
            for way in self.ways:
                loop = "serial" if way == SERIAL else self.loop
                arms[way] = stack.enter_context(running(self.case, loop, self.work_ms))
            for _ in range(self.rounds):
                for way, arm in arms.items():
                    with done_by(ways[way]):
                        arm.go_on(ROUND)
            found = {way: steps_by_round(arm.finish(), self.rounds) for way, arm in arms.items()}
        return {way: typical(steps, found[SERIAL]) for way, steps in found.items()}


def overlap_rows(call: BenchCall) -> list[Figure]:
    """Every cell, or those that options name.

    Raises:
        ValueError: the device or the model named can't be had.
    """
    absent = {device: why_absent(device) for device in DEVICES}
    if call.device and absent[call.device]:
        raise ValueError(absent[call.device])
    rows = []
    with ways() as doing:
        for device in [call.device] if call.device else DEVICES:
            for name in [call.model] if call.model else MODELS:
                if absent[device]:
                    rows.append(not_measured(f"{device}, {name}", "%", absent[device]))
                    continue
                with opened(name, device, call.dtype) as model:
                    for batch in [call.requests] if call.requests else BATCHES:
                        title = f"{device}, {name}, batch {batch}"
                        loop = overlapped_loop(device)
                        rows += cell_rows(title, device, model, batch, loop, doing, call)
    return rows


def why_absent(device: str) -> str:
    """Why a device can't be opened here, or nothing."""
    try:
        open_device(device).close()
    except ValueError as error:
        return str(error)
    return ""


def cell_rows(
    title: str,
    device: str,
    model: Model,
    batch: int,
    loop: str,
    doing: Mapping[str, Way],
    call: BenchCall,
) -> list[Figure]:
    """One batch with each amount of added work. Where steps are slow, or one fails, it says why."""
    call.report(title)
    probe = batch_of(device, model, batch, PROBE)
    warm_up(device, model, probe.config)
    start = time.perf_counter()
    run_to_end("serial", device, model, probe.requests, probe.config)
    step_s = (time.perf_counter() - start) / (PROBE + 1)
    if step_s > SLOW_S:
        share = WORKS_MS[-1] / 1000 / step_s
        why = f"a step takes {step_s:.1f} s, and {WORKS_MS[-1]:g} ms are {share:.1%} of it"
        return [not_measured(f"{title}: hidden", "%", why)]
    rows = []
    for added in WORKS_MS:
        cell = OverlapCell(f"{title}, {added:g} ms", probe, loop, added, 0)
        round_s = ROUND * len(cell.ways) * (step_s + added / 1000)
        most = min(MOST, (model.context_len - PROMPT_LEN - SETTLING - SPARE) // ROUND)
        rounds = min(most, max(FEWEST, round(MEASURE_S / round_s)))
        case = batch_of(device, model, batch, SETTLING + rounds * ROUND + SPARE)
        cell = replace(cell, case=case, rounds=rounds)
        steps: dict[str, list[MeasuredStep]] = {way: [] for way in WAYS}
        try:
            for repetition in range(call.repetitions):
                call.report(f"{cell.name}, repetition {repetition + 1} of {call.repetitions}")
                for way, step in cell.measure(doing).items():
                    steps[way].append(step)
            rows += share_rows(cell.name, steps)
        except ArmStopped as error:
            rows.append(not_measured(f"{cell.name}: hidden", "%", str(error)))
    return rows


# -- What is hidden of what could be ---------------------------------------------------------------

AIM = 90.0  # percent of what could be hidden
LEAST_MS = 1.0  # where less could be hidden, its share says nothing, and has no aim
AGREE = 0.8  # of the repetitions have to be on one side of the aim, for it to be met or missed


def share_rows(name: str, steps: Mapping[str, Sequence[MeasuredStep]]) -> list[Figure]:
    """The figures of one cell, from each way's step in each repetition."""
    taken = {way: [step.whole_ms for step in found] for way, found in steps.items()}
    device = [step.device_ms for step in steps[SERIAL]]
    host = [max(0.0, both - part) for both, part in zip(taken[SERIAL], device, strict=True)]
    hideable = [min(pair) for pair in zip(host, device, strict=True)]

    def hidden(way: str, label: str, why: str = "") -> Figure:
        saved = less(taken[SERIAL], taken[way])
        share = [100 * a / b if b else 0.0 for a, b in zip(saved, hideable, strict=True)]
        row = figure(f"{name}: {label}", share, "%", AIM if median(hideable) >= LEAST_MS else None)
        same_side = [(value >= AIM) == row.met for value in share]
        if row.met is not None and sum(same_side) < AGREE * len(share):
            alone = f"from {min(taken[SERIAL]):.1f} to {max(taken[SERIAL]):.1f} ms"
            why = f"not told: serial steps {alone}, of which {median(hideable):.1f} could be hidden"
            return replace(row, aim=None, reason=why)
        return row.because(why)

    beside = less([step.device_ms for step in steps[PYTHON]], device)
    why = f"beside the host the device takes {median(beside):.1f} ms longer"
    costs = []
    if taken[SLEEP]:
        lock, cores = less(taken[PYTHON], taken[PROCESS]), less(taken[PROCESS], taken[SLEEP])
        why += f"; the lock costs {median(lock):.1f} ms, and the cores {median(cores):.1f}"
        costs = [
            hidden(
                PROCESS, "hidden, by a worker process", f"the cores cost {median(cores):.1f} ms"
            ),
            hidden(SLEEP, "hidden, by a sleep"),
            figure(f"{name}: the lock costs", lock, "ms"),
            figure(f"{name}: the cores cost", cores, "ms"),
        ]
    return [
        figure(f"{name}: host", host, "ms"),
        figure(f"{name}: device", device, "ms"),
        figure(f"{name}: side by side", [step.beside_percent for step in steps[PYTHON]], "%"),
        hidden(PYTHON, "hidden", why),
        *costs,
    ]


def less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Differences, repetition by repetition."""
    return [a - b for a, b in zip(one, other, strict=True)]


PART = BenchPart(overlap_rows, ("device", "model", "dtype", "requests"), DEVICES)
