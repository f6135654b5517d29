"""The batch queue over time: which steps are in flight, which one the host waits for.

Its first part; the others are every loop's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.overlap import forwards
from ...trace import Trace
from ...trace.events import is_host
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .loop_parts import loop_parts
from .marks import many
from .steps import opening

MOST_STEPS = 14
LEGEND = {
    "queued": "in the queue: launched, and the host does other things",
    "popped": "popped: the host blocks on it and processes it",
    "prompt": "the device computes prompts",
    "decode": "the device decodes",
}


@dataclass(frozen=True)
class QueueStay:
    """One step in flight. Times are nanoseconds."""

    step: int
    rids: tuple[str, ...]
    place: int  # 0: the first that was free
    put: int  # when its last launch had ended
    taken: int  # when the host turned to its result
    processed: int  # when that was done


def queue_stays(trace: Trace) -> list[QueueStay]:
    """Every step that was launched and processed, in order."""
    launches = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "launch"}
    waits = {s.step: s.start for s in trace.slices if is_host(s.lane) and s.name == "wait"}
    processes = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "process"}
    found: list[QueueStay] = []
    for step in sorted(launches.keys() & processes.keys()):
        put, process = launches[step], processes[step]
        busy = {stay.place for stay in found if stay.processed > put.end}
        place = min(set(range(len(busy) + 1)) - busy)
        taken = waits.get(step, process.start)
        found.append(QueueStay(step, put.rids, place, put.end, taken, process.end))
    return found


def scene(trace: Trace) -> Scene:
    """One lane a place in the queue, above what the device does.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays = queue_stays(part)
    places: list[list[LaneItem]] = [[] for _ in range(1 + max((s.place for s in stays), default=0))]
    for stay in stays:
        for kind, start, end in (("queued", stay.put, stay.taken),
                                 ("popped", stay.taken, stay.processed)):  # fmt: skip
            if end > start:
                places[stay.place].append(item_of(kind, start, end, stay.step, stay.rids))
    samples = {item.step: item.end for item in part.slices if item.name == "sample"}
    device = [
        item_of("decode" if item.mode == "decode" else "prompt", item.start,
                samples.get(item.step, item.end), item.step, item.rids)
        for item in forwards(part)
    ]  # fmt: skip
    rows = [LaneRow(f"place {at}", items) for at, items in enumerate(places, 1)]
    return Scene(
        f"{trace.loop}: up to {many(len(places), 'step')} in flight at once",
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


PARTS = {"queue": scene, **loop_parts()}
