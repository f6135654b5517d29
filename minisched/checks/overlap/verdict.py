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
from .bubble_words import milliseconds
from .course import in_time
from .dry_words import UNTOLD, dry_words
from .idle import HOST_WAIT, device_gaps
from .launches import Blocked, Launch, call_of, launches
from .overlap import (
    Interval,
    device_named,
    device_runs,
    forward_lane,
    gaps,
    intersection,
    is_profiled,
    nobody_there,
    span,
    union,
)
from .waits import side_of

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: fewer say nothing about how a loop works


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
    steps: int = 0

    @property
    def ahead_percent(self) -> float:
        """The share of steps that were launched ahead."""
        return 100 * self.ahead / self.pairs if self.pairs else 0.0


def overlap_verdict(trace: Trace) -> Verdict:
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
    ended = _gaps_ended_by(trace, lane, known)
    empty = [(gap, launch) for gap, launch, is_dry in ended if is_dry]
    spells = [(gap, launch) for gap, launch in empty if not _during(absent, *gap)]
    dry = tuple(gap for gap, _ in spells)
    blocked = Blocked(trace)
    calls = Counter(_call(blocked, launch, gap[0]) for gap, launch in spells)
    by = Counter(launch.lane for _, launch in spells)
    launcher = next(iter(by.most_common(1)), ("", 0))[0]
    whole = span(device_runs(trace, lane))
    percent = 100 * sum(end - start for start, end in dry) / whole if whole else 0.0
    blocking, ahead = dict(calls.most_common()), len(pairs) - len(late)
    word, deserted = _word(len(pairs), ahead), len(empty) - len(spells)
    device = device_named(trace, lane)
    late_ns = sum(end - start for start, end in dry) if is_profiled(trace) else None
    said = _untold(len(steps), late, len(pairs), bool(ops), bool(known), late_ns) or (
        f"{_ahead_words(word, device, len(pairs), ahead)}; "
        f"{dry_words(device, dry, percent, launcher, blocking, deserted, len(ended) - len(empty))}."
    )
    return Verdict(
        word, lane, len(pairs), ahead, late, dry, deserted, percent, blocking, said, len(steps)
    )


def _steps(ops: list[Slice]) -> list[list[Slice]]:
    """The ops of each step, in the order in which steps began."""
    steps: dict[int, list[Slice]] = {}
    for op in ops:
        if op.step:
            steps.setdefault(op.step, []).append(op)
    return list(steps.values())


def _gaps_ended_by(
    trace: Trace, lane: str, known: dict[int, Launch]
) -> list[tuple[Interval, Launch, bool]]:
    """The gaps of a device, the launch of the op after each, and whether it came in that gap.

    Gaps that end with what nobody knows the launch of are left out. In a profiler's trace, a gap in
    which the launch came is that until then (``idle.py``).
    """
    if is_profiled(trace):
        return [
            ((gap.start, gap.end), gap.launch, gap.cause == HOST_WAIT)
            for gap in device_gaps(trace, lane, known)
            if gap.launch is not None
        ]
    ops = in_time(trace.on(lane))
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = [(gap, known.get(first[gap[1]].id)) for gap in gaps(union(ops))]
    return [(gap, launch, launch.time > gap[0]) for gap, launch in found if launch is not None]


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


def _untold(
    steps: int, late: tuple[int, ...], pairs: int, has_ops: bool, has_launches: bool,
    waited: int | None,
) -> str:  # fmt: skip
    """Why nothing can be said about how a loop works; empty where something can.

    ``waited`` is for how long the device waited for the host in it all, where that is known.
    """
    if not has_ops:
        return "Unknown: nothing ran on a device in this trace."
    if not has_launches:
        return "Unknown: the trace does not say which call of the host launched what."
    if pairs >= LEAST:
        return ""
    enough = f"it takes {LEAST + 1} of them to say how a loop works"
    if not steps:
        return (
            "Unknown: nothing tells where a step begins, and whether one is launched before the "
            f"one before has ended can be said only of steps; {enough}."
        )
    in_it = ""
    if waited is not None:
        in_it = f" In all, the device waited {milliseconds(waited)} for the host."
        in_it = in_it if waited else " In all, the device never waited for the host."
    if steps == 1:
        return f"Only one step was recorded, so none that could overlap with it; {enough}.{in_it}"
    if steps == 2 and pairs:
        when = "only after" if late else "before"
        return f"Of two steps the second was launched {when} the first had ended; {enough}.{in_it}"
    return (
        f"Unknown: {steps} steps were recorded, but fewer than {LEAST + 1} of them in a row with "
        f"launches that are known and somebody there; {enough}."
    )


def _ahead_words(word: str, device: str, pairs: int, ahead: int) -> str:
    verb = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}[word]
    where = "" if device == "the device" else f"on {device}, "
    share = f"{ahead} of {pairs} steps ({100 * ahead / pairs:.0f} %)"
    return f"{verb}: {where}{share} were launched before the one before had ended"
