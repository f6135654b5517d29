"""Steps in a trace of a real engine, which has no numbers for them.

Where its authors marked them (``phases.py``), a step is what a thread launched inside of such a
range. A launch of a CUDA or HIP graph is none: one forward pass may be one graph, or one for each
piece between two layers that can't be captured.

Where nothing is marked, a step may show as what is repeated: the same launches in the same order,
each time until the tokens come to the host (a copy to it; if nothing is ever copied, a call that
blocks until the device is done). That is believed only if the repetition goes on to the end of the
recording, at least for the third time there. Layers that bring something to the host are repeated
too, but what ends a forward pass comes after the last of them.

Else it is unknown what a step is, and the sentence tells how to mark one.
"""

from __future__ import annotations

import collections
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...trace import Edge, Slice
from ...trace.events import is_host
from .phases import Range, namer, plain

LEAST = 3  # repetitions, the last of which may have been cut off
MOST_NAMED = 3  # ranges in a sentence
HOW = (
    "A step is one turn of an engine, from the launch of a batch's forward pass to its tokens, and "
    "a launch of a graph alone is none. Mark each one with "
    'torch.profiler.record_function("step") or an NVTX range "step", or name the range that is '
    "around each one with --step"
)
OWN_STEPS = "--step is for traces of other programs: this one's own numbers its steps itself."


class NoSuchRange(LookupError):
    """``--step`` names nothing in the trace; the message is one sentence."""


class Found(NamedTuple):
    """The step of each slice that has one, and a sentence on what was taken for a step."""

    steps: dict[int, int]
    sentence: str


def find_steps(
    slices: Sequence[Slice],
    edges: set[Edge],
    ranges: Mapping[str, Sequence[Range]],
    pattern: str = "",
) -> Found:
    """The steps of those lanes that launch forward passes; ``ranges`` by lane of the host.

    Raises:
        NoSuchRange: in no range that ``pattern`` names anything was launched.
    """
    launched: defaultdict[int, list[Slice]] = defaultdict(list)
    index = {item.id: item for item in slices}
    for edge in sorted(edges):
        launched[edge.src].append(index[edge.dst])
    lanes: defaultdict[str, list[Slice]] = defaultdict(list)  # what launches or blocks
    for item in sorted(slices, key=lambda item: (item.start, item.end, item.id)):
        if item.lane.endswith("host") and (item.id in launched or item.name == "wait"):
            lanes[item.lane].append(item)
    for is_mark in namer(pattern):
        marks = {
            lane: _marks(items, ranges.get(lane, ()), is_mark) for lane, items in lanes.items()
        }
        if any(marks.values()):
            calls = {lane: _inside(lanes[lane], found) for lane, found in marks.items()}
            return Found(_with_ops(calls, launched), _marked_sentence(marks))
    if pattern:
        raise NoSuchRange(
            f"--step {pattern} names no range around a launch.{_instead(lanes, ranges)}"
        )
    units = {lane: _repeated(items, launched) for lane, items in lanes.items()}
    if any(units.values()):
        return Found(_with_ops(units, launched), _repeated_sentence(units, launched))
    return Found({}, f"{HOW}.{_instead(lanes, ranges)}" if lanes else "")


def _marks(
    launches: list[Slice], ranges: Sequence[Range], is_mark: Callable[[str], bool]
) -> list[Range]:
    """The outermost marks around a launch of a lane, in order of time."""
    starts = [item.start for item in launches]
    found: list[Range] = []
    free: int | None = None
    for item in sorted(ranges, key=lambda item: (item.start, -item.end)):
        if (free is None or item.start >= free) and is_mark(item.name):
            free = item.end
            if bisect_left(starts, item.start) < bisect_right(starts, item.end):
                found.append(item)
    return found


def _inside(launches: list[Slice], marks: list[Range]) -> dict[int, list[Slice]]:
    """What was launched inside of each mark, by the number of its step."""
    starts = [item.start for item in launches]
    return {
        step: launches[bisect_left(starts, mark.start) : bisect_right(starts, mark.end)]
        for step, mark in enumerate(marks, 1)
    }


