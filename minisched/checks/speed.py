"""The answers on speed, in words: is a run overlapped, and is its device busy? Neither is a law."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .answers import Answer, Recorded, unknown
from .causes import ARRIVAL, KERNEL_WAIT
from .findings import BUSY, MEANINGS, BlockingCall, OverlapFindings, report, shortened
from .history import many, milliseconds
from .overlap import is_blocked, is_profiled

OVERLAPS = {"overlapped": "yes", "partly": "partly", "serial": "no", "unknown": "unknown"}
LARGE = 0.1  # of the idle time; a cause that took less is not explained
LEAST_BLOCKED = 0.01  # of the time; shorter blocking calls are left out
MOST_CALLS = 5  # blocking calls that are listed


def on_speed(recorded: Recorded) -> list[Answer]:
    """Answer whether the host works ahead, and whether the device is busy."""
    trace = recorded.trace
    if not any(is_forward(item.lane) for item in trace.slices):
        lacks, why = recorded.lacks or tuple(no_device(trace)), "no device is recorded in this file"
        return [unknown("overlaps", why, lacks), unknown("busy", why)]
    found = report(trace, (*recorded.lacks, *hints(trace)), recorded.steps)
    details, steps = [*found.lacks], [found.steps] if found.steps else []
    if found.verdict.word == "unknown":  # it names the remedy
        details, steps = [*details, *steps], []
    if any(ns for lane, ns in found.bound.lanes.items() if is_host(lane)):
        share = f"{found.hidden_percent:.0f} %"
        details.append(f"While the device was busy, the host did {share} of its work.")
    host = Answer(
        "overlaps", OVERLAPS[found.verdict.word], found.verdict.sentence,
        tuple(details), tuple(steps), findings=found,
    )  # fmt: skip
    if not found.whole_ns:
        return [host, unknown("busy", "no op of the device took any time")]
    word = "yes" if found.is_busy else "no"
    idle, more = tuple(idle_words(found)), tuple(idle_explained(trace, found))
    return [host, Answer("busy", word, busy_words(found), idle, more)]


def busy_words(found: OverlapFindings) -> str:
    """Return how long the devices worked, as a sentence."""
    one = found.devices == 1
    subject = "the device" if one else f"the {found.devices} devices"
    busy = milliseconds(found.whole_ns - found.bubble_ns)
    served = milliseconds(found.whole_ns - found.causes.get(ARRIVAL, 0))
    where = "between its first op and its last" if one else (
        "each between its first op and its last, added up"
    )  # fmt: skip
    when = "" if ARRIVAL not in found.causes else ", while a request was there"
    least = "" if found.is_busy else f"; busy is {BUSY} % and more"
    return (
        f"{'Busy' if found.is_busy else 'Not busy'}: {subject} worked for {busy} of {served} "
        f"({found.busy_percent:.1f} %), {where}{when}{least}."
    )


def idle_words(found: OverlapFindings) -> Iterator[str]:
    """Yield the idle time by cause, and the largest cause."""
    if found.causes:
        parts = ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in found.causes.items())
        yield f"Idle time: {milliseconds(found.bubble_ns)} ({found.idle_percent:.1f} %): {parts}."
    largest = found.largest
    if largest and (largest.cause != KERNEL_WAIT or not found.is_busy):
        yield largest.sentence


def idle_explained(trace: Trace, found: OverlapFindings) -> Iterator[str]:
    """Yield what the causes of idle time mean, and the share that has none."""
    if is_profiled(trace):
        large = [cause for cause, ns in found.causes.items() if ns >= LARGE * found.bubble_ns]
        if means := "; ".join(MEANINGS[cause] for cause in MEANINGS if cause in large):
            yield f"{means[0].upper()}{means[1:]}."
    if found.unknown_percent:
        yield f"Nothing recorded explains {found.unknown_percent:.1f} % of the idle time."


# -- What follows from both: the blocking call, the possible gain, and the next thing to do --------


def blocked_words(trace: Trace, found: OverlapFindings) -> str:
    """Return the call in which the host was blocked most, and where; empty: for no long time."""
    total = sum(item.ns for item in found.blocked)
    if not total or total < LEAST_BLOCKED * trace.end or trace.clock != "wall":
        return ""
    threads, most = {item.lane for item in filter(is_blocked, trace.slices)}, found.blocked[0]
    part = "" if len(found.blocked) == 1 else f", {milliseconds(most.ns)} of it"
    several = f"{len(threads)} threads of the host, added up, were"
    subject = several if len(threads) > 1 else "The host was"
    where = f"; the call was made in {frames(most.where)}" if most.where else ""
    return f"{subject} blocked for {milliseconds(total)}{part} in {shortened(most.call)}{where}."


def call_words(call: BlockingCall) -> str:
    """Return how often and how long one call blocked the host, and where."""
    where = f"; the longest one was made in {frames(call.where)}" if call.where else ""
    times = f"{many(call.count, 'time')}, for {milliseconds(call.ns)} in all"
    return f"{shortened(call.call)} blocked the host {times}{where}."


def frames(where: str) -> str:
    """Return the functions of Python around a call, each shortened for a sentence."""
    return ", from ".join(map(shortened, where.split(", from ")))


def gain_words(found: OverlapFindings) -> str:
    """Return the bound on the run's time, and its distance; empty: it is not known."""
    bound = found.bound
    if found.verdict.word == "unknown" or not bound.ns:
        return ""
    return (
        f"These batches cannot take less than {milliseconds(bound.ns)} unless their work gets "
        f"faster, because lane {bound.lane} has that much work; "
        f"this run took {milliseconds(found.makespan_ns)}, {found.gain:.2f} times as long."
    )


# -- Hints, for a file that lacks something --------------------------------------------------------

SHORT_STEP = 100_000  # nanoseconds; no measured step of an engine is as short


def no_device(trace: Trace) -> Iterator[str]:
    """Yield how to name the device's lane, if a trace has no lane of that name."""
    lanes = sorted({item.lane for item in trace.slices})
    others = [lane for lane in lanes if not is_host(lane)]
    if lanes:
        which = f"--device-lane {shlex.quote(others[0])}" if others else "--device-lane"
        yield (
            "A device's lane is `forward`, ends in `forward`, or is `stage 0` and so on; the lanes "
            f"here are {', '.join(lanes)}. Name the device's one with {which}."
        )


def hints(trace: Trace) -> Iterator[str]:
    """Yield probable mistakes in a measured trace of a user's own engine: steps, and units."""
    if is_profiled(trace) or trace.clock != "wall":
        return
    ops = [item for item in trace.slices if is_forward(item.lane)]
    if lost := sum(not item.step for item in ops):
        yield (
            f"{many(lost, 'op')} of the device {'has' if lost == 1 else 'have'} step 0, which "
            "belongs to no step and is not counted: count steps from 1."
        )
    starts = sorted(step_starts(ops).values())
    times = sorted(after - before for before, after in pairwise(starts))
    if len(times) > 1 and times[len(times) // 2] < SHORT_STEP:
        yield (
            f"A step takes {times[len(times) // 2]} ns here, which is very short: if these times "
            "are microseconds, multiply them by 1000."
        )


def step_starts(ops: Iterable[Slice]) -> dict[int, int]:
    """Return the first start of each step in nanoseconds; step 0 is none."""
    starts = dict[int, int]()
    for op in ops:
        if op.step:
            starts[op.step] = min(op.start, starts.get(op.step, op.start))
    return starts
