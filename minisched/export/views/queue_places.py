"""Which step was in which place of the batch queue when, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Trace
from ...trace.lanes import is_host


@dataclass(frozen=True)
class Stay:
    """One step in flight. Times are nanoseconds."""

    step: int
    rids: tuple[str, ...]
    place: int  # 0: the first that was free
    put: int  # when its last launch had ended
    taken: int  # when the host turned to its result
    processed: int  # when that was done


def stays_of(trace: Trace) -> list[Stay]:
    """Every step that was launched and processed, in order."""
    launches = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "launch"}
    waits = {s.step: s.start for s in trace.slices if is_host(s.lane) and s.name == "wait"}
    processes = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "process"}
    found: list[Stay] = []
    for step in sorted(launches.keys() & processes.keys()):
        put, process = launches[step], processes[step]
        busy = {stay.place for stay in found if stay.processed > put.end}
        place = min(set(range(len(busy) + 1)) - busy)
        taken = waits.get(step, process.start)
        found.append(Stay(step, put.rids, place, put.end, taken, process.end))
    return found
