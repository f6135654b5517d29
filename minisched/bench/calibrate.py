"""Measures what steps cost on this machine: a few designed workloads, their traces, a fit."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, cast

from ..checks.overlap import Interval, union
from ..core import Request, SamplingParams
from ..devices.cost import ADDED_TO, MILLISECOND, NO_COST, CostModel, Pace
from ..devices.profiles import HostCost, MeasuredCost
from ..devices.registry import open_device
from ..loops.run import Run, run_to_end, warm_up
from ..models.base import Model
from ..replay.replay import LengthModel
from ..scheduler import SchedulerConfig
from ..trace import Slice, Trace
from ..trace.events import is_host

# -- A cost model that also hears of which rows each forward pass is: no trace has them ------------

Rows = list[tuple[int, int]]  # first new position and new positions of each row


class Listener:
    """A cost model that also notes the rows of each forward pass: no trace has them.

    Steps are launched in the order in which their forward passes run.
    """

    def __init__(self, cost: CostModel, heard: list[Rows] | None = None) -> None:
        self.cost = cost
        self.heard: list[Rows] = [] if heard is None else heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cost, name)

    def of_loop(self, loop: str) -> Listener:
        """The same for one loop."""
        return Listener(self.cost.of_loop(loop), self.heard)

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """The cost of a forward pass, which is noted."""
        self.heard.append(list(rows))
        return self.cost.forward_rows(self.heard[-1])


# -- The workloads that costs are fitted to, and those that are predicted: requests alike ----------

MOST_TOKENS = 128  # of prompts in one step
LEAD = 500 * MILLISECOND  # before the first arrival: an engine takes time to be made


@dataclass(frozen=True)
class CalibrationLoad:
    """A workload by its figures: requests alike, ``every`` nanoseconds apart.

    ``work`` is pure-Python work added to each step, in nanoseconds.
    """

    requests: int
    prompt: int
    new: int
    work: int = 0
    every: int = 0

    def make(self, vocab: int) -> list[Request]:
        """The requests; each runs to its length."""
        params = SamplingParams(max_new_tokens=self.new, ignore_eos=True)
        return [
            Request(
                f"r{at}",
                [(31 * at + 7 * place) % (vocab - 8) + 5 for place in range(self.prompt)],
                params,
                arrival_time=LEAD + at * self.every if self.every else 0,
            )
            for at in range(self.requests)
        ]

    @property
    def config(self) -> SchedulerConfig:
        """Room for all of them at once."""
        length = self.prompt + self.new
        return SchedulerConfig(
            max_running_requests=self.requests,
            kv_tokens=(length + 2) * self.requests + 1,
            context_len=length,
            chunked_prefill_size=MOST_TOKENS,
        )


@dataclass(frozen=True)
class CalibrationDesign:
    """The workloads that costs are fitted to: in the serial loop alone, and through every loop.

    The serial ones should reach as far as what is to be predicted, and have every batch size and
    prompt that the line of the forward pass bends at. ``config`` is for all of them; without one
    each has room for itself.
    """

    serial: Sequence[CalibrationLoad]
    loops: Sequence[CalibrationLoad]
    config: SchedulerConfig | None = None

    @property
    def context_len(self) -> int:
        """How long a context the model needs for them."""
        return max(load.config.context_len for load in (*self.serial, *self.loops))


WORK = 20 * MILLISECOND
USUAL = CalibrationDesign(
    serial=(
        CalibrationLoad(1, 32, 12), CalibrationLoad(2, 16, 8), CalibrationLoad(4, 32, 10),
        CalibrationLoad(8, 16, 8), CalibrationLoad(16, 4, 8), CalibrationLoad(1, 160, 3),
    ),
    loops=(CalibrationLoad(4, 8, 12), CalibrationLoad(4, 8, 12, WORK), CalibrationLoad(8, 6, 6)),
)  # fmt: skip


# -- What a trace says of costs: each phase of the host and each op of the device, with its batch

GROWING = ("receive", "prepare", "advance step", "launch", "launch sample", "process", "fill",
           "postprocess")  # fmt: skip
ASLEEP = ("receive", "schedule")  # what comes behind a schedule that found nothing to do


@dataclass(frozen=True)
class Piece:
    """One measured duration; ``beside`` is how much of it the other side worked as well.

    ``rows`` are those of its step. All times in nanoseconds.
    """

    name: str
    duration: int
    beside: int
    rows: Rows

    @property
    def tokens(self) -> int:
        """New tokens of its step."""
        return sum(length for _, length in self.rows)

    def alone(self, lost: int) -> int:
        """What it would have taken alone, if of 1000 nanoseconds beside the other ``lost`` go."""
        return self.duration - self.beside * lost // 1000


class Observed:
    """One run, taken apart; ``work`` is the host work that was added to each step."""

    def __init__(self, run: Run, heard: Sequence[Rows], work: int = 0) -> None:
        self.loop, self.work = run.loop, work
        self.trace = run.trace
        self.host = self.trace.on("host")
        forwards = [item for item in self.trace.on("forward") if item.name == "forward"]
        self.rows = {item.step: rows for item, rows in zip(forwards, heard, strict=False)}
        self.ends = {(item.name, item.step): item for item in self.trace.slices
                     if not is_host(item.lane)}  # fmt: skip

    @cached_property
    def device_busy(self) -> tuple[Interval, ...]:
        """When any stream of the device worked, the copies too."""
        return union(item for item in self.trace.slices if not is_host(item.lane))

    @cached_property
    def host_busy(self) -> tuple[Interval, ...]:
        """When the host worked, between its phases too."""
        works = [item for item in self.trace.slices if is_host(item.lane) and item.name != "wait"]
        between = [Slice(0, "host", "", a.end, until, 0) for a, until in self.followed()]
        return union([*works, *between])

    def followed(self) -> Iterator[tuple[Slice, int]]:
        """Each phase, and until when the host worked behind it before it did something else."""
        for at, (phase, behind) in enumerate(pairwise(self.host)):
            if phase.name == "wait" or (phase.name == "schedule" and behind.name in ASLEEP):
                continue
            while behind.name == "wait" and not self.was_blocked(behind):
                at += 1
                if at + 1 >= len(self.host):
                    break
                behind = self.host[at + 1]
            yield phase, max(behind.start, phase.end)

    def was_blocked(self, wait: Slice) -> bool:
        """Whether what the host waited for was still to come."""
        copy = self.ends.get(("copy", wait.step))
        return copy is not None and copy.end > wait.start

    @cached_property
    def names(self) -> dict[int, str]:
        """What the cost model calls each phase, by the slice's id.

        The second launch of a step only samples; a prepare behind a launch only goes one step on.
        """
        names: dict[int, str] = {}
        launched: set[int] = set()
        before = ""
        for item in self.host:
            names[item.id] = item.name
            if item.name == "launch" and item.step in launched:
                names[item.id] = "launch sample"
            elif item.name == "launch":
                launched.add(item.step)
            elif item.name == "prepare" and before == "launch":
                names[item.id] = "advance step"
            before = item.name
        return names

    def phases(self) -> Iterator[Piece]:
        """Every phase of the host, also of its threads."""
        for item in self.trace.slices:
            if is_host(item.lane) and item.name != "wait":
                name = self.names.get(item.id, item.name)
                rows = self.rows.get(item.step, [(0, 1)] * len(item.rids))
                yield self.piece(name, item.start, self.seen_end(item), rows, self.device_busy)

    def seen_end(self, item: Slice) -> int:
        """The end of a phase; of a launch on an idle device, when what it launched began."""
        first = self.ends.get(("forward", item.step))
        if self.names.get(item.id) != "launch" or first is None:
            return item.end
        is_idle = not overlap(self.device_busy, item.start, first.start)
        return first.start if is_idle and item.start <= first.start < item.end else item.end

    def gaps(self) -> Iterator[Piece]:
        """What follows each phase and is no slice, by the phase's name in the trace."""
        for phase, until in self.followed():
            start = self.seen_end(phase)
            yield self.piece(phase.name, start, until, [], self.device_busy)

    def ops(self) -> Iterator[Piece]:
        """Every op of the device."""
        for (name, step), item in self.ends.items():
            yield self.piece(name, item.start, item.end, self.rows.get(step, []), self.host_busy)

    def delays(self) -> Iterator[Piece]:
        """From when an op could start until it did."""
        for (name, step), item in self.ends.items():
            before = {"sample": "forward", "copy": "sample"}.get(name)
            if before and (earlier := self.ends.get((before, step))):
                yield Piece(name, max(0, item.start - earlier.end), 0, [])

    def wakes(self) -> Iterator[int]:
        """From the end of what the host waited for until it went on."""
        for wait, behind in pairwise(self.host):
            copy = self.ends.get(("copy", wait.step))
            if wait.name == "wait" and behind.name != "wait" and copy and self.was_blocked(wait):
                yield max(0, behind.start - copy.end)

    def piece(self, name: str, start: int, end: int, rows: Rows, busy: Sequence[Interval]) -> Piece:
        """A duration with what of it the other side worked as well."""
        return Piece(name, end - start, overlap(busy, start, end), rows)


