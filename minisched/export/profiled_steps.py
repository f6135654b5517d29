"""The steps of a profile in which the device idles most: a colour is a step, as in ``by_step.py``.

A profile has thousands of kernels and calls. Here a step is one box on the device, and one on the
host: all its work from the previous step's last launch to this step's. It contains the reading of
results, which a profile does not name. Calls that block the host and idle times stand between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ..checks.overlap import intersection, length, streams_of, union
from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .by_step import StepBlock, joined, step_box
from .scene import LaneItem, LaneRow, Lanes, Part, Scene
from .units import ms
from .views.marks import NothingToShow

LEAST = 200  # parts of the picture: shorter idle times are not drawn


def profiled_steps(trace: Trace, count: int = 3) -> Scene:
    """Draw the ``count`` steps in a row in which the first device idles most.

    Raises:
        NothingToShow: fewer steps than that have their ops in the profile.
    """
    device = next((item.lane for item in trace.slices if is_forward(item.lane)), "")
    streams = streams_of(trace, device)
    ops = [item for item in trace.slices if item.lane in streams and item.duration]
    starts: dict[int, int] = {}
    for item in ops:
        if item.step and item.lane == device:
            starts[item.step] = min(item.start, starts.get(item.step, item.start))
    borders = [*sorted(starts.values()), max((item.end for item in ops), default=0)]
    if len(borders) <= count:
        raise NothingToShow(f"a picture needs {count} steps, but this profile has {len(starts)}.")
    busy = union(ops)
    windows = list(zip(borders, borders[count:], strict=False))
    start, end = max(windows, key=lambda it: it[1] - it[0] - length(intersection(busy, (it,))))
    idle = end - start - length(intersection(busy, ((start, end),)))
    ran = steps_between(trace.on(device), start, end)  # copies may run at the same time
    rows = [*host_rows(trace, start, end), device_row(ran, busy, start, end)]
    first, last = min(one.step for one in ran), max(one.step for one in ran)
    title = f"The device idles {ms(idle)} of {ms(end - start)} ms in steps {first} to {last}"
    if 100 * idle < end - start:
        title = f"The device idles less than 1 % of {ms(end - start)} ms in steps {first} to {last}"
    about = f"{trace.loop} on {trace.device}: the {count} steps in a row with the most idle time"
    note = "a colour is a step; plan: the host's work before its launch, and after the last one"
    lanes = Lanes(rows, end - start, across="ms")
    return Scene(title, about, [Part(trace.loop, note, [lanes])])


def steps_between(items: Iterable[Slice], start: int, end: int) -> list[StepBlock]:
    """Return the stretches in which a device works for a step, between two times."""
    inside = (item for item in items if item.step and item.end > start and item.start < end)
    ran = (StepBlock(item.lane, "run", item.step, item.start, item.end) for item in inside)
    return joined(sorted(ran, key=lambda one: one.start))


def device_row(
    ran: Iterable[StepBlock], busy: Iterable[tuple[int, int]], start: int, end: int
) -> LaneRow:
    """Return the device's row: its steps, and the stretches in which no stream works."""
    items = [step_box(one, start, end) for one in ran]
    inside = [(max(a, start), min(b, end)) for a, b in busy if b > start and a < end]
    edges = [(start, start), *inside, (end, end)]
    for (_, since), (until, _) in pairwise(edges):
        if until - since > (end - start) // LEAST:
            words = f"{ms(until - since)} ms"
            items.append(
                LaneItem("bubble", since - start, until - start, "idle", "", f"idle {words}")
            )
    return LaneRow("device", sorted(items, key=lambda item: item.start))


def host_rows(trace: Trace, start: int, end: int) -> Iterator[LaneRow]:
    """Yield a row for each thread that launches: the work for each step, and blocking calls.

    Work belongs to the step of the next launch on its thread.
    """
    threads = defaultdict[str, list[Slice]](list)
    for item in trace.slices:
        if is_host(item.lane):
            threads[item.lane].append(item)
    launching = [lane for lane, items in threads.items() if any(item.step for item in items)]
    for lane in launching:
        pieces, waits, step = list[StepBlock](), list[LaneItem](), 0
        for item in sorted(threads[lane], key=lambda item: -item.start):
            step = item.step or step
            if item.end <= start or item.start >= end or not item.duration:
                continue
            if item.name != "wait":
                pieces.append(StepBlock(lane, "plan", step, item.start, item.end))
                continue
            call = str(item.attrs.get("call", "wait"))
            ends = max(item.start, start) - start, min(item.end, end) - start
            waits.append(LaneItem("wait", *ends, call, "", f"{call}, {ms(item.duration)} ms"))
        items = [step_box(one, start, end) for one in joined(reversed(pieces))]
        name = "host" if len(launching) == 1 else lane
        yield LaneRow(name, sorted([*items, *waits], key=lambda item: item.start))
