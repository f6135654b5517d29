"""Does it really overlap? Whether the host launches a step before the one before it has ended.

An engine can have overlap enabled and still run serially, because some call of the host blocks
until the device is done (vllm-omni #4442). Three things tell: how many steps were launched ahead,
how often the device ran dry, and in which call the host was blocked when it did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ...trace import Slice, Trace
from .bubble_words import milliseconds
from .course import in_time
from .launches import Blocked, Launch, call_of, launches
from .overlap import Interval, forward_lane, gaps, intersection, union
from .waits import nobody_there, side_of

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: a single one says nothing about how a loop works
UNTOLD = "no blocking call"


@dataclass(frozen=True)
class Verdict:
    """``word`` is overlapped, partly, serial or unknown; times in nanoseconds.

    ``ahead`` of ``pairs`` steps were launched before the one before had ended. ``dry`` are the
    spells in which the device had nothing queued, as far as launches are known; ``blocking`` says
    how many of them came after which call, the most frequent first.
    """

    word: str
    pairs: int
    ahead: int
    dry: tuple[tuple[int, int], ...]
    dry_percent: float  # of the time from the device's first op to its last
    blocking: dict[str, int]
    sentence: str

    @property
    def ahead_percent(self) -> float:
        """The share of steps that were launched ahead."""
        return 100 * self.ahead / self.pairs if self.pairs else 0.0


def verdict(trace: Trace) -> Verdict:
    """The verdict on a trace, of this program or of a real engine."""
    ops, known = in_time(trace.on(forward_lane(trace))), launches(trace)
    steps = _steps(ops)
    absent = nobody_there(trace, side_of(forward_lane(trace)))
    pairs = [
        (max(item.end for item in before), after[0])
        for before, after in pairwise(steps)
        if after[0].id in known and not _during(absent, before[-1].end, after[0].start)
    ]
    ahead = sum(known[op.id].time <= end for end, op in pairs)
    spells = [item for item in _dry(ops, known) if not _during(absent, *item[0])]
    dry = tuple(spell for spell, _ in spells)
    blocked = Blocked(trace)
    calls = Counter(_call(blocked, launch, spell[0]) for spell, launch in spells)
    span = ops[-1].end - ops[0].start if ops else 0
    percent = 100 * sum(end - start for start, end in dry) / span if span else 0.0
    word = _word(len(pairs), ahead)
    blocking = dict(calls.most_common())
    said = _sentence(word, len(pairs), ahead, dry, percent, blocking, bool(ops), bool(known))
    return Verdict(word, len(pairs), ahead, dry, percent, blocking, said)


def _steps(ops: list[Slice]) -> list[list[Slice]]:
    """The ops of each step, in the order in which steps began."""
    steps: dict[int, list[Slice]] = {}
    for op in ops:
        if op.step:
            steps.setdefault(op.step, []).append(op)
    return list(steps.values())


def _dry(ops: list[Slice], known: dict[int, Launch]) -> list[tuple[tuple[int, int], Launch]]:
    """The gaps before an op that was launched only when the device had run dry already."""
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = []
    for start, end in gaps(union(ops)):
        launch = known.get(first[end].id)
        if launch is not None and launch.time > start:
            found.append(((start, end), launch))
    return found


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


def _sentence(
    word: str, pairs: int, ahead: int, dry: tuple[tuple[int, int], ...], percent: float,
    blocking: dict[str, int], has_ops: bool, has_launches: bool,
) -> str:  # fmt: skip
    if not has_ops:
        return "Unknown: nothing ran on a device in this trace."
    if not has_launches:
        return "Unknown: the trace does not say which call of the host launched what."
    if pairs < LEAST:
        return f"Unknown: the trace has fewer than {LEAST + 1} steps that could be told apart."
    verb = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}[word]
    parts = f"{verb}: {ahead} of {pairs} steps ({100 * ahead / pairs:.0f} %) were launched before "
    parts += "the one before had ended"
    if not dry:
        return parts + "; the device never ran dry."
    often = "once" if len(dry) == 1 else f"{len(dry)} times"
    typical = milliseconds(int(median(end - start for start, end in dry)))
    parts += f"; the device ran dry {often}, {typical} at the median and {percent:.1f} % "
    call, count = next(iter(blocking.items()))
    if call == UNTOLD:
        return parts + "of the time, mostly while the host was at work and not blocked."
    return parts + f"of the time; before {count} of them the host was blocked in {call}."
