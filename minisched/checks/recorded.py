"""The laws of a file without its engine: requests end, steps run once, time goes forward.

The laws of ``laws.py`` watch an engine while it runs. These read a trace alone, so they also judge
the file of another engine. ``leaks.py`` judges memory, ``races.py`` its accesses, and
``identity.py`` tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ..trace import Slice, Trace
from ..trace.cells import spans_of
from ..trace.events import is_forward, is_host
from ..trace.sides import one_side, sides
from .history import VALUE, Offence, Words, many, order_of
from .identity import ended, requests_of, tokens_heard
from .laws import marks
from .leaks import HeldLease, ledgers
from .overlap import is_profiled
from .races import SpanMap

# -- Every request ends, with as many tokens as its client received --------------------------------


def find_lost(trace: Trace) -> Iterator[Offence]:
    """Yield the requests that never end, and those that end with another number of tokens.

    A run without any end, or one that stopped with an error, is not judged.
    """
    finishes = marks(trace, "finish")
    if not finishes or marks(trace, "stopped"):
        return
    refused = {str(of["rid"]) for of in marks(trace, "refused")}
    for rid in sorted(requests_of(trace) - ended(trace) - refused):
        yield Offence(f"{rid} never ends", last_slice_of(trace, rid), "ends", rid, trace.end)
    if not marks(trace, "tokens"):
        return
    received = tokens_heard(trace)
    counted: dict[str, int] = defaultdict(int)
    for of in finishes:
        if "outputs" in of and of.get("side") != "prefill":
            counted[str(of["rid"])] += int(of["outputs"])
    for rid, count in counted.items():
        if count != (told := len(received.get(rid, ()))):
            story = f"{rid} ends with {many(count, 'token')}, but its client received {told}"
            yield Offence(story, last_slice_of(trace, rid), "ends", rid, trace.end)


def last_slice_of(trace: Trace, rid: str) -> tuple[int, ...]:
    """Return the last slice of a request, for a picture."""
    last = [item.id for item in trace.slices if rid in item.rids]
    return tuple(last[-1:])


def other_ends(baseline: Trace, trace: Trace) -> Iterator[str]:
    """Yield the requests that ended with another reason than in the baseline.

    An abort depends on time. A request that ended more than once is left out.
    """
    one, other = reasons_of(baseline), reasons_of(trace)
    for rid, (reason, *more) in one.items():
        theirs = other.get(rid, [])
        if more or len(theirs) != 1 or "abort" in (reason, theirs[0]) or theirs[0] == reason:
            continue
        yield f"{trace.loop}: {rid} ended with '{theirs[0]}', in the baseline with '{reason}'"


def reasons_of(trace: Trace) -> dict[str, list[str]]:
    """Return the reasons of each request's ends; of two schedulers, the one with clients."""
    found: dict[str, list[str]] = {}
    for of in marks(trace, "finish"):
        if of.get("side") != "prefill":
            found.setdefault(str(of["rid"]), []).append(str(of["reason"]))
    return found


# -- Every committed step runs once ----------------------------------------------------------------


def find_bad_steps(trace: Trace) -> Iterator[Offence]:
    """Yield steps that gave tokens and never ran, or that ran twice, and ops without a launch.

    A step without tokens may have failed before it ran.
    """
    if marks(trace, "stopped"):
        return
    yield from _in_no_slice(trace)
    for side in sides(trace):
        part = one_side(trace, side)
        yield from _two_modes(part)
        yield from _bad_steps(part, ledgers(trace)[side].commits)
    if not any("error" in reasons for reasons in reasons_of(trace).values()):
        yield from _unlaunched(trace)  # an op that failed may have no slice


