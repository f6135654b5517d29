"""The batch queue over time: which steps are in flight, which one the host waits for."""

from __future__ import annotations

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Trace
from ...trace.events import is_host
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .steps import opening

MOST_STEPS = 14
LEGEND = {
    "queued": "in the queue: launched, and the host does other things",
    "popped": "popped: the host blocks on it and processes it",
    "prompt": "the device computes prompts",
    "decode": "the device decodes",
}


def scene(trace: Trace) -> Scene:
    """One lane a place in the queue, above what the device does.

    A step enters the queue when its last launch has ended, and leaves it when its result has been
    processed; it takes the first place that is free.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    launches, waits, processes = (
        {item.step: item for item in part.slices if is_host(item.lane) and item.name == name}
        for name in ("launch", "wait", "process")
    )
    places, until = list[list[LaneItem]](), list[int]()  # until when each place is taken
    for step in sorted(launches.keys() & processes.keys()):
        put, end = launches[step].end, processes[step].end
        taken = waits.get(step, processes[step]).start
        free = (at for at, time in enumerate(until) if time <= put)
        if (at := next(free, len(until))) == len(until):
            places.append([])
            until.append(0)
        until[at] = end
        for kind, start, stop in (("queued", put, taken), ("popped", taken, end)):
            if stop > start:
                places[at].append(item_of(kind, start, stop, step, launches[step].rids))
    samples = {item.step: item.end for item in part.slices if item.name == "sample"}
    device = [
        item_of("decode" if item.mode == "decode" else "prompt", item.start,
                samples.get(item.step, item.end), item.step, item.rids)
        for item in forwards(part)
    ]  # fmt: skip
    rows = [LaneRow(f"place {at}", items) for at, items in enumerate(places or [[]], 1)]
    return Scene(
        f"{trace.loop}: up to {many(len(rows), 'step')} in flight at once",
        about_run(trace, shown),
        [
            Part("batch_queue", "labels: the step, and whose", [Lanes(rows, part.end)]),
            Part("Device", "each step's forward pass and its sampling",
                 [Lanes([LaneRow("step", device, "device")], part.end)]),
        ],
        LEGEND,
    )  # fmt: skip


def item_of(kind: str, start: int, end: int, step: int, rids: tuple[str, ...]) -> LaneItem:
    """A step, with whose it is where there is room."""
    whose = ", ".join(rids)
    about = f"step {step} ({whose}): {LEGEND[kind]}"
    return LaneItem(kind, start, end, f"{step} ({whose})", str(step), about, {"step": step})
