"""How long clients waited, over a run of any length: no request is kept when it has ended."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from ..core import Request
from ..engine.metrics import Metrics, Percentiles, RequestMetrics, percentiles

EXACT = 1 << 18  # values that are kept as they are: two megabytes
DIGITS = 4  # of a value beyond that: percentiles are wrong by at most one in two thousand


class Sample:
    """Times of which percentiles are wanted; exact up to ``EXACT`` of them, then to ``DIGITS``."""

    def __init__(self) -> None:
        self._exact = array("q")
        self._counted: Counter[int] = Counter()

    def extend(self, values: Iterable[int]) -> None:
        """Add some."""
        if not self._counted:
            self._exact.extend(values)
            if len(self._exact) <= EXACT:
                return
            values, self._exact = self._exact, array("q")
        self._counted.update(map(rounded, values))

    @property
    def percentiles(self) -> Percentiles | None:
        """Nearest rank; None of nothing."""
        return percentiles_of(self._counted) if self._counted else percentiles(self._exact)


def percentiles_of(counted: Counter[int]) -> Percentiles:
    """The percentiles of values that were counted, at least one."""
    ordered = sorted(counted)
    ranks = list(accumulate(counted[value] for value in ordered))
    wanted = (-(-ranks[-1] * percent // 100) for percent in (50, 90, 99))
    return Percentiles(*(ordered[bisect_left(ranks, rank)] for rank in wanted))


def rounded(value: int) -> int:
    """A time to its first ``DIGITS`` digits."""
    unit: int = 10 ** max(0, len(str(value)) - DIGITS)
    return (value + unit // 2) // unit * unit


@dataclass
class FlatMetrics(Metrics):
    """The figures of ``Metrics`` from sums and samples; ``ended`` stays empty."""

    ttfts: Sample = field(default_factory=Sample)
    itls: Sample = field(default_factory=Sample)
    queues: Sample = field(default_factory=Sample)
    retracted: int = 0
    gone_well: int = 0

    def _end(self, req: Request, metrics: RequestMetrics, now: int) -> None:
        super()._end(req, metrics, now)
        self.gone_well += super().num_finished
        self.retracted += super().num_retractions
        self.ended.clear()
        self.itls.extend(metrics.itls)
        self.ttfts.extend(() if metrics.ttft_ns is None else (metrics.ttft_ns,))
        self.queues.extend(() if metrics.queue_ns is None else (metrics.queue_ns,))

    @property
    def num_finished(self) -> int:
        """Requests that got all their tokens."""
        return self.gone_well

    @property
    def num_retractions(self) -> int:
        """How often requests lost their memory."""
        return self.retracted

    @property
    def ttft(self) -> Percentiles | None:
        """Time to first token."""
        return self.ttfts.percentiles

    @property
    def itl(self) -> Percentiles | None:
        """Inter-token latency."""
        return self.itls.percentiles

    @property
    def queue(self) -> Percentiles | None:
        """Time to the first batch."""
        return self.queues.percentiles