def _in_no_slice(trace: Trace) -> Iterator[Offence]:
    """Yield the marks and acts during a slice that the trace does not contain, each slice once."""
    ids, seen = {item.id for item in trace.slices}, {0}
    events = [*((mark.during, f"the mark {mark.name!r}") for mark in trace.marks),
              *((act.during, f"a {act.kind} of op {act.op}") for act in trace.program)]  # fmt: skip
    for during, what in events:
        if during not in ids and during not in seen:
            seen.add(during)
            yield Offence(f"{what} is during slice {during}, which is missing", (), "steps")


def _two_modes(trace: Trace) -> Iterator[Offence]:
    """Yield slices with another mode than the first one of their step; drafts have their own."""
    first: dict[int, Slice] = {}
    for item in trace.slices:
        if item.step and item.mode and not item.mode.startswith("draft"):
            one = first.setdefault(item.step, item)
            if one.mode != item.mode:
                story = f"{item.label} has the mode {item.mode!r}, but {one.label} {one.mode!r}"
                yield Offence(story, (one.id, item.id), "steps", "", item.start)


def _bad_steps(trace: Trace, leases: Mapping[int, Sequence[HeldLease | None]]) -> Iterator[Offence]:
    commits = [mark for mark in trace.marks if mark.name == "commit"]
    if not commits:
        return
    by_id, delivered = {item.id: item for item in trace.slices}, set[int]()
    for mark in trace.marks:
        if mark.name == "tokens" and mark.attrs["rids"]:
            delivered.add(int(mark.attrs["step"]))
        at, step = by_id.get(mark.during), mark.attrs.get("step")
        if mark.name == "tokens" and at and at.name == "process" and at.step != step:
            story = f"the tokens of step {step} were delivered in {at.label}"
            yield Offence(story, (at.id,), "steps", "", mark.time)
    lanes: dict[str, dict[int, list[Slice]]] = {}
    for item in trace.slices:
        if item.name == "forward" and is_forward(item.lane):
            lanes.setdefault(item.lane, {}).setdefault(item.step, []).append(item)
    steps = {int(mark.attrs["step"]): mark for mark in commits}
    for lane, ran in lanes.items():
        for step, items in ran.items():
            ids = tuple(item.id for item in items)
            if len(items) > 1:
                story = f"step {step} ran {len(items)} times on the lane {lane}"
                yield Offence(story, ids, "steps", "", items[1].start)
            elif step not in steps:
                story = f"step {step} ran on the lane {lane}, but it was never committed"
                yield Offence(story, ids, "steps", "", items[0].start)
            elif None not in leases[step] and items[0].rids:
                rows = tuple(lease.rid for lease in leases[step] if lease)
                if items[0].rids != rows:
                    ran_for, given = " ".join(items[0].rids), " ".join(rows)
                    story = f"step {step} ran for {ran_for}, but it was committed for {given}"
                    yield Offence(story, ids, "steps", "", items[0].start)
        for step in sorted(delivered - ran.keys() - {0}):  # 0: of another scheduler
            story = f"step {step} gave tokens, but it never ran on the lane {lane}"
            yield Offence(story, (), "steps", "", steps[step].time if step in steps else 0)


def _unlaunched(trace: Trace) -> Iterator[Offence]:
    """Yield ops of a device that the program does not launch, and begun ops without a slice."""
    begun = {act.op: act.lane for act in trace.program if act.kind == "begin"}
    if not begun:
        return
    by_id = {item.id: item for item in trace.slices}
    for item in trace.slices:
        if not is_host(item.lane) and begun.get(item.id) != item.lane:
            where = f"on the lane {item.lane}"
            story = f"{item.label} ran {where}, but no act of the program begins it there"
            yield Offence(story, (item.id,), "steps", "", item.start)
    over = {act.op for act in trace.program if act.kind == "end"}
    for op, lane in begun.items():
        if op in over and op not in by_id and not is_host(lane):
            yield Offence(f"op {op} ran on the lane {lane}, but it has no slice", (), "steps")
    for act in trace.program:
        if act.resource == VALUE and act.kind == "read" and int(act.at) not in begun:
            story = f"op {act.op} reads the value of slice {act.at}, which is not an op"
            yield Offence(story, (act.op,), "steps")


