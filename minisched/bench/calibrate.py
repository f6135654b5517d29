"""Measures what steps cost on this machine: a few designed workloads, their traces, a fit.

Every run is taken apart into ``Piece``s: a phase of the host, what follows it unnamed, an op of the
device, a delay. All runs' pieces are one table, and each field of ``MachineCost`` is a median or
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

from ..checks.overlap import union, within
from ..core import Request, SamplingParams
from ..devices.cost import ADDED_TO, MILLISECOND, NO_COST, CostModel, Pace
from ..loops.run import Run, run_to_end, warm_up
from ..models.base import Model
from ..replay.profiles import HostCost, MachineCost
from ..scheduler import SchedulerConfig
from ..trace import Slice, Trace
from ..trace.events import is_host

# -- The workloads that costs are fitted to: requests alike ----------------------------------------

MOST_TOKENS = 128  # of prompts in one step
LEAD = 500 * MILLISECOND  # before the first arrival: an engine takes time to be made


@dataclass(frozen=True)
class CalibrationLoad:
    """A workload by its figures: requests alike, ``every`` nanoseconds apart, or all together.

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
        """The settings with room for all of them at the same time."""
        total = self.prompt + self.new
        return SchedulerConfig(
            max_running_requests=self.requests,
            kv_tokens=(total + 2) * self.requests + 1,
            context_len=total,
            chunked_prefill_size=MOST_TOKENS,
        )


WORK = 20 * MILLISECOND
SERIAL_LOADS = (  # they reach the sizes to predict, and have those at which the line bends
    CalibrationLoad(1, 32, 12), CalibrationLoad(2, 16, 8), CalibrationLoad(4, 32, 10),
    CalibrationLoad(8, 16, 8), CalibrationLoad(16, 4, 8), CalibrationLoad(1, 160, 3),
)  # fmt: skip
LOOP_LOADS = (  # through every loop, for its phases
    CalibrationLoad(4, 8, 12), CalibrationLoad(4, 8, 12, WORK), CalibrationLoad(8, 6, 6),
)  # fmt: skip
CONTEXT_LEN = max(load.config.context_len for load in (*SERIAL_LOADS, *LOOP_LOADS))

# -- A run, taken apart ----------------------------------------------------------------------------

Rows = tuple[tuple[int, int], ...]  # first new position and new positions of each row
PHASE, AFTER, OP, START, WAKE = "phase", "after", "op", "start", "wake"
STARTS_BEHIND = {"sample": "forward", "copy": "sample"}
ASLEEP = ("receive", "schedule")  # the phases after a schedule that found nothing to do


