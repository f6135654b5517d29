"""How much of what could be hidden a loop hides, and what the lock and the cores cost.

Of a settled decode step, all in milliseconds:

- ``serial`` and ``overlapped``: from the start of a step's forward to the start of the next one's,
  in the loop ``serial`` and in the device's overlapped loop.
- ``device``: how long the device was busy in a step of the serial run, undisturbed by the host;
  how much longer beside it, is what the host's company costs it.
- ``host`` = serial - device: what the host takes when the device does nothing meanwhile.
- ``ideal`` = max(host, device): no order of the same work takes less, and
  ``hideable`` = min(host, device) = serial - ideal is what overlap could save.
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

All of them change places every few steps (``arms.py``), as a machine that is shared is faster at
one moment and slower at the next. Where repetitions still disagree, the aim is neither met nor
missed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

from ..checks.overlap import Interval, device_busy, forwards, host_busy, intersection, length
from ..devices.cost import MILLISECOND, NO_COST
from ..devices.wall_clock import Way, compute, done_by, rounds_of, work
from ..loops.run import run_to_end, warm_up
from ..models.base import Model
from ..trace import Trace
from .arms import NAME, SETTLING, ArmStopped, BenchCase, batch_of, running
from .figures import Figure, figure, not_measured

# -- What a decode step took, read off the trace of a loop that took turns with others -------------

ROUND = 5  # turns of a loop before it is the next one's turn
SKIPPED = 1  # step of a round, at its beginning: another loop's last step may still be running


@dataclass(frozen=True)
class MeasuredStep:
    """What a step took, by the trace; ``both_ms`` is when host and device both worked."""

    whole_ms: float
    device_ms: float
    host_ms: float
    both_ms: float

    @property
    def shorter_ms(self) -> float:
        """What could run beside the other: the shorter of host and device."""
        return min(self.device_ms, self.host_ms)

    @property
    def beside_percent(self) -> float:
        """How much of the shorter of host and device ran beside the longer."""
        return 100 * self.both_ms / self.shorter_ms if self.shorter_ms else 0.0

    def times(self, factor: float) -> MeasuredStep:
        """The same on a machine that takes so many times as long."""
        return MeasuredStep(*(factor * part for part in astuple(self)))


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
        astuple(step.times(usual / other.whole_ms))
        for step, other in zip(rounds, beside, strict=True)
    ]
    return MeasuredStep(*map(median, zip(*level, strict=True)))


# -- Which workloads ``bench overlap`` measures, sized so that all of them take some minutes -------

DEVICES = ("thread", "mlx", "cuda")
MODELS = (NAME, "smollm2")
BATCHES = (1, 8, 32)
WORKS_MS = (0.0, 5.0, 20.0)
PROMPT_LEN = 8  # tokens; decode is what is measured
MEASURE_S = 8.0  # about how long a repetition of one cell should take
FEWEST, MOST = 4, 40  # rounds of it
PROBE = 8  # steps
SLOW_S = 0.5  # beyond that, a step differs from the next one by more than any of these amounts


def make_cells(name: str, device: str, model: Model, batch: int, loop: str) -> list[OverlapCell]:
    """One for each amount of work, with as many rounds as take their time; or why there is none."""
    probe = batch_of(device, model, batch, PROMPT_LEN, PROBE)
    step_s = time_step(probe)
    if step_s > SLOW_S:
        share = WORKS_MS[-1] / 1000 / step_s
        reason = f"a step takes {step_s:.1f} s, and {WORKS_MS[-1]:g} ms are {share:.1%} of it"
        return [OverlapCell(name, probe, loop, 0.0, 0, reason)]
    cells = []
    for added in WORKS_MS:
        round_s = ROUND * len(ways_for(added)) * (step_s + added / 1000)
        most = min(MOST, rounds_in(model.context_len - PROMPT_LEN))
        rounds = min(most, max(FEWEST, round(MEASURE_S / round_s)))
        case = batch_of(device, model, batch, PROMPT_LEN, tokens_for(rounds))
        cells.append(OverlapCell(f"{name}, {added:g} ms", case, loop, added, rounds))
    return cells


def time_step(case: BenchCase) -> float:
    """Seconds of a step without added work, about."""
    warm_up(case.device, case.model, case.config)
    start = time.perf_counter()
    run_to_end("serial", case.device, case.model, case.requests, case.config)
    return (time.perf_counter() - start) / (PROBE + 1)


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


def ways_for(work_ms: float) -> tuple[str, ...]:
    """All of them, but where no work is added, nobody can tell who does it."""
    return WAYS if work_ms else (SERIAL, PYTHON)


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


# -- Several loops side by side, a few steps at a time, and what a step of each of them takes ------

SPARE = 3  # tokens of a request that come after the last round: nobody ends in one


@dataclass(frozen=True)
class LoopEntry:
    """A loop with so many milliseconds of work added to a step, and the way to do it."""

    loop: str
    work_ms: float = 0.0
    way: Way = compute


def tokens_for(rounds: int) -> int:
    """New tokens of a request that lives through so many rounds."""
    return SETTLING + rounds * ROUND + SPARE


def rounds_in(new_tokens: int) -> int:
    """For how many rounds such requests last."""
    return (new_tokens - SETTLING - SPARE) // ROUND


def in_turn(
    case: BenchCase, entries: Mapping[str, LoopEntry], rounds: int
) -> dict[str, MeasuredStep]:
    """A step of each, by its name; the first one tells how fast the machine was in each round.

    Raises:
        ArmStopped: a request has failed, or is too short.
    """
    arms = {}
    with ExitStack() as stack:
        for name, entry in entries.items():
            cost = NO_COST.with_host_work(round(entry.work_ms * MILLISECOND))
            arms[name] = stack.enter_context(running(case, entry.loop, cost, together=True))
        for _ in range(rounds):
            for name, arm in arms.items():
                with done_by(entries[name].way):
                    arm.go_on(ROUND)
        found = {name: steps_by_round(arm.finish(), rounds) for name, arm in arms.items()}
    first = next(iter(found.values()))
    return {name: typical(steps, first) for name, steps in found.items()}


# -- What is hidden of what could be ---------------------------------------------------------------

AIM = 90.0  # percent of what could be hidden
LEAST_MS = 1.0  # where less could be hidden, its share says nothing, and has no aim
AGREE = 0.8  # of the repetitions have to be on one side of the aim, for it to be met or missed
Steps = Mapping[str, list[MeasuredStep]]  # of each way, one for each repetition


@dataclass(frozen=True)
class OverlapCell:
    """A loop beside the serial one, with so much work added to a step, for some rounds.

    With a ``reason`` there is nothing to measure.
    """

    name: str
    case: BenchCase
    loop: str
    work_ms: float
    rounds: int
    reason: str = ""


def overlap_figures(
    cells: Sequence[OverlapCell],
    ways: Mapping[str, Way],
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """All figures of cells that are measured in turn. One that fails costs its own rows alone."""
    steps: list[dict[str, list[MeasuredStep]]] = [{way: [] for way in ways} for _ in cells]
    reasons = [cell.reason for cell in cells]
    for repetition in range(repetitions):
        for at, cell in enumerate(cells):
            if reasons[at]:
                continue
            report(f"{cell.name}, repetition {repetition + 1} of {repetitions}")
            try:
                for way, step in side_by_side(cell, ways).items():
                    steps[at][way].append(step)
            except ArmStopped as error:
                reasons[at] = str(error)
    rows: list[Figure] = []
    for cell, found, reason in zip(cells, steps, reasons, strict=True):
        missing = not_measured(f"{cell.name}: hidden", "%", reason)
        rows += [missing] if reason else share_rows(cell.name, found)
    return rows


def side_by_side(cell: OverlapCell, ways: Mapping[str, Way]) -> dict[str, MeasuredStep]:
    """A step of each way in which the cell's work can be done, from loops that take turns."""
    entries = {
        way: LoopEntry("serial" if way == SERIAL else cell.loop, cell.work_ms, ways[way])
        for way in ways_for(cell.work_ms)
    }
    return in_turn(cell.case, entries, cell.rounds)