# -- Time goes forward -----------------------------------------------------------------------------


def find_out_of_time(trace: Trace) -> Iterator[Offence]:
    """Yield slices that end before they start, overlap on a lane, or precede their cause.

    On a wall clock an op may start before the rest of its launch has run. So its launch must only
    have started before, and the same is true of an edge. A profiler nests its slices.
    """
    if is_profiled(trace):
        return
    lanes: dict[str, list[Slice]] = {}
    for item in trace.slices:
        lanes.setdefault(item.lane, []).append(item)
        if item.start < 0 or item.end < item.start:
            story = (
                f"{item.name} of step {item.step} on the {item.lane} lane starts at "
                f"{item.start} ns and ends at {item.end} ns"
            )
            yield Offence(story, (item.id,), "time", "", item.start)
    for lane, items in lanes.items():
        items.sort(key=lambda item: (item.start, item.end))
        for one, other in pairwise(items):
            if other.start < one.end and other.duration:
                story = f"{one.label} and {other.label} run at the same time on the lane {lane}"
                yield Offence(story, (one.id, other.id), "time", "", other.start)
    yield from _before_their_cause(trace)


def _before_their_cause(trace: Trace) -> Iterator[Offence]:
    by_id, is_exact = {item.id: item for item in trace.slices}, trace.clock == "virtual"
    for edge in trace.edges:
        src, dst = by_id[edge.src], by_id[edge.dst]
        if dst.start < (src.end if is_exact else src.start):
            story = f"{dst.label} starts before {src.label}, which it depends on ({edge.kind})"
            yield Offence(story, (src.id, dst.id), "time", "", dst.start)
    after: dict[int, Slice] = {}  # the next work of its lane, by slice
    newest: dict[str, list[int]] = defaultdict(list)
    for item in sorted(trace.slices, key=lambda item: (item.start, item.id)):
        if is_host(item.lane) and item.name != "wait":
            after |= dict.fromkeys(newest.pop(item.lane, ()), item)
        newest[item.lane].append(item.id)
    for act in trace.program:
        op, during = by_id.get(act.op), by_id.get(act.during)
        if op is None or during is None:
            continue
        if act.kind == "launch" and op.start < during.start:
            story = f"{op.label} starts before {during.label}, which launches it"
            yield Offence(story, (during.id, op.id), "time", "", op.start)
        elif act.kind == "wait" and is_host(act.lane) and during.end < op.end:
            then = after.get(during.id)  # a wait is a slice of its own, or has none
            if then is not None and then.start < op.end:
                story = f"{then.label} starts before the end of {op.label}, which it waits for"
                yield Offence(story, (op.id, then.id), "time", "", then.start)


# -- A step reads only KV that was computed, and only numbers that the host has written ------------

WRITTEN_FIRST = ("kv", "inputs", "pinned", "uva buffer")
"""Ends of the names of KV memory, and of the memory of the host that ops read."""


def find_unwritten_reads(trace: Trace) -> Iterator[Offence]:
    """Yield ops that read memory which was not written before, if the pool is empty at first.

    A read of other memory before its write is a race (``races.py``).
    """
    if not marks(trace, "kv pool"):
        return
    words, written = Words(trace), defaultdict[str, SpanMap](SpanMap)
    for done in order_of(trace).done:
        act = done.act
        if not act.resource.endswith(WRITTEN_FIRST) or act.kind not in ("read", "write"):
            continue
        log = written[act.resource]
        for first, last in spans_of(act.at):
            if act.kind == "write":
                log.put(first, last, done)
                continue
            missing = first
            for start, end, _ in log.over(first, last):
                if start > missing:
                    break
                missing = end + 1
            if missing <= last:
                what = words.cells(act.resource, str(missing))
                story = f"{words.who(act)} reads {what}, which was never written"
                yield Offence(story, (act.op,), "unwritten", act.rid)
