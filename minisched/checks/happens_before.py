"""What comes before what in a program, whatever the clock says: Lamport's happens-before.

- A lane does one thing after the other;
- a launch comes before the op that it launches;
- an op's end, or what was said, comes before whatever follows on a lane that waited for it.

``Order`` plays a program once and notes, with each act, how far the other lanes surely were (a
vector clock). ``Past`` asks it who changed what an op reads.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..trace import Act, Slice, Trace
from ..trace.events import is_host
from ..trace.program import is_in

Clock = Mapping[str, int]  # by lane, the last of its moments that surely has been


class Done(NamedTuple):
    """An act that happened, ``at`` its place in the program and at a ``moment`` of its lane.

    ``clock`` is how far the other lanes surely were; ``launch`` is the launch of its op, if that
    touches anything.
    """

    at: int
    act: Act
    moment: int
    clock: Clock
    launch: Done | None = None

    @property
    def decided(self) -> Done:
        """Where it was launched, or did itself what nobody launches."""
        return self.launch or self

    def is_before(self, other: Done) -> bool:
        """Whether it surely comes before another one."""
        lane = self.act.lane
        known = other.moment if other.act.lane == lane else other.clock.get(lane, 0)
        return self.moment <= known and self is not other

    def is_decided_before(self, other: Done) -> bool | None:
        """Whether it was launched before another one, in any order of events; None: nobody says."""
        if self.decided.is_before(other.decided):
            return True
        return False if other.decided.is_before(self.decided) else None


class Order:
    """A program, played once in about the order of its slices.

    A lane's acts stay in its order. A begin comes after the op's launch, and a wait after the first
    end or say of what it waits for. Any other order that keeps to this would do as well: who comes
    before whom is not taken from it, but two acts that nothing orders are told as they came.

    ``done`` are the acts in that order, ``stuck`` is what each lane never gets to, and ``vain`` are
    the waits that order nothing, see ``waits_in_vain``: by their places, with the op behind them.
    """

    def __init__(self, program: Sequence[Act], slices: Iterable[Slice] = ()) -> None:
        self.done: list[Done] = []
        self.launched: dict[int, Done] = {}
        self.ended: dict[int, Done] = {}  # by op or signal; of a signal the first
        self.last: dict[str, Done] = {}  # of each lane
        self.vain = waits_in_vain(program)
        places: dict[str, list[int]] = {}
        for at, act in enumerate(program):
            places.setdefault(act.lane, []).append(at)
        times = {item.id: (item.start, item.end) for item in slices}
        is_hosts = {lane: is_host(lane) for lane in places}
        here = dict.fromkeys(places, 0)
        clocks: dict[str, Clock] = {lane: {} for lane in places}
        held: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        heap: list[tuple[int, int, str]] = []

        def push(lane: str, now: int) -> None:
            if here[lane] < len(places[lane]):
                at = places[lane][here[lane]]
                time = _time(program[at], is_hosts[lane], times)
                heapq.heappush(heap, (max(now, time), at, lane))

        for lane in places:
            push(lane, 0)
        while heap:
            now, at, lane = heapq.heappop(heap)
            act, giver = program[at], None
            kind, op = act.kind, act.op
            if kind == "begin" or (kind == "wait" and at not in self.vain):
                giver = (self.launched if kind == "begin" else self.ended).get(op)
                if giver is None:
                    held[kind == "begin", op].append(lane)
                    continue
                clocks[lane] = self.learned(act, clocks[lane], giver)
            here[lane] += 1
            launch = self.launched.get(op) if act.at or kind == "end" else None
            done = self.last[lane] = Done(at, act, here[lane], clocks[lane], launch)
            self.done.append(done)
            if kind == "launch" or kind in ("end", "say"):
                (self.launched if kind == "launch" else self.ended).setdefault(op, done)
                for other in held.pop((kind == "launch", op), ()):
                    push(other, now)
            push(lane, now)
        left = {lane: [program[at] for at in places[lane][here[lane] :]] for lane in places}
        self.stuck = {lane: acts for lane, acts in left.items() if acts}

    def learned(self, act: Act, clock: Clock, giver: Done) -> Clock:
        """What a lane knows once it has begun, or waited for, what ``giver`` launched or ended."""
        lane, known = giver.act.lane, dict(clock)
        if lane == act.lane or clock.get(lane, 0) >= giver.moment:
            return clock
        for other, moment in giver.clock.items():
            if moment > known.get(other, 0):
                known[other] = moment
        known[lane] = giver.moment
        return known


def _time(act: Act, is_hosts: bool, times: Mapping[int, tuple[int, int]]) -> int:
    """When an act happened: the host does things by the end of its slice, an op from its start."""
    is_between = act.kind in ("launch", "wait", "say")
    start, end = times.get(act.during if is_between else act.op, (0, 0))  # 0: with what came before
    return end if is_hosts or act.kind == "end" else start


def waits_in_vain(program: Sequence[Act]) -> dict[int, int]:
    """The waits of streams for ops that are launched only later: by place, the op behind each.

    A stream waits for what is launched when it is told to wait: ``cudaStreamWaitEvent`` with an
    event that is not recorded yet does nothing. A host that waits, or asks, does so until it is.
    When a stream was told is read off the program's order: before the next op on the stream was
    launched. Where that op stands before its own launch, lanes stand one behind the other, and
    nothing is known of when.
    """
    launched: dict[int, int] = {}
    early: set[int] = set()
    for at, act in enumerate(program):
        if act.kind == "launch":
            launched.setdefault(act.op, at)
        elif act.kind == "wait" and act.op not in launched and not is_host(act.lane):
            early.add(at)
    found: dict[int, int] = {}
    if not early:
        return found
    ran_on = {act.op: act.lane for act in program if act.kind == "begin"}
    behind: dict[str, tuple[int, int]] = {}  # by lane, place and op of its next begin
    for at in range(len(program) - 1, -1, -1):
        act = program[at]
        if act.kind == "begin":
            behind[act.lane] = at, act.op
        elif at in early and act.op in launched and not is_host(ran_on.get(act.op, "host")):
            begin, op = behind.get(act.lane, (0, 0))
            if at < launched.get(op, 0) < begin:
                found[at] = op
    return dict(sorted(found.items()))


class Past:
    """Who last changed what an op reads, and whether somebody changed it at the same time.

    Acts are named by their places in ``program``; ``order`` says when they happened.
    """

    def __init__(self, trace: Trace) -> None:
        self.program = trace.program
        played = Order(trace.program, trace.slices)
        self.ended = played.ended  # by op
        self.done = {done.at: done for done in played.done}
        self.order = {done.at: when for when, done in enumerate(played.done)}
        self.changes: defaultdict[str, list[Done]] = defaultdict(list)
        self.by_op: defaultdict[int, list[int]] = defaultdict(list)
        for done in played.done:
            if done.act.at:
                self.by_op[done.act.op].append(done.at)
            if done.act.kind in ("write", "free"):
                self.changes[done.act.resource].append(done)

    def newest(self, at: int, cells: Iterable[int]) -> dict[int, Done]:
        """By cell, the last write or free before the read at ``at``; a cell without is left out."""
        read, wanted = self.program[at], set(cells)
        found: dict[int, Done] = {}
        for change in reversed(self.changes[read.resource]):
            if self.order[change.at] < self.order[at]:
                for cell in [cell for cell in wanted if is_in(cell, change.act.at)]:
                    found[cell] = change
                    wanted.discard(cell)
        return found

    def meanwhile(self, at: int, cells: Iterable[int]) -> tuple[int, Done] | None:
        """A change that nothing orders against the read at ``at``, with the cell; or None."""
        read, wanted = self.program[at], set(cells)
        for change in self.changes[read.resource]:
            if change.act.lane != read.lane:
                for cell in sorted(cell for cell in wanted if is_in(cell, change.act.at)):
                    if self.is_unordered(at, change):
                        return cell, change
                    break
        return None

    def is_unordered(self, at: int, other: Done) -> bool:
        """Whether nothing says which of two acts comes first."""
        done = self.done[at]
        return not (done.is_before(other) or other.is_before(done)) and done is not other
