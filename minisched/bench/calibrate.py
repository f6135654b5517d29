"""Measures what steps cost on this machine: a few designed workloads, their traces, a fit.

Every run is taken apart into ``Piece``s: a phase of the host, what follows it unnamed, an op of the
device, a delay. All runs' pieces are one table, and each field of ``MeasuredCost`` is a median or
one line of least squares (``line``) over some of its rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, cast

from ..checks.overlap import Interval, intersection, length, union
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

# -- The workloads that costs are fitted to, and those that are predicted: requests alike ----------

MOST_TOKENS = 128  # of prompts in one step
LEAD = 500 * MILLISECOND  # before the first arrival: an engine takes time to be made


@dataclass(frozen=True)
class CalibrationLoad:
    """A workload by its figures: requests alike, ``every`` nanoseconds apart, or all at once.

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
        total = self.prompt + self.new
        return SchedulerConfig(
            max_running_requests=self.requests,
            kv_tokens=(total + 2) * self.requests + 1,
            context_len=total,
            chunked_prefill_size=MOST_TOKENS,
        )


WORK = 20 * MILLISECOND
SERIAL_LOADS = (  # as far as what is to be predicted, with the sizes that the line bends at
    CalibrationLoad(1, 32, 12), CalibrationLoad(2, 16, 8), CalibrationLoad(4, 32, 10),
    CalibrationLoad(8, 16, 8), CalibrationLoad(16, 4, 8), CalibrationLoad(1, 160, 3),
)  # fmt: skip
LOOP_LOADS = (  # through every loop, for its phases
    CalibrationLoad(4, 8, 12), CalibrationLoad(4, 8, 12, WORK), CalibrationLoad(8, 6, 6),
)  # fmt: skip
CONTEXT_LEN = max(load.config.context_len for load in (*SERIAL_LOADS, *LOOP_LOADS))

# -- A run, taken apart ----------------------------------------------------------------------------

Rows = list[tuple[int, int]]  # first new position and new positions of each row
PHASE, AFTER, OP, START, WAKE = "phase", "after", "op", "start", "wake"
ASLEEP = ("receive", "schedule")  # what comes behind a schedule that found nothing to do
STARTS_BEHIND = {"sample": "forward", "copy": "sample"}


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