def overlap(busy: Sequence[Interval], start: int, end: int) -> int:
    """Nanoseconds of ``busy``, which is sorted, between two moments."""
    first = max(0, bisect_right(busy, (start, start)) - 1)
    total = 0
    for left, right in busy[first:]:
        if left >= end:
            break
        total += max(0, min(right, end) - max(left, start))
    return total


# -- Measured durations by name, and their medians -------------------------------------------------

Pieces = dict[str, list[Piece]]


def by_name(pieces: Iterable[Piece]) -> Pieces:
    """Pieces sorted by their name."""
    found: Pieces = defaultdict(list)
    for piece in pieces:
        found[piece.name].append(piece)
    return found


def alone(pieces: Sequence[Piece], lost: int) -> list[int]:
    """What each would have taken alone."""
    return [max(0, piece.alone(lost)) for piece in pieces]


def middle(values: Sequence[int]) -> int:
    """The median in whole nanoseconds, 0 of nothing."""
    return round(median(values)) if values else 0


def some(costs: dict[str, int]) -> dict[str, int]:
    """Without what costs nothing."""
    return {name: cost for name, cost in costs.items() if cost}


# -- Least squares, trimmed of what a busy machine has disturbed -----------------------------------

OUTLIER = 4  # residuals beyond so many times their median are left out
TRIMMINGS = 3
ROUNDING = 1e-9  # relative residuals that are nobody's