def share_rows(name: str, steps: Steps) -> list[Figure]:
    """The figures of one cell. Without added work nobody else does it."""
    taken = {way: [step.whole_ms for step in found] for way, found in steps.items()}
    whole, alone = taken[SERIAL], [step.device_ms for step in steps[SERIAL]]
    host = [max(0.0, both - part) for both, part in zip(whole, alone, strict=True)]
    ideal = [max(pair) for pair in zip(host, alone, strict=True)]
    longer = less([step.device_ms for step in steps[PYTHON]], alone)
    why = f"beside the host the device takes {median(longer):.1f} ms longer"
    costs = []
    if taken[SLEEP]:
        lock, cores = less(taken[PYTHON], taken[PROCESS]), less(taken[PROCESS], taken[SLEEP])
        why += f"; the lock costs {median(lock):.1f} ms, and the cores {median(cores):.1f}"
        aside = f"the cores cost {median(cores):.1f} ms"
        costs = [
            hidden_share(
                f"{name}: hidden, by a worker process", whole, ideal, taken[PROCESS], aside
            ),
            hidden_share(f"{name}: hidden, by a sleep", whole, ideal, taken[SLEEP]),
            figure(f"{name}: the lock costs", lock, "ms"),
            figure(f"{name}: the cores cost", cores, "ms"),
        ]
    return [
        figure(f"{name}: host", host, "ms"),
        figure(f"{name}: device", alone, "ms"),
        figure(f"{name}: device, longer beside the host", longer, "ms"),
        figure(f"{name}: makespan / max(host, device)", divided(taken[PYTHON], ideal), "ratio"),
        figure(f"{name}: speed-up / ideal", divided(ideal, taken[PYTHON]), "ratio"),
        figure(f"{name}: side by side", [step.beside_percent for step in steps[PYTHON]], "%"),
        hidden_share(f"{name}: hidden", whole, ideal, taken[PYTHON], why),
        *costs,
    ]


def hidden_share(
    name: str, serial: list[float], ideal: list[float], taken: list[float], why: str = ""
) -> Figure:
    """The share of what could be hidden that is hidden; ``why`` it is no more than that."""
    hideable = less(serial, ideal)
    share = [100 * part for part in divided(less(serial, taken), hideable)]
    row = figure(name, share, "%", AIM if median(hideable) >= LEAST_MS else None)
    same_side = [(value >= AIM) == row.met for value in share]
    if row.met is not None and sum(same_side) < AGREE * len(share):
        steps = f"serial steps alone from {min(serial):.1f} to {max(serial):.1f} ms"
        why = f"not told: {steps}, of which {median(hideable):.1f} could be hidden"
        return replace(row, aim=None, reason=why)
    return row.because(why)


def less(one: list[float], other: list[float]) -> list[float]:
    """Differences, repetition by repetition."""
    return [a - b for a, b in zip(one, other, strict=True)]


def divided(one: list[float], other: list[float]) -> list[float]:
    """Quotients, repetition by repetition; 0 where there is nothing to divide by."""
    return [a / b if b else 0.0 for a, b in zip(one, other, strict=True)]