@dataclass(frozen=True)
class Piece:
    """One measured duration of a run of ``loop``; times in nanoseconds.

    ``work`` was added to each step of the run; ``rows`` are those of its own step. For ``beside``
    of the duration, the other side of host and device worked as well.
    """

    loop: str
    work: int
    kind: str
    name: str
    duration: int
    beside: int = 0
    rows: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        """New tokens of its step."""
        return sum(count for _, count in self.rows)

    def alone(self, lost: int) -> int:
        """What it would have taken alone, if of 1000 nanoseconds beside the other ``lost`` go."""
        return max(0, self.duration - self.beside * lost // 1000)


def pieces_of(run: Run, heard: Sequence[Rows], work: int = 0) -> Iterator[Piece]:
    """The pieces of one run, of which ``heard`` are the rows of each forward pass."""
    trace, piece = run.trace, partial(Piece, run.loop, work)
    host = trace.on("host")
    ops = {(it.name, it.step): it for it in trace.slices if not is_host(it.lane)}
    passes = [item for item in trace.on("forward") if item.name == "forward"]
    rows = {item.step: tuple(each) for item, each in zip(passes, heard, strict=False)}
    device_busy = union(ops.values())
    names = dict(phase_names(host))

    def was_blocked(wait: Slice) -> bool:  # what the host waited for was still to come
        copy = ops.get(("copy", wait.step))
        return copy is not None and copy.end > wait.start

    def seen_end(item: Slice) -> int:  # of a launch on an idle device: when what it launched began
        first = ops.get(("forward", item.step))
        if names.get(item.id) != "launch" or not first or not item.start <= first.start < item.end:
            return item.end
        return item.end if within(device_busy, item.start, first.start) else first.start

    works = [item for item in trace.slices if is_host(item.lane) and item.name != "wait"]
    followed = list(unnamed_work(host, was_blocked))
    unnamed = [Slice(0, "host", "", phase.end, until, 0) for phase, until in followed]
    host_busy = union([*works, *unnamed])
    for item in works:
        beside = within(device_busy, item.start, seen_end(item))
        of = rows.get(item.step, ((0, 1),) * len(item.rids))
        name = names.get(item.id, item.name)
        yield piece(PHASE, name, seen_end(item) - item.start, beside, of)
    for phase, until in followed:
        start = seen_end(phase)
        yield piece(AFTER, phase.name, until - start, within(device_busy, start, until))
    for (name, step), op in ops.items():
        beside = within(host_busy, op.start, op.end)
        yield piece(OP, name, op.end - op.start, beside, rows.get(step, ()))
        if earlier := ops.get((STARTS_BEHIND.get(name, ""), step)):
            yield piece(START, name, max(0, op.start - earlier.end))
    for wait, behind in pairwise(host):
        if wait.name == "wait" != behind.name and was_blocked(wait):
            yield piece(WAKE, "", max(0, behind.start - ops["copy", wait.step].end))


def phase_names(host: Sequence[Slice]) -> Iterator[tuple[int, str]]:
    """What the cost model calls each phase, by the slice's id.

    The second launch of a step only samples; a prepare behind a launch only goes one step on.
    """
    launched: set[int] = set()
    before = ""
    for item in host:
        name = item.name
        if name == "launch" and item.step in launched:
            name = "launch sample"
        elif name == "prepare" and before == "launch":
            name = "advance step"
        if name == "launch":
            launched.add(item.step)
        yield item.id, name
        before = item.name


def unnamed_work(
    host: Sequence[Slice], was_blocked: Callable[[Slice], bool]
) -> Iterator[tuple[Slice, int]]:
    """Each phase, and until when the host worked behind it before it did something else."""
    for at, (phase, behind) in enumerate(pairwise(host)):
        if phase.name == "wait" or (phase.name == "schedule" and behind.name in ASLEEP):
            continue
        while behind.name == "wait" and not was_blocked(behind) and at + 2 < len(host):
            at += 1
            behind = host[at + 1]
        yield phase, max(behind.start, phase.end)


def within(busy: tuple[Interval, ...], start: int, end: int) -> int:
    """Nanoseconds of ``busy`` between two moments."""
    return length(intersection(busy, ((start, end),)))


# -- One line of least squares ---------------------------------------------------------------------

OUTLIER = 4  # residuals beyond so many times their median are left out
TRIMMINGS = 3
ROUNDING = 1e-9  # relative residuals that are nobody's


def line(features: Sequence[Sequence[float]], values: Sequence[int]) -> list[float]:
    """One coefficient for each feature, so that squares of relative residuals add up to least.

    Relative: a long prompt is as noisy as a short step, in per cent. What a busy machine has
    disturbed, far from the line, is left out. A feature gets 0 that others already explain, or that
    would make things cheaper.
    """
    import numpy as np

    found = np.zeros(len(features[0]) if features else 0)
    if not values:
        return list(found)
    target = np.array(values, float)
    weights = 1 / np.maximum(1.0, target)
    matrix, target = np.array(features, float) * weights[:, None], target * weights
    sizes = np.linalg.norm(matrix, axis=0)
    matrix /= np.where(sizes, sizes, 1)  # so that what depends on others is told from what is small
    columns: list[int] = []
    for column in range(len(found)):
        if np.linalg.matrix_rank(matrix[:, [*columns, column]]) > len(columns):
            columns.append(column)
    while columns:
        kept = np.full(len(target), True)
        for _ in range(1 + TRIMMINGS):
            solved = np.linalg.lstsq(matrix[kept][:, columns], target[kept], rcond=None)[0]
            far = np.abs(target - matrix[:, columns] @ solved)
            near = kept & (far <= max(ROUNDING, OUTLIER * float(np.median(far[kept]))))
            if near.sum() in (kept.sum(), *range(len(columns))):
                break
            kept = near
        if solved.min() >= 0:
            found[columns] = solved / sizes[columns]
            break
        columns.pop(int(solved.argmin()))
    return [float(value) for value in found]


def middle(values: Sequence[int]) -> int:
    """The median in whole nanoseconds, 0 of nothing."""
    return round(median(values)) if values else 0


# -- A cost profile from the table: what each phase and each op costs when it runs alone -----------

GROWING = ("receive", "prepare", "advance step", "launch", "launch sample", "process", "fill",
           "postprocess")  # fmt: skip
OFTEN = 3  # times that a number of tokens has to be seen for the line of the forward pass to bend
ROUNDS = 3  # of taking off what both sides lose to each other, and fitting again
MOST_LOST = 900  # per mille


def fit_cost(table: Sequence[Piece], pad_to: int = 1) -> MeasuredCost:
    """The costs with which ``sim`` repeats these runs; serial ones must be among them.

    What a side loses beside the other is found in rounds: costs alone are fitted from durations
    less the loss, and the loss from what durations have beyond their costs.
    """
    start = by_name(piece for piece in table if piece.kind == START)
    pace = Pace(
        start=some({name: middle([p.duration for p in of]) for name, of in start.items()}),
        wake=middle([piece.duration for piece in table if piece.kind == WAKE]),
    )
    serial = [piece for piece in table if piece.loop == "serial"]
    cost = MeasuredCost(pad_to=pad_to)
    for _ in range(ROUNDS):
        cost = replace(
            fit_device([piece for piece in serial if piece.kind == OP], pad_to, pace.device_lost),
            loops={
                loop: fit_host([p for p in table if p.loop == loop], pace.host_lost)
                for loop in dict.fromkeys(piece.loop for piece in table)
            },
            added_work=fit_added_work(serial, pace.host_lost),
            pace=pace,
        )
        pace = fit_lost(table, cost)
    return replace(cost, pace=pace)


def by_name(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    """Pieces sorted by their name."""
    found: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        found[piece.name].append(piece)
    return found


def some(costs: dict[str, int]) -> dict[str, int]:
    """Without what costs nothing."""
    return {name: cost for name, cost in costs.items() if cost}


def fit_device(ops: Sequence[Piece], pad_to: int, lost: int) -> MeasuredCost:
    """Costs of forward passes, sampling and copies.

    A pass costs what its tokens say, a line that bends at numbers of tokens seen often and never
    falls, and on top what it attends to, and its rows.
    """
    named = by_name(ops)
    passes, samples = named["forward"], named["sample"]
    counts = Counter(-(-piece.tokens // pad_to) * pad_to for piece in passes)
    often = {count for count, times in counts.items() if times >= OFTEN}
    knots = sorted(often | {min(counts), max(counts)}) if counts else []
    features = [
        [1.0, *ramps(knots, -(-piece.tokens // pad_to) * pad_to), *attention(piece)]
        for piece in passes
    ]
    found = line(features, [piece.alone(lost) for piece in passes])
    read, pairs, per_row = found[len(knots) :] or (0, 0, 0)
    heights = map(round, accumulate(found[: len(knots)]))
    sample, per_sample = line(
        [[1, len(piece.rows)] for piece in samples], [piece.alone(lost) for piece in samples]
    ) or (0, 0)
    return MeasuredCost(
        forward_knots=tuple(zip(knots, heights, strict=True)),
        kv_read_ps=round(read * 1000),
        attention_ps=round(pairs * 1000),
        forward_per_row=round(per_row),
        sample=round(sample),
        sample_per_row=round(per_sample),
        copy=middle([piece.alone(lost) for piece in named["copy"]]),
        pad_to=pad_to,
    )


def ramps(knots: Sequence[int], at: int) -> list[float]:
    """How far ``at`` is from each knot to the next one, from 0 to 1."""
    return [min(1.0, max(0.0, (at - a) / (b - a))) for a, b in pairwise(knots)]


def attention(piece: Piece) -> list[int]:
    """Tokens attended to, pairs of tokens, and rows."""
    attended = sum(start + count for start, count in piece.rows)
    pairs = sum(count * (2 * start + count + 1) // 2 for start, count in piece.rows)
    return [attended, pairs, len(piece.rows)]


def fit_host(pieces: Sequence[Piece], lost: int) -> HostCost:
    """One loop's phases: a constant, and what grows with rows and new tokens; and what follows."""
    base, per_row, per_token = dict[str, int](), dict[str, int](), dict[str, int]()
    own = (p for p in pieces if p.kind == PHASE and p.duration and not has_added_work(p))
    for name, of in by_name(own).items():
        grows = name in GROWING
        features = [[1, len(p.rows) * grows, p.tokens * grows] for p in of]
        found = line(features, [piece.alone(lost) for piece in of])
        base[name], per_row[name], per_token[name] = map(round, found)
    behind = by_name(piece for piece in pieces if piece.kind == AFTER)
    after = {name: middle([piece.alone(lost) for piece in of]) for name, of in behind.items()}
    return HostCost(base, some(per_row), some(per_token), some(after))


def has_added_work(piece: Piece) -> bool:
    """Whether it is a phase of the host that took on some of the added work."""
    return piece.kind == PHASE and piece.work > 0 and piece.name in ADDED_TO


def fit_added_work(serial: Sequence[Piece], lost: int) -> int:
    """What passes of 1000 nanoseconds of added work, by the runs with and without it."""
    times: dict[int, list[int]] = defaultdict(list)
    for piece in serial:
        if piece.kind == PHASE and piece.name == ADDED_TO[0]:
            times[piece.work].append(piece.alone(lost))
    plain = middle(times.pop(0, []))
    found = [1000 * (middle(of) - plain) // (work // 2) for work, of in times.items()]
    return round(median(found)) if found else 1000


def fit_lost(table: Sequence[Piece], cost: MeasuredCost) -> Pace:
    """What each side loses beside the other, by what durations have beyond their costs alone.

    Costs alone are those of the serial loop, whose host does little beside the device: of the same
    pass in the same workload where there is one, since added work also leaves caches cold.
    """
    serial: dict[Any, list[int]] = defaultdict(list)
    passes = [piece for piece in table if piece.kind == OP and piece.name == "forward"]
    for piece in passes:
        if piece.loop == "serial":
            serial[piece.work, piece.rows].append(piece.alone(cost.pace.device_lost))
    device = []
    for piece in passes:
        same = serial.get((piece.work, piece.rows))
        device.append((piece, middle(same) if same else cost.forward_rows(piece.rows)))
    host = []
    for piece in filter(has_added_work, table):
        mine = cost.with_host_work(piece.work).of_loop("serial")
        host.append((piece, mine.phase(piece.name, len(piece.rows), piece.tokens)))
    return replace(cost.pace, host_lost=per_mille(host), device_lost=per_mille(device))


def per_mille(expected: Sequence[tuple[Piece, int]]) -> int:
    """What was lost of 1000 nanoseconds beside the other side: the median over all of these."""
    shares = sorted(
        ((piece.duration - alone) / piece.beside, piece.beside)
        for piece, alone in expected
        if piece.beside
    )
    half = sum(beside for _, beside in shares) / 2
    for share, beside in shares:
        half -= beside
        if half <= 0:
            return min(MOST_LOST, max(0, round(1000 * share)))
    return 0


# -- Runs that are measured, and runs that are foreseen --------------------------------------------


def observe(
    loop: str, device: str, model: Model, load: CalibrationLoad, cost: CostModel = NO_COST
) -> tuple[Trace, list[Piece]]:
    """Run a load through a loop; its trace, and that taken apart.

    Raises:
        KeyboardInterrupt: somebody cut the run short.
        RunStopped: it stopped with an error.
    """
    listener = Listener(cost.with_host_work(load.work))
    requests, told = load.make(model.vocab_size), cast(CostModel, listener)
    run = run_to_end(loop, device, model, requests, load.config, told)
    return run.trace, list(pieces_of(run, listener.heard, load.work))


def predict(loop: str, model: Model, load: CalibrationLoad, cost: CostModel) -> Trace:
    """The same load on ``sim``, where what the tokens are makes no odds."""
    lengths = cast(Model, LengthModel(model.vocab_size - 1, 1, model.context_len))
    requests = load.make(lengths.vocab_size)
    told = cost.with_host_work(load.work)
    return run_to_end(loop, "sim", lengths, requests, load.config, told).trace


def makespan(trace: Trace) -> int:
    """Nanoseconds from when the first request is taken in to the end."""
    first = min((item.start for item in trace.slices if item.name == "receive"), default=0)
    return trace.end - first


def fit_costs(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
) -> MeasuredCost:
    """Costs of steps, of the device once and of the host for every loop.

    ``cost`` is what steps of ``sim`` cost, should that be the device: then it comes back.
    """
    settle(device, model, loops)
    table: list[Piece] = []
    for turn in range(repetitions):
        report(f"repetition {turn + 1} of {repetitions}")
        table += observe_all(device, model, loops, cost, report, turn)
    return fit_cost(table, model.pad_to)


def settle(device: str, model: Model, loops: Sequence[str]) -> None:
    """What is done once is done before anything counts: kernels are chosen, graphs captured."""
    warm_up(device, model, SERIAL_LOADS[0].config)
    if device == "cuda":
        observe_all(device, model, loops)


def observe_all(
    device: str,
    model: Model,
    loops: Sequence[str],
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
    turn: int = 0,
) -> list[Piece]:
    """Every workload of a calibration, once; which of the loops begins is a matter of the turn."""
    report("calibrating: serial")
    found: list[Piece] = []
    for load in SERIAL_LOADS:
        found += observe("serial", device, model, load, cost)[1]
    for load in LOOP_LOADS:  # loops in turn: what one takes is compared with what serial takes
        for loop in rotated(["serial", *loops], turn):
            report(f"calibrating: {loop}")
            found += observe(loop, device, model, load, cost)[1]
    return found


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
    if model.context_len < CONTEXT_LEN:
        raise ValueError(
            f"model {model.name!r} has a context of {model.context_len} tokens, but calibrating "
            f"takes {CONTEXT_LEN}."
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