Row = Sequence[int]  # one observation's features


def fit(rows: Sequence[Row], values: Sequence[int]) -> list[float]:
    """One coefficient for each feature, so that squares of relative residuals add up to least.

    Relative: a long prompt is as noisy as a short step, in per cent. A feature that others already
    explain gets 0.
    """
    import numpy as np

    weights = 1 / np.maximum(1.0, np.array(values, float))
    matrix = np.array(rows, float) * weights[:, None]
    sizes = np.linalg.norm(matrix, axis=0)
    matrix /= np.where(sizes, sizes, 1)  # so that what depends on others is told from what is small
    kept: list[int] = []
    for column in range(matrix.shape[1]):
        if np.linalg.matrix_rank(matrix[:, [*kept, column]]) > len(kept):
            kept.append(column)
    found = np.zeros(matrix.shape[1])
    found[kept] = np.linalg.lstsq(matrix[:, kept], weights * values, rcond=None)[0] / sizes[kept]
    return [float(value) for value in found]


def trimmed(rows: Sequence[Row], values: Sequence[int]) -> list[float]:
    """``fit``, without what a busy machine has disturbed: observations far from their fit."""
    kept = list(zip(rows, values, strict=True))
    found = fit(rows, values)
    for _ in range(TRIMMINGS):
        residuals = [abs(value - value_at(found, row)) / max(1, value) for row, value in kept]
        limit = max(ROUNDING, OUTLIER * median(residuals))
        near = [pair for pair, far in zip(kept, residuals, strict=True) if far <= limit]
        if len(near) == len(kept) or len(near) < len(found):
            break
        kept = near
        found = fit([row for row, _ in kept], [value for _, value in kept])
    return found