class Listener:
    """One loop's cost model that also notes the rows of each forward pass: no trace has them.

    Steps are launched in the order in which their forward passes run.
    """

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.heard: list[Rows] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cost, name)

    def of_loop(self, loop: str) -> Listener:
        """The same: it is one loop's."""
        return self

    def forward_rows(self, rows: Iterable[tuple[int, int]]) -> int:
        """The cost of a forward pass, which is noted."""
        self.heard.append(tuple(rows))
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
    rows: Rows = ()

    @property
    def tokens(self) -> int:
        """New tokens of its step."""
        return sum(count for _, count in self.rows)

    @property
    def what(self) -> tuple[object, ...]:
        """The work itself, without the loop that did it."""
        return self.work, self.kind, self.name, self.rows

    @property
    def has_added_work(self) -> bool:
        """It is a phase of the host that took on some of the added work."""
        return self.kind == PHASE and self.work > 0 and self.name in ADDED_TO

    def alone(self, pace: Pace) -> Piece:
        """The same, had the other side not worked meanwhile."""
        lost = pace.device_lost if self.kind == OP else pace.host_lost
        return replace(self, duration=max(0, self.duration - self.beside * lost // 1000))


def pieces_of(run: Run, heard: Sequence[Rows], work: int = 0) -> Iterator[Piece]:
    """Yield the pieces of one run; ``heard`` are the rows of each forward pass."""
    trace, piece = run.trace, partial(Piece, run.loop, work)
    ops = {(it.name, it.step): it for it in trace.slices if not is_host(it.lane)}
    passes = (item for item in trace.on("forward") if item.name == "forward")
    rows = {item.step: each for item, each in zip(passes, heard, strict=False)}

    def was_over(wait: Slice) -> bool:  # before the host began to wait for it
        """Return whether the copy that a wait is for had ended before the wait began."""
        copy = ops.get(("copy", wait.step))
        return copy is None or copy.end <= wait.start

    # The host's own thread: the cost model's name of each phase, and the time until which the host
    # worked on after it, before its next phase.
    names: dict[int, str] = {}
    until: dict[int, int] = {}
    launched: dict[int, int] = {}  # the first launch of each step; a second one only samples
    host = [item for item in trace.on("host") if item.name != "wait" or not was_over(item)]
    for before, item in pairwise(host):
        if item.name == "launch" and launched.setdefault(item.step, item.id) != item.id:
            names[item.id] = "launch sample"
        elif item.name == "prepare" and before.name == "launch":
            names[item.id] = "advance step"
        if before.name == "wait":
            if item.name != "wait":
                yield piece(WAKE, "", max(0, item.start - ops["copy", before.step].end))
        elif before.name != "schedule" or item.name not in ASLEEP:
            until[before.id] = max(item.start, before.end)

    works = [item for item in trace.slices if is_host(item.lane) and item.name != "wait"]
    host_busy = union(replace(item, end=until.get(item.id, item.end)) for item in works)
    device_busy = union(ops.values())

    for item in works:
        name, end = names.get(item.id, item.name), item.end
        forward = ops.get(("forward", item.step))
        if forward and name == "launch" and item.id in until:
            is_meanwhile = item.start <= forward.start < end
            if is_meanwhile and not within(device_busy, item.start, forward.start):
                end = forward.start  # the device was idle, and had it by then
        of = rows.get(item.step, ((0, 1),) * len(item.rids))
        yield piece(PHASE, name, end - item.start, within(device_busy, item.start, end), of)
        if later := until.get(item.id):
            yield piece(AFTER, item.name, later - end, within(device_busy, end, later))
    for (name, step), op in ops.items():
        beside = within(host_busy, op.start, op.end)
        yield piece(OP, name, op.end - op.start, beside, rows.get(step, ()))
        if earlier := ops.get((STARTS_BEHIND.get(name, ""), step)):
            yield piece(START, name, max(0, op.start - earlier.end))


# -- Medians, and one line of least squares --------------------------------------------------------

OUTLIER = 4  # residuals beyond this many times their median are left out
TRIMMINGS = 3
ROUNDING = 1e-9  # relative residuals below it are rounding errors


def by_name(pieces: Iterable[Piece], kind: str) -> dict[str, list[Piece]]:
    """Those of one kind, sorted by their name."""
    found: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.kind == kind:
            found[piece.name].append(piece)
    return found


def middle(pieces: Iterable[Piece]) -> int:
    """The median duration in whole nanoseconds, 0 of nothing."""
    durations = [piece.duration for piece in pieces]
    return round(median(durations)) if durations else 0


def middles(pieces: Iterable[Piece], kind: str) -> dict[str, int]:
    """The medians of one kind by name, without what takes no time."""
    found = {name: middle(of) for name, of in by_name(pieces, kind).items()}
    return {name: cost for name, cost in found.items() if cost}


def line(pieces: Sequence[Piece], features: Callable[[Piece], Sequence[float]]) -> list[int]:
    """Fit one coefficient for each feature: least squares of relative residuals.

    Relative: a long prompt is as noisy as a short step, in per cent. Outliers, which a busy machine
    has disturbed, are left out. A feature that others already explain gets 0, and so does one that
    would make a step cheaper.
    """
    import numpy as np

    target = np.array([piece.duration for piece in pieces], float)
    weights = 1 / np.maximum(1.0, target)
    matrix = np.array([features(piece) for piece in pieces], float) * weights[:, None]
    target *= weights
    sizes = np.linalg.norm(matrix, axis=0)
    matrix /= np.where(sizes, sizes, 1)  # dependent columns must differ from small ones
    found = np.zeros(len(sizes))
    columns: list[int] = []
    for column in range(len(sizes)):
        if np.linalg.matrix_rank(matrix[:, [*columns, column]]) > len(columns):
            columns.append(column)
    while columns:
        kept = np.full(len(target), True)
        for _ in range(1 + TRIMMINGS):
            solved = np.linalg.lstsq(matrix[kept][:, columns], target[kept], rcond=None)[0]
            far = np.abs(target - matrix[:, columns] @ solved)
            near = kept & (far <= max(ROUNDING, OUTLIER * float(np.median(far[kept]))))
            if near.sum() < len(columns):
                break
            kept = near
        if solved.min() >= 0:
            found[columns] = solved / sizes[columns]
            break
        columns.pop(int(solved.argmin()))
    return [round(value) for value in found.tolist()]


# -- A cost profile from the table: what each phase and each op costs when it runs alone -----------

GROWING = ("receive", "prepare", "advance step", "launch", "launch sample", "process", "fill",
           "postprocess")  # fmt: skip
OFTEN = 3  # times that a number of tokens has to be seen for the line of the forward pass to bend
ROUNDS = 3  # of taking off what both sides lose to each other, and seeing what is lost then
MOST_LOST = 900  # per mille


def fit_cost(table: Sequence[Piece], pad_to: int = 1) -> MachineCost:
    """The costs with which ``sim`` repeats these runs; serial ones must be among them."""
    pace = Pace(start=middles(table, START), wake=middles(table, WAKE).get("", 0))
    worked = [piece for piece in table if piece.has_added_work]
    passes = by_name(table, OP)["forward"]
    for _ in range(ROUNDS):
        serial = [piece.alone(pace) for piece in table if piece.loop == "serial"]
        host_lost, device_lost = per_mille(worked, serial), per_mille(passes, serial)
        pace = replace(pace, host_lost=host_lost, device_lost=device_lost)
    alone = [piece.alone(pace) for piece in table]
    serial = [piece for piece in alone if piece.loop == "serial"]
    loops = {
        loop: fit_host([piece for piece in alone if piece.loop == loop])
        for loop in dict.fromkeys(piece.loop for piece in table)
    }
    added_work = fit_added_work(by_name(serial, PHASE)[ADDED_TO[0]])
    return replace(fit_device(serial, pad_to), loops=loops, added_work=added_work, pace=pace)


def per_mille(pieces: Iterable[Piece], serial: Iterable[Piece]) -> int:
    """Return the nanoseconds lost of 1000 while the other side works: the median over ``pieces``.

    The serial loop gives the time of a piece alone, because its host does little while the device
    works. Both have the same workload, since added work also leaves caches cold.
    """
    alone: dict[Any, list[Piece]] = defaultdict(list)
    for piece in serial:
        alone[piece.what].append(piece)
    shares = sorted(
        ((piece.duration - middle(alone[piece.what])) / piece.beside, piece.beside)
        for piece in pieces
        if piece.beside and piece.what in alone
    )
    half = sum(beside for _, beside in shares) / 2
    for share, beside in shares:
        half -= beside
        if half <= 0:
            return min(MOST_LOST, max(0, round(1000 * share)))
    return 0


def fit_device(serial: Sequence[Piece], pad_to: int) -> MachineCost:
    """Costs of forward passes, sampling and copies.

    The cost of a pass grows with its tokens along a line that never falls and bends at numbers of
    tokens seen often. The KV that it attends to and its rows are added.
    """
    ops = by_name(serial, OP)

    def padded(piece: Piece) -> int:
        """Return the tokens of a piece, rounded up to the padding."""
        return -(-piece.tokens // pad_to) * pad_to

    counts = Counter(map(padded, ops["forward"]))
    often = {count for count, times in counts.items() if times >= OFTEN}
    knots = sorted(often | {min(counts), max(counts)})

    def features(piece: Piece) -> list[float]:
        """1; how far it is from each knot to the next one, 0 to 1; thousands attended to; rows."""
        at = padded(piece)
        ramps = [min(1.0, max(0.0, (at - a) / (b - a))) for a, b in pairwise(knots)]
        attended = sum(start + count for start, count in piece.rows)
        pairs = sum(count * (2 * start + count + 1) // 2 for start, count in piece.rows)
        return [1, *ramps, attended / 1000, pairs / 1000, len(piece.rows)]

    *rises, kv_read_ps, attention_ps, per_row = line(ops["forward"], features)
    sample, per_sample = line(ops["sample"], lambda piece: [1, len(piece.rows)])
    return MachineCost(
        forward_knots=tuple(zip(knots, accumulate(rises), strict=True)),
        kv_read_ps=kv_read_ps,
        attention_ps=attention_ps,
        forward_per_row=per_row,
        sample=sample,
        sample_per_row=per_sample,
        copy=middle(ops["copy"]),
        pad_to=pad_to,
    )


def fit_host(pieces: Sequence[Piece]) -> HostCost:
    """One loop's phases: a constant, and what grows with rows and new tokens; and what follows."""
    base, per_row, per_token = dict[str, int](), dict[str, int](), dict[str, int]()
    own = [piece for piece in pieces if piece.duration and not piece.has_added_work]
    for name, of in by_name(own, PHASE).items():
        if name in GROWING:
            base[name], per_row[name], per_token[name] = line(
                of, lambda piece: [1, len(piece.rows), piece.tokens]
            )
        else:
            (base[name],) = line(of, lambda piece: [1])
    return HostCost(base, per_row, per_token, middles(pieces, AFTER))


def fit_added_work(phases: Sequence[Piece]) -> int:
    """Return the time of 1000 ns of added work: a phase with half of it, less one without."""
    with_work = [piece for piece in phases if piece.work]
    if not with_work:
        return 1000
    plain = middle(piece for piece in phases if not piece.work)
    return round(median(1000 * (it.duration - plain) // (it.work // 2) for it in with_work))


# -- Runs that are measured ------------------------------------------------------------------------


def observe(
    loop: str, device: str, model: Model, load: CalibrationLoad, cost: CostModel = NO_COST
) -> tuple[Trace, list[Piece]]:
    """Run a load through a loop; return its trace, and the trace's pieces.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the run.
        RunStopped: it stopped with an error.
    """
    listener = Listener(cost.with_host_work(load.work).of_loop(loop))
    requests, told = load.make(model.vocab_size), cast(CostModel, listener)
    run = run_to_end(loop, device, model, requests, load.config, told)
    return run.trace, list(pieces_of(run, listener.heard, load.work))


def fit_costs(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
) -> MachineCost:
    """Measure the costs of steps: of the device once, and of the host for every loop.

    ``cost`` is the cost model of ``sim``, if that is the device; the fit then returns it.

    Raises:
        ValueError: the model's context is too short.
    """
    settle(device, model, loops)
    table: list[Piece] = []
    for turn in range(repetitions):
        report(f"repetition {turn + 1} of {repetitions}")
        table += observe_all(device, model, loops, turn, cost, report)
    return fit_cost(table, model.pad_to)


def settle(device: str, model: Model, loops: Sequence[str]) -> None:
    """Do before any measurement what is done once: choose kernels, capture graphs.

    Raises:
        ValueError: the model's context is too short.
    """
    if model.context_len < CONTEXT_LEN:
        raise ValueError(
            f"model {model.name!r} has a context of {model.context_len} tokens, but calibrating "
            f"takes {CONTEXT_LEN}."
        )
    warm_up(device, model, SERIAL_LOADS[0].config)
    if device == "cuda":
        observe_all(device, model, loops)


def observe_all(
    device: str,
    model: Model,
    loops: Sequence[str],
    turn: int = 0,
    cost: CostModel = NO_COST,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Piece]:
    """Run every workload of a calibration once; the turn decides which loop begins."""
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
    """Return each loop once, another one first in each turn: the first pays for cold caches."""
    each = list(dict.fromkeys(loops))
    first = turn % len(each)
    return each[first:] + each[:first]
