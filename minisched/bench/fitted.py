"""A cost profile from observed runs: what each phase and each op costs when it runs alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import median

from ..devices.cost import ADDED_TO, Pace
from ..devices.measured_cost import HostCost, MeasuredCost
from .least_squares import not_negative, predict
from .observed import GROWING, Observed, Piece

ROUNDS = 3  # of taking off what both sides lose to each other, and fitting again
MOST_LOST = 900  # per mille
OFTEN = 3  # times that a number of tokens has to be seen for a knot of its own
Pieces = dict[str, list[Piece]]
Loss = tuple[Fraction, int]  # the share that was lost, and of how many nanoseconds


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


def fit_device(runs: Sequence[Observed], pad_to: int, pace: Pace) -> MeasuredCost:
    """Costs of forward passes, sampling and copies."""
    pieces = by_name(piece for run in runs for piece in run.ops())
    passes, samples, lost = pieces["forward"], pieces["sample"], pace.device_lost
    knots = knots_of([padded(piece, pad_to) for piece in passes])
    rows = [[*bends(knots, padded(piece, pad_to)), *attention(piece)] for piece in passes]
    found = not_negative(rows, alone(passes, lost), free=len(knots))
    read, pairs, per_row = found[len(knots) :]
    sample, per_sample = not_negative(
        [[1, len(piece.rows)] for piece in samples], alone(samples, lost), free=1
    )
    return MeasuredCost(
        forward_knots=tuple(
            (at, max(0, round(predict(found[: len(knots)], bends(knots, at))))) for at in knots
        ),
        kv_read_ps=round(read * 1000),
        attention_ps=round(pairs * 1000),
        forward_per_row=round(per_row),
        sample=max(0, round(sample)),
        sample_per_row=round(per_sample),
        copy=middle(alone(pieces["copy"], lost)),
        pad_to=pad_to,
    )


def fit_host(runs: Sequence[Observed], pace: Pace) -> HostCost:
    """One loop's phases: a constant, and what grows with rows and new tokens."""
    lost = pace.host_lost
    found: dict[str, list[Fraction]] = {}
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

    Costs alone are those of the serial loop, whose host does little beside the device.
    """
    host: list[Loss] = []
    device: list[Loss] = []
    for run in runs:
        mine = cost.with_host_work(run.work).of_loop("serial")
        for piece in run.phases():
            if piece.name in ADDED_TO and run.work:
                host += loss(piece, mine.phase(piece.name, len(piece.rows), piece.tokens))
        for piece in run.ops():
            if piece.name == "forward":
                device += loss(piece, mine.forward_rows(piece.rows))
    return replace(cost.pace, host_lost=per_mille(host), device_lost=per_mille(device))


def loss(piece: Piece, expected: int) -> list[Loss]:
    """What was lost of each nanosecond beside the other side, and how many these were."""
    if not piece.beside:
        return []
    return [(Fraction(piece.duration - expected, piece.beside), piece.beside)]


def per_mille(losses: Sequence[Loss]) -> int:
    """The median over all nanoseconds that both sides worked, within bounds."""
    half = sum(beside for _, beside in losses) / 2
    for share, beside in sorted(losses):
        half -= beside
        if half <= 0:
            return min(MOST_LOST, max(0, round(1000 * share)))
    return 0


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