def not_negative(rows: Sequence[Row], values: Sequence[int], free: int = 0) -> list[float]:
    """``trimmed``, but a feature after the first ``free`` that would make things cheaper is 0."""
    if not rows:
        return []
    rows = [list(row) for row in rows]
    while True:
        found = trimmed(rows, values)
        worst = min(range(free, len(found)), key=found.__getitem__, default=-1)
        if worst < 0 or found[worst] >= 0:
            return found
        rows = [[0 if at == worst else value for at, value in enumerate(row)] for row in rows]


def value_at(coefficients: Sequence[float], row: Row) -> float:
    """What the fit says of one observation."""
    return sum(a * b for a, b in zip(coefficients, row, strict=True))


# -- What ops of the device cost when they run alone, by the rows and tokens of their steps --------

OFTEN = 3  # times that a number of tokens has to be seen for a knot of its own
NOTHING = (0.0,) * 3


def fit_device(runs: Sequence[Observed], pad_to: int, pace: Pace) -> MeasuredCost:
    """Costs of forward passes, sampling and copies."""
    pieces = by_name(piece for run in runs for piece in run.ops())
    passes, samples, lost = pieces["forward"], pieces["sample"], pace.device_lost
    knots, heights, (read, pairs, per_row) = fit_passes(passes, pad_to, lost)
    sample, per_sample = not_negative(
        [[1, len(piece.rows)] for piece in samples], alone(samples, lost), free=1
    )
    return MeasuredCost(
        forward_knots=tuple(zip(knots, heights, strict=True)),
        kv_read_ps=round(read * 1000),
        attention_ps=round(pairs * 1000),
        forward_per_row=round(per_row),
        sample=max(0, round(sample)),
        sample_per_row=round(per_sample),
        copy=middle(alone(pieces["copy"], lost)),
        pad_to=pad_to,
    )


def fit_passes(
    passes: Sequence[Piece], pad_to: int, lost: int
) -> tuple[list[int], list[int], list[float]]:
    """Numbers of tokens and what a pass over them costs; then attention (2) and each row.

    Rows of a decode are its tokens, so that noise may put too much on the one and too little on the
    other. More tokens must not be cheaper: where they are, rows cost nothing, or attention neither.
    """
    knots = knots_of([padded(piece, pad_to) for piece in passes])
    values, width = alone(passes, lost), len(knots)
    for kept in (3, 2, 0):
        rows = [
            [*bends(knots, padded(piece, pad_to)), *attention(piece)[:kept]] for piece in passes
        ]
        found = not_negative(rows, values, free=width)
        heights = [round(value_at(found[:width], bends(knots, at))) for at in knots]
        if heights == sorted(heights) and heights[0] >= 0:
            break
    return knots, list(accumulate(heights, max, initial=0))[1:], [*found[width:], *NOTHING][:3]


