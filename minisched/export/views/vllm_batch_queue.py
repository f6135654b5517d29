"""The batch queue over time: the steps in flight, and the one that the host waits for."""

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
    """Draw one lane for each place in the queue, above the device's work.

    A step enters the queue when its last launch has ended, and leaves it when its result has been
    processed. It takes the first free place.
    """
    part, shown = opening(trace, MOST_STEPS)
    launches, waits, processes = (
        {item.step: item for item in part.slices if is_host(item.lane) and item.name == name}
        for name in ("launch", "wait", "process")
    )

    def item(kind: str, start: int, end: int, step: int, rids: tuple[str, ...]) -> LaneItem:
        """Return a step, with its requests where they have room."""
        return LaneItem(kind, start, end, f"{step} ({', '.join(rids)})", str(step),
                        data={"step": step})  # fmt: skip

    places: list[list[LaneItem]] = []
    for step in sorted(launches.keys() & processes.keys()):
        put, end, rids = launches[step].end, processes[step].end, launches[step].rids
        taken = waits.get(step, processes[step]).start
        place = next((place for place in places if place[-1].end <= put), None)
        if place is None:
            places.append(place := [])
        for kind, start, stop in (("queued", put, taken), ("popped", taken, end)):
            if stop > start:
                place.append(item(kind, start, stop, step, rids))
    samples = {of.step: of.end for of in part.slices if of.name == "sample"}
    device = [
        item("decode" if of.mode == "decode" else "prompt", of.start,
             samples.get(of.step, of.end), of.step, of.rids)
        for of in forwards(part)
    ]  # fmt: skip
    rows = [LaneRow(f"place {at}", items) for at, items in enumerate(places or [[]], 1)]
    return Scene(
        f"{trace.loop}: up to {many(len(rows), 'step')} in flight",
        about_run(trace, shown),
        [
            Part("batch_queue", "labels: the step, and its requests", [Lanes(rows, part.end)]),
            Part("Device", "each step's forward pass and its sampling",
                 [Lanes([LaneRow("step", device, "device")], part.end)]),
        ],
        LEGEND,
    )  # fmt: skip
