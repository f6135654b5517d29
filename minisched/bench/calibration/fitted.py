"""A cost profile from observed runs: what each phase and each op costs when it runs alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import median

from ...devices.cost import ADDED_TO, HostCost, MeasuredCost, Pace
from .fitted_device import fit_device
from .least_squares import not_negative
from .observed import GROWING, Observed, Piece
from .pieces import alone, by_name, middle, some

ROUNDS = 3  # of taking off what both sides lose to each other, and fitting again
MOST_LOST = 900  # per mille
SamePass = tuple[int, tuple[tuple[int, int], ...]]  # added work, and the rows of the pass
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
    return [(Fraction(piece.duration - expected, piece.beside), piece.beside)]


def per_mille(losses: Sequence[Loss]) -> int:
    """The median over all nanoseconds that both sides worked, within bounds."""
    half = sum(beside for _, beside in losses) / 2
    for share, beside in sorted(losses):
        half -= beside
        if half <= 0:
            return min(MOST_LOST, max(0, round(1000 * share)))
    return 0