def padded(piece: Piece, pad_to: int) -> int:
    """New tokens, as many as the model computes."""
    return -(-piece.tokens // pad_to) * pad_to


def knots_of(counts: Sequence[int]) -> list[int]:
    """Where the line may bend: at numbers of tokens that were seen often, and at both ends."""
    often = {count for count, times in Counter(counts).items() if times >= OFTEN}
    return sorted(often | {min(counts), max(counts)}) if counts else []


def bends(knots: Sequence[int], at: int) -> list[int]:
    """Features of a line that bends at each knot but the last one: 1, x, and x beyond each."""
    return [1, at, *(max(0, at - knot) for knot in knots[1:-1])][: len(knots)]


def attention(piece: Piece) -> list[int]:
    """Tokens attended to, pairs of tokens, and rows."""
    attended = sum(start + length for start, length in piece.rows)
    pairs = sum(length * (2 * start + length + 1) // 2 for start, length in piece.rows)
    return [attended, pairs, len(piece.rows)]


# -- A cost profile from observed runs: what each phase and each op costs when it runs alone -------

ROUNDS = 3  # of taking off what both sides lose to each other, and fitting again
MOST_LOST = 900  # per mille
SamePass = tuple[int, tuple[tuple[int, int], ...]]  # added work, and the rows of the pass
Loss = tuple[float, int]  # the share that was lost, and of how many nanoseconds


def fit_cost(runs: Sequence[Observed], pad_to: int = 1) -> MeasuredCost:
    """The costs with which ``sim`` repeats these runs; serial ones must be among them.

    What a side loses beside the other is found in rounds: costs alone are fitted from durations
    less the loss, and the loss from what durations have beyond their costs.
    """
    serial = [run for run in runs if run.loop == "serial"]
    pace, cost = fit_pace(runs), MeasuredCost(pad_to=pad_to)
    for _ in range(ROUNDS):
        added = fit_added_work(serial, pace)
        loops = {
            loop: fit_host([run for run in runs if run.loop == loop], pace)
            for loop in dict.fromkeys(run.loop for run in runs)
        }
        cost = replace(fit_device(serial, pad_to, pace), loops=loops, added_work=added, pace=pace)
        pace = fit_lost(runs, cost)
    return replace(cost, pace=pace)


def fit_host(runs: Sequence[Observed], pace: Pace) -> HostCost:
    """One loop's phases: a constant, and what grows with rows and new tokens."""
    lost = pace.host_lost
    found: dict[str, list[float]] = {}
    for name, pieces in by_name(piece for run in runs for piece in own_work(run)).items():
        rows = [[1, len(piece.rows), piece.tokens] for piece in pieces]
        if name not in GROWING:
            rows = [[1, 0, 0] for _ in pieces]
        found[name] = not_negative(rows, alone(pieces, lost), free=1)
    gaps = by_name(piece for run in runs for piece in run.gaps())
    base, per_row, per_token = (
        {name: max(0, round(values[at])) for name, values in found.items()} for at in range(3)
    )
    after = {name: middle(alone(pieces, lost)) for name, pieces in gaps.items()}
    return HostCost(base, some(per_row), some(per_token), some(after))


def own_work(run: Observed) -> Iterable[Piece]:
    """The phases of a run that had something to do, but for those to which work was added."""
    for piece in run.phases():
        if piece.duration and not (run.work and piece.name in ADDED_TO):
            yield piece


def fit_added_work(runs: Sequence[Observed], pace: Pace) -> int:
    """What passes of 1000 nanoseconds of added work, by the runs with and without it."""
    plain: list[int] = []
    longer: dict[int, list[int]] = defaultdict(list)
    for run in runs:
        times = [p.alone(pace.host_lost) for p in run.phases() if p.name == ADDED_TO[0]]
        (longer[run.work] if run.work else plain).extend(times)
    found = [
        1000 * (middle(times) - middle(plain)) // (work // 2) for work, times in longer.items()
    ]
    return round(median(found)) if found else 1000


def fit_pace(runs: Sequence[Observed]) -> Pace:
    """How long ops take to begin, and the host to wake."""
    delays = by_name(piece for run in runs for piece in run.delays())
    start = {name: middle([piece.duration for piece in found]) for name, found in delays.items()}
    return Pace(start=some(start), wake=middle([wake for run in runs for wake in run.wakes()]))


def fit_lost(runs: Sequence[Observed], cost: MeasuredCost) -> Pace:
    """What each side loses beside the other, by what durations have beyond their costs alone.

    Costs alone are those of the serial loop, whose host does little beside the device: of the same
    pass in the same workload where there is one, since added work also leaves caches cold.
    """
    seen = serial_passes(runs, cost.pace)
    host: list[Loss] = []
    device: list[Loss] = []
    for run in runs:
        mine = cost.with_host_work(run.work).of_loop("serial")
        for piece in run.phases():
            if piece.name in ADDED_TO and run.work:
                host += loss(piece, mine.phase(piece.name, len(piece.rows), piece.tokens))
        for piece in run.ops():
            if piece.name == "forward":
                same = seen.get((run.work, tuple(piece.rows)))
                device += loss(piece, middle(same) if same else mine.forward_rows(piece.rows))
    return replace(cost.pace, host_lost=per_mille(host), device_lost=per_mille(device))


def serial_passes(runs: Iterable[Observed], pace: Pace) -> dict[SamePass, list[int]]:
    """What each forward pass took alone in the serial loop."""
    seen: dict[SamePass, list[int]] = defaultdict(list)
    for run in runs:
        if run.loop == "serial":
            for piece in run.ops():
                if piece.name == "forward":
                    alone_ns = piece.alone(pace.device_lost)
                    seen[run.work, tuple(piece.rows)].append(alone_ns)
    return seen


def loss(piece: Piece, expected: int) -> list[Loss]:
    """What was lost of each nanosecond beside the other side, and how many these were."""
    if not piece.beside:
        return []
    return [((piece.duration - expected) / piece.beside, piece.beside)]


def per_mille(losses: Sequence[Loss]) -> int:
    """The median over all nanoseconds that both sides worked, within bounds."""
    half = sum(beside for _, beside in losses) / 2
    for share, beside in sorted(losses):
        half -= beside
        if half <= 0:
            return min(MOST_LOST, max(0, round(1000 * share)))
    return 0


def observe(
    loop: str,
    device: str,
    model: Model,
    load: CalibrationLoad,
    cost: CostModel = NO_COST,
    config: SchedulerConfig | None = None,
) -> Observed:
    """Run a load through a loop and take its trace apart.

    Raises:
        KeyboardInterrupt: somebody cut the run short.
        RunStopped: it stopped with an error.
    """
    listener = Listener(cost.with_host_work(load.work))
    requests, config = load.make(model.vocab_size), config or load.config
    run = run_to_end(loop, device, model, requests, config, cast(CostModel, listener))
    return Observed(run, listener.heard, load.work)


def makespan(trace: Trace) -> int:
    """Nanoseconds from when the first request is taken in to the end."""
    first = min((item.start for item in trace.slices if item.name == "receive"), default=0)
    return trace.end - first


def stand_in(model: Model) -> Model:
    """For ``sim``: as many tokens and as long a context, and nothing is computed."""
    return cast(Model, LengthModel(model.vocab_size - 1, 1, model.context_len))


def predict(loop: str, model: Model, load: CalibrationLoad, cost: CostModel) -> Run:
    """The same load on ``sim``, with a model there in the place of the real one."""
    requests = load.make(model.vocab_size)
    return run_to_end(loop, "sim", model, requests, load.config, cost.with_host_work(load.work))


def fit_costs(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
    design: CalibrationDesign = USUAL,
) -> MeasuredCost:
    """Costs of steps, of the device once and of the host for every loop.

    ``cost`` is what steps of ``sim`` cost, should that be the device: then it comes back.
    """
    warm_up(device, model, design.config or design.serial[0].config)
    runs: list[Observed] = []
    for repetition in range(repetitions):
        report(f"repetition {repetition + 1} of {repetitions}")
        runs += observe_all(device, model, loops, cost, report, design, repetition)
    return fit_cost(runs, model.pad_to)


def observe_all(
    device: str,
    model: Model,
    loops: Sequence[str],
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
    design: CalibrationDesign = USUAL,
    turn: int = 0,
) -> list[Observed]:
    """Every workload of a calibration, once; which of the loops begins is a matter of the turn."""
    report("calibrating: serial")
    take = partial(observe, device=device, model=model, cost=cost, config=design.config)
    runs = [take("serial", load=load) for load in design.serial]
    for load in design.loops:  # loops in turn: what one takes is compared with what serial takes
        for loop in rotated(["serial", *loops], turn):
            report(f"calibrating: {loop}")
            runs.append(take(loop, load=load))
    return runs


def rotated(loops: Sequence[str], turn: int) -> list[str]:
    """Each loop once, another one first in each turn: the first pays for what is cold by then."""
    each = list(dict.fromkeys(loops))
    first = turn % len(each)
    return each[first:] + each[:first]


def check_model(model: Model) -> None:
    """Whether a model takes these workloads.

    Raises:
        ValueError: its context is too short.
    """
    if model.context_len < USUAL.context_len:
        raise ValueError(
            f"model {model.name!r} has a context of {model.context_len} tokens, but calibrating "
            f"takes {USUAL.context_len}."
        )


def check_real_time(device: str, command: str) -> None:
    """Whether a command can measure there.

    Raises:
        ValueError: the device is unknown, not to be had, or has a virtual clock.
    """
    opened = open_device(device)
    opened.close()
    if opened.clock == "virtual":
        raise ValueError(f"{command} measures real time, which --device {device} has none of.")
