"""What ops of the device cost when they run alone, by the rows and tokens of their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from ...devices.cost import MeasuredCost, Pace
from .least_squares import not_negative, value_at
from .observed import Observed, Piece
from .pieces import alone, by_name, middle

OFTEN = 3  # times that a number of tokens has to be seen for a knot of its own
NOTHING = (Fraction(0),) * 3


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
) -> tuple[list[int], list[int], list[Fraction]]:
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
