"""Which step was in which place of the batch queue when, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.overlap import forwards
from ...trace import Trace
from ...trace.events import is_host
from .. import state


@dataclass(frozen=True)
class QueueStay:
    """One step in flight. Times are nanoseconds."""

    step: int
    rids: tuple[str, ...]
    place: int  # 0: the first that was free
    put: int  # when its last launch had ended
    taken: int  # when the host turned to its result
    processed: int  # when that was done


def stays_of(trace: Trace) -> list[QueueStay]:
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


def rows_of(trace: Trace) -> list[tuple[str, list[state.Stay]]]:
    """A row for each place and one for the device, for the forms that draw rows.

    Kinds: ``queued``, then ``admitted`` (the host has turned to it); ``prompt`` and ``decode``.
    """
    stays = stays_of(trace)
    rows: dict[int, list[state.Stay]] = {}
    for stay in sorted(stays, key=lambda stay: stay.place):
        row, label = rows.setdefault(stay.place, []), f"{stay.step} ({', '.join(stay.rids)})"
        for kind, start, end in (
            ("queued", stay.put, stay.taken),
            ("admitted", stay.taken, stay.processed),
        ):
            if end > start:
                row.append(state.Stay(f"place {stay.place + 1}", kind, start, end, label))
    samples = {item.step: item.end for item in trace.slices if item.name == "sample"}
    device = [
        state.Stay(
            "step", "decode" if item.mode == "decode" else "prompt", item.start,
            samples.get(item.step, item.end), f"{item.step} ({', '.join(item.rids)})",
        )
        for item in forwards(trace)
    ]  # fmt: skip
    return [*((f"place {place + 1}", row) for place, row in rows.items()), ("step", device)]
