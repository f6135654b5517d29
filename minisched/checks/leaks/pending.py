"""Ops that nobody waited for, and threads that are still in a call, from a trace's program."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Act, Slice, Trace
from ...trace.events import is_host, lane_words
from ..happens_before import Order
from .leak import Leak


def find_pending(trace: Trace) -> list[Leak]:
    """What was launched and never ended, or ended without anybody who could know.

    An op's end is known to whoever waits for it, or for anything that comes after it on its lane;
    in the end the schedulers have to know every one. A call that a thread has begun must end. Of a
    file that stops before its requests have ended nothing is told: it was in flight.
    """
    return list(_pending(trace)) if is_complete(trace) else []


def is_complete(trace: Trace) -> bool:
    """Whether the run is over, as far as the file says: each request of a slice has ``finish``."""
    ended = {mark.attrs.get("rid") for mark in trace.marks if mark.name == "finish"}
    return bool(ended) and all(rid in ended for item in trace.slices for rid in item.rids)


def _pending(trace: Trace) -> Iterator[Leak]:
    slices = {item.id: item for item in trace.slices}
    begun = {act.op: act for act in trace.program if act.kind == "begin"}
    ends = {act.op for act in trace.program if act.kind == "end"}
    ever = ends | {act.op for act in trace.program if act.kind == "say"}
    order = Order([act for act in trace.program if act.kind != "wait" or act.op in ever])
    last = [done for lane, done in order.last.items() if is_main(lane)]
    for launch in (act for act in trace.program if act.kind == "launch"):
        begin, end = begun.get(launch.op), order.ended.get(launch.op)
        ran = slices.get(launch.op)
        if begin is not None and end is not None and any(map(end.is_before, last)):
            continue
        if begin is not None and launch.op not in ends:
            yield _thread(begin, ran, trace.end)
        else:
            yield _op(launch, begin, ran, slices.get(launch.during), trace.end)


def is_main(lane: str) -> bool:
    """Whether a lane is a scheduler's, and not one of its threads."""
    return is_host(lane) and not lane.endswith("thread")


def _thread(begin: Act, ran: Slice | None, end: int) -> Leak:
    story = f"{begin.lane} began a call (slice {begin.op}), which never ended"
    return Leak("thread", begin.lane, "pending", "", story, end, (begin.op,) if ran else ())


def _op(
    launch: Act, begin: Act | None, ran: Slice | None, launcher: Slice | None, end: int
) -> Leak:
    """An op that ended, as far as the trace says, but nobody knows; or a call that never began."""
    name = f"the {ran.name} of step {ran.step}" if ran and ran.step else f"op {launch.op}"
    by = f"{launch.lane} launched {name}"
    by += f" in its {launcher.name} of step {launcher.step}" if launcher and launcher.step else ""
    lane = f" on the {lane_words(begin.lane)}" if begin else ""
    fate = "and it never ran" if begin is None else "and nobody has waited for it"
    known = tuple(item.id for item in (launcher, ran) if item)
    rid = ran.rids[0] if ran and len(ran.rids) == 1 else ""
    return Leak("op", name, "pending", rid, f"{by}{lane}, {fate}", end, known)
