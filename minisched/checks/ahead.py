"""The verdict on overlap: the host works ahead of its device, or it does not.

A step is overlapped if it was launched before the previous one had ended. It is overlapped, too, if
the host worked without a pause from the one launch to the other while the device ran: then the host
itself is the limit. An engine can have overlap enabled and still run serially, because some call of
the host blocks until the device is done (vllm-omni #4442).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter

from ..trace import Slice, Trace
from .causes import HOST_WAIT, WORK, Bubble, Launch, device_gaps, is_good_part, launches
from .history import many, milliseconds, side_of
from .overlap import (
    Interval,
    call_of,
    device_named,
    device_runs,
    forward_lane,
    intersection,
    is_blocked,
    nobody_there,
    span,
    union,
)

MOST, FEW = 90, 10  # percent of overlapped steps: overlapped from there, serial up to there
PAUSELESS = 0.9  # of a time; a host that works for that share of it works without a pause
LEAST = 2  # steps after another one: fewer show nothing about a loop
NO_BLOCK, NO_CALL = "no blocking call", "no recorded call"  # before a device ran dry
VERDICTS = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}


@dataclass(frozen=True)
class OverlapVerdict:
    """``word`` is overlapped, partly, serial or unknown.

    It is about one device, where ``steps`` begin: ``lane``. ``ahead`` of ``pairs`` steps were
    launched before the one before had ended; ``late`` are the others. Before ``pauseless`` of these
    the host worked without a pause. ``percent`` is the share of both. ``dry`` is when the device
    had nothing queued, in nanoseconds. ``blocking`` counts the calls in which the host was blocked
    then, the most frequent first. Steps and times after a moment without any request do not count;
    ``deserted`` is the number of such times.
    """

    word: str
    lane: str
    steps: int
    pairs: int
    ahead: int
    late: tuple[int, ...]
    pauseless: int
    percent: float
    dry: tuple[Interval, ...]
    dry_percent: float  # of the time from the device's first op to its last
    deserted: int
    blocking: dict[str, int]
    sentence: str


def is_surely_work(item: Slice) -> bool:
    """Return whether a slice of the host is work, and not perhaps a wait."""
    return not is_blocked(item) and (
        item.name != WORK or str(item.attrs.get("within", "")).startswith("aten::")
    )


class WorkingTime:
    """The time for which a lane of the host worked, summed up to any moment.

    A blocked host does not work. A range of a profiler that is neither a phase nor an operator is
    no proof of work: the thread may wait in it.
    """

    def __init__(self, items: Sequence[Slice]) -> None:
        busy = union(filter(is_surely_work, items))
        self.starts = [start for start, _ in busy]
        self.ends = [end for _, end in busy]
        self.sums = [0, *accumulate(end - start for start, end in busy)]

    def until(self, moment: int) -> int:
        """Return the nanoseconds of work before a moment."""
        begun = bisect_left(self.starts, moment)
        return self.sums[begun] - (max(0, self.ends[begun - 1] - moment) if begun else 0)

    def is_pauseless(self, start: int, end: int) -> bool:
        """Return whether the host worked nearly all the time between two moments."""
        worked = self.until(end) - self.until(start)
        return start < end and worked >= PAUSELESS * (end - start)


def overlap_verdict(trace: Trace) -> OverlapVerdict:
    """Return the verdict on a trace, of this program or of a real engine."""
    lane, known = forward_lane(trace), launches(trace)
    absent = nobody_there(trace, side_of(lane)[0])

    def is_served(start: int, end: int) -> bool:
        """Return whether a request was there all the time from ``start`` to ``end``."""
        return start >= end or not intersection(absent, ((start, end),))

    steps: defaultdict[int, list[Slice]] = defaultdict(list)  # in the order in which they began
    for op in trace.on(lane):
        if op.step:
            steps[op.step].append(op)
    ahead, pauseless = dict[int, bool](), 0  # of each step after another one
    working = dict[str, WorkingTime]()
    for before, after in pairwise(steps.values()):
        launch = known.get(after[0].id)
        if launch is None or not is_served(before[-1].end, after[0].start):
            continue
        ended = max(item.end for item in before)
        is_ahead = ahead[after[0].step] = launch.time <= ended
        launched = known.get(before[0].id)
        if is_ahead or launched is None or launched.lane != launch.lane:
            continue
        if launch.lane not in working:
            working[launch.lane] = WorkingTime(trace.on(launch.lane))
        host = working[launch.lane]
        while_it_ran = host.is_pauseless(before[0].start, ended)
        pauseless += while_it_ran and host.is_pauseless(launched.time, launch.time)
    empty = [gap for gap in device_gaps(trace, lane, known) if gap.cause == HOST_WAIT]
    dry = [gap for gap in empty if is_served(gap.start, gap.end)]
    hosts = {host: trace.on(host) for host in {known[gap.op].lane for gap in dry}}
    calls, launchers, longest = Counter[str](), Counter[str](), 0
    for gap in dry:
        launch = known[gap.op]
        call, ns = before_launch(gap, launch, hosts[launch.lane])
        longest = max(longest, ns) if call == NO_CALL else longest
        calls[call] += 1
        launchers[launch.lane] += 1
    whole, good = span(device_runs(trace, lane)), sum(ahead.values())
    percent = 100 * (good + pauseless) / len(ahead) if ahead else 0.0
    word = "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"
    device = device_named(trace, lane)
    if len(ahead) < LEAST:
        word, where = "unknown", "no step is marked"
        where = f"{many(len(steps), 'step')} here" if steps else where
        sentence = (
            f"Unknown: {where}, and a verdict needs {LEAST + 1} in a row, "
            "launched by calls that are known."
        )
        sentence = sentence if known else "Unknown: the trace has no call that launched an op."
        sentence = sentence if trace.on(lane) else "Unknown: nothing ran on a device in this trace."
    else:
        dryness = ran_dry(calls, launchers, longest) if whole else "has only ops of no duration."
        others = f", and before {pauseless} more the host worked without a pause"
        bound = " and bound by its host" if word == "overlapped" and pauseless > good else ""
        sentence = (
            f"{VERDICTS[word]}{bound}: {'' if device == 'the device' else f'on {device}, '}{good} "
            f"of {len(ahead)} steps ({100 * good / len(ahead):.0f} %) were launched before the "
            f"previous one had ended{others if pauseless else ''}; {device} {dryness}"
        )
    return OverlapVerdict(
        word, lane, len(steps), len(ahead), good,
        late=tuple(step for step, is_ahead in ahead.items() if not is_ahead),
        pauseless=pauseless, percent=percent,
        dry=tuple((gap.start, gap.end) for gap in dry),
        dry_percent=100 * sum(gap.duration for gap in dry) / whole if whole else 0.0,
        deserted=len(empty) - len(dry), blocking=dict(calls.most_common()), sentence=sentence,
    )  # fmt: skip


def before_launch(gap: Bubble, launch: Launch, items: Sequence[Slice]) -> tuple[str, int]:
    """Return why a launch was late: the blocking call, or that no call was made; and how long.

    ``items`` are all slices of the launching thread. A call, or a stretch without one, counts if it
    reached into the gap and lasted at least half as long. The longest is the answer.
    """
    times = Counter[str]()
    at = launch.since
    for item in reversed(items[: bisect_left(items, at, key=attrgetter("start"))]):
        if at > gap.start:
            times[NO_CALL] = max(times[NO_CALL], at - item.end)
        if item.end < gap.start:
            break
        if is_blocked(item):
            times[call_of(item)] += item.duration
        at = item.start
    call, ns = max(times.items(), key=lambda item: item[1], default=("", 0))
    return (call, ns) if ns and is_good_part(ns, gap.duration) else (NO_BLOCK, 0)


def ran_dry(calls: Counter[str], launchers: Counter[str], longest: int) -> str:
    """Return how often a device ran dry, and the most frequent reason.

    ``longest`` is the longest stretch in which the launching thread made no call, in nanoseconds.
    """
    if not calls:
        return "never ran dry."
    [(call, count)], [(launcher, _)] = calls.most_common(1), launchers.most_common(1)
    thread, dry = "the host" if launcher == "host" else f"the {launcher}", calls.total()
    how = f"{thread} had just been blocked in {call}"
    how = f"no call had blocked {thread}" if call == NO_BLOCK else how
    up_to = "" if count == 1 else "up to "
    quiet = f"{thread} had made no recorded call for {up_to}{milliseconds(longest)}"
    how = quiet if call == NO_CALL else how
    each = "each time" if count == dry else f"{count} times"
    return f"ran dry once; {how}." if dry == 1 else f"ran dry {dry} times; {each} {how}."
