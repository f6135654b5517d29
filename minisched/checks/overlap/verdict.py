"""Does it really overlap? Whether the host launches a step before the one before it has ended.

An engine can have overlap enabled and still run serially, because some call of the host blocks
until the device is done (vllm-omni #4442). Three things tell: how many steps were launched ahead,
how often the device ran dry, and in which call the host was blocked when it did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from ...trace import Slice, Trace
from .course import in_time
from .dry_words import UNTOLD, dry_words
from .launches import Blocked, Launch, call_of, launches
from .overlap import (
    Interval,
    device_named,
    forward_lane,
    gaps,
    intersection,
    nobody_there,
    span,
    union,
)
from .waits import side_of

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: a single one says nothing about how a loop works


@dataclass(frozen=True)
class Verdict:
    """``word`` is overlapped, partly, serial or unknown; times in nanoseconds.

    It is about one device, where steps begin: ``lane``. ``ahead`` of ``pairs`` steps were launched
    before the one before had ended, and ``late`` are the other steps. ``dry`` are the spells in
    which the device had nothing queued, as far as launches are known; ``blocking`` says how many
    of them came after which call, the most frequent first. Spells in which nobody was there to be
    served, at any moment, are not among them but ``deserted``.
    """

    word: str
    lane: str
    pairs: int
    ahead: int
    late: tuple[int, ...]
    dry: tuple[Interval, ...]
    deserted: int
    dry_percent: float  # of the time from the device's first op to its last
    blocking: dict[str, int]
    sentence: str

    @property
    def ahead_percent(self) -> float:
        """The share of steps that were launched ahead."""
        return 100 * self.ahead / self.pairs if self.pairs else 0.0


def verdict(trace: Trace) -> Verdict:
    """The verdict on a trace, of this program or of a real engine."""
    lane = forward_lane(trace)
    ops, known = in_time(trace.on(lane)), launches(trace)
    steps = _steps(ops)
    absent = nobody_there(trace, side_of(lane))
    pairs = [
        (max(item.end for item in before), after[0])
        for before, after in pairwise(steps)
        if after[0].id in known and not _during(absent, before[-1].end, after[0].start)
    ]
    late = tuple(op.step for end, op in pairs if known[op.id].time > end)
    ended = _gaps_ended_by(ops, known)
    empty = [(gap, launch) for gap, launch in ended if launch.time > gap[0]]
    spells = [(gap, launch) for gap, launch in empty if not _during(absent, *gap)]
    dry = tuple(gap for gap, _ in spells)
    blocked = Blocked(trace)
    calls = Counter(_call(blocked, launch, gap[0]) for gap, launch in spells)
    by = Counter(launch.lane for _, launch in spells)
    launcher = next(iter(by.most_common(1)), ("", 0))[0]
    whole = span(union(ops))
    percent = 100 * sum(end - start for start, end in dry) / whole if whole else 0.0
    blocking, ahead = dict(calls.most_common()), len(pairs) - len(late)
    word, deserted = _word(len(pairs), ahead), len(empty) - len(spells)
    device = device_named(trace, lane)
    said = _unknown(len(pairs), bool(ops), bool(known)) or (
        f"{_ahead_words(word, device, len(pairs), ahead)}; "
        f"{dry_words(device, dry, percent, launcher, blocking, deserted, len(ended) - len(empty))}."
    )
    return Verdict(word, lane, len(pairs), ahead, late, dry, deserted, percent, blocking, said)


def _steps(ops: list[Slice]) -> list[list[Slice]]:
    """The ops of each step, in the order in which steps began."""
    steps: dict[int, list[Slice]] = {}
    for op in ops:
        if op.step:
            steps.setdefault(op.step, []).append(op)
    return list(steps.values())


def _gaps_ended_by(ops: list[Slice], known: dict[int, Launch]) -> list[tuple[Interval, Launch]]:
    """The gaps between ops, each with the launch of the op after it, where that is known."""
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = [(gap, known.get(first[gap[1]].id)) for gap in gaps(union(ops))]
    return [(gap, launch) for gap, launch in found if launch is not None]


def _during(absent: tuple[Interval, ...], start: int, end: int) -> bool:
    """Whether nobody was there at some moment between two."""
    return bool(intersection(absent, ((start, end),))) if start < end else False


def _call(blocked: Blocked, launch: Launch, since: int) -> str:
    item = blocked.before(launch, since)
    return call_of(item) if item else UNTOLD


def _word(pairs: int, ahead: int) -> str:
    if pairs < LEAST:
        return "unknown"
    percent = 100 * ahead / pairs
    return "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"


def _unknown(pairs: int, has_ops: bool, has_launches: bool) -> str:
    """Why nothing can be said; empty where something can."""
    if not has_ops:
        return "Unknown: nothing ran on a device in this trace."
    if not has_launches:
        return "Unknown: the trace does not say which call of the host launched what."
    if pairs < LEAST:
        return f"Unknown: the trace has fewer than {LEAST + 1} steps that could be told apart."
    return ""


def _ahead_words(word: str, device: str, pairs: int, ahead: int) -> str:
    verb = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}[word]
    where = "" if device == "the device" else f"on {device}, "
    share = f"{ahead} of {pairs} steps ({100 * ahead / pairs:.0f} %)"
    return f"{verb}: {where}{share} were launched before the one before had ended"