def _repeated(items: list[Slice], launched: Mapping[int, list[Slice]]) -> dict[int, list[Slice]]:
    """The launches of each repetition, by its number; nothing, if the lane repeats nothing."""
    copies = any(op.name == "copy" for item in items for op in launched.get(item.id, ()))
    parts: list[list[Slice]] = [[]]
    has_kernel, done = False, 0
    for item in items:
        ops = launched.get(item.id, [])
        if ops or not copies:
            parts[-1].append(item)
        is_result = item.name == "wait" and item.end >= done
        if copies:
            is_result = any(op.name == "copy" for op in ops)
        done = max([done, *(op.end for op in ops)])
        kernels = (op for op in ops if op.lane.endswith("forward") and op.name != "copy")
        has_kernel = has_kernel or any(kernels)
        if is_result and has_kernel:
            parts.append([])
            has_kernel = False
    *whole, rest = [[_symbol(item, launched) for item in part] for part in parts]
    for period in range(1, len(whole) // (LEAST - 1) + 1):
        same = 0
        while same < len(whole) - period and whole[-1 - same] == whole[-1 - same - period]:
            same += 1
        count = (same + period) // period
        if count + bool(rest) >= LEAST and rest == whole[-period][: len(rest)]:
            first = len(whole) - count * period
            ends = range(first, len(parts), period)
            groups = [[item for part in parts[at : at + period] for item in part] for at in ends]
            return {step: group for step, group in enumerate(groups, 1) if group}
    return {}


def _symbol(item: Slice, launched: Mapping[int, list[Slice]]) -> tuple[object, ...]:
    """What two launches have to share to be the same one, repeated."""
    ops = launched.get(item.id, [])
    return item.name, *((op.lane, op.name, str(op.attrs.get("kernel", ""))) for op in ops)


def _with_ops(
    calls: Mapping[str, Mapping[int, list[Slice]]], launched: Mapping[int, list[Slice]]
) -> dict[int, int]:
    """The steps of calls, and of what they launched."""
    steps: dict[int, int] = {}
    for by_step in calls.values():
        for step, items in by_step.items():
            for item in items:
                if ops := launched.get(item.id):
                    steps[item.id] = step
                    steps |= {op.id: step for op in ops}
    return steps


def _marked_sentence(marks: Mapping[str, list[Range]]) -> str:
    every = [plain(mark.name) for found in marks.values() for mark in found]
    one = "one" if len(every) == 1 else f"{len(every)}, the first of which is"
    return f"A step here is what is launched inside of a marked range; it has {one}: {every[0]}."


def _repeated_sentence(
    units: Mapping[str, Mapping[int, list[Slice]]], launched: Mapping[int, list[Slice]]
) -> str:
    steps = max(units.values(), key=len)
    length = sum(item.id in launched for item in steps[1])
    what = "the same launch" if length == 1 else f"the same {length} launches"
    copies = any(op.name == "copy" for item in steps[1] for op in launched.get(item.id, ()))
    end = "a copy to the host" if copies else "a call that blocks the host"
    return (
        f"No step is marked; taken for one is what is repeated to the end, {len(steps)} times: "
        f"{what} up to {end}."
    )


def _instead(lanes: Mapping[str, list[Slice]], ranges: Mapping[str, Sequence[Range]]) -> str:
    """The annotations that there are, the most frequent first, as a sentence that follows."""
    names: collections.Counter[str] = collections.Counter()
    for lane in lanes:
        every = (plain(item.name) for item in ranges.get(lane, ()) if item.is_annotation)
        names.update(name for name in every if not name.startswith("aten::"))
    found = [f"{name}, {count} times" for name, count in names.most_common(MOST_NAMED)]
    return f" The most frequent ranges are {'; '.join(found)}." if found else ""


def results(slices: list[Slice]) -> list[Edge]:
    """From the last op that ended while a thread was blocked, to what that thread did next."""
    done = sorted((item.end, item.id) for item in slices if not is_host(item.lane))
    ends = [end for end, _ in done]
    lanes: defaultdict[str, list[Slice]] = defaultdict(list)
    for item in slices:
        if is_host(item.lane):
            lanes[item.lane].append(item)
    edges = []
    for items in lanes.values():
        for wait, after in pairwise(items):
            at = bisect_left(ends, wait.end + 1) - 1
            if wait.name == "wait" and at >= 0 and ends[at] > wait.start:
                edges.append(Edge(done[at][1], after.id, "result"))
    return edges
