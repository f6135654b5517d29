"""A possible order of all that the lanes of a run did, and what of it can never happen."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...trace import Act, Slice
from ...trace.lanes import is_host


@dataclass
class Ordered:
    """``acts``: each after what it waits for; ``stuck``: what each lane never gets to."""

    acts: list[Act] = field(default_factory=list)
    stuck: dict[str, list[Act]] = field(default_factory=dict)


class _Line:
    """One lane's acts, and how far it is. ``now`` is a time in nanoseconds, as well as is known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acts: list[tuple[int, Act]] = []  # with their places in the program
        self.at = 0
        self.now = 0


def in_order(program: Iterable[Act], slices: Iterable[Slice] = ()) -> Ordered:
    """Acts in about the order in which they happened this time, as far as the slices tell.

    A lane's acts stay in its order. A begin comes after the op's launch, and a wait after the first
    end or say of what it waits for. Any other order that keeps to this would do as well: who comes
    before whom is not taken from it, but two acts that nothing orders are told as they came.
    """
    lines: dict[str, _Line] = {}
    for place, act in enumerate(program):
        lines.setdefault(act.lane, _Line(act.lane)).acts.append((place, act))
    times = {item.id: (item.start, item.end) for item in slices}
    happened: set[tuple[str, int]] = set()  # launches and ends, by op
    held: defaultdict[tuple[str, int], list[_Line]] = defaultdict(list)
    heap: list[tuple[int, int, str]] = []
    done = Ordered()

    def push(line: _Line, now: int) -> None:
        if line.at < len(line.acts):
            place, act = line.acts[line.at]
            line.now = max(line.now, now, _time(act, times))
            heapq.heappush(heap, (line.now, place, line.name))

    for line in lines.values():
        push(line, 0)
    while heap:
        now, _, name = heapq.heappop(heap)
        line = lines[name]
        _, act = line.acts[line.at]
        if (needs := needed_by(act)) and needs not in happened:
            held[needs].append(line)
            continue
        done.acts.append(act)
        line.at += 1
        if gives := _given_by(act):
            happened.add(gives)
            for other in held.pop(gives, ()):
                push(other, now)
        push(line, now)
    done.stuck = {
        line.name: [act for _, act in line.acts[line.at :]]
        for line in lines.values()
        if line.at < len(line.acts)
    }
    return done


def needed_by(act: Act) -> tuple[str, int] | None:
    """What has to have happened before an act, if anything: ``("launch", op)``, ``("end", op)``."""
    return {"begin": ("launch", act.op), "wait": ("end", act.op)}.get(act.kind)


def _given_by(act: Act) -> tuple[str, int] | None:
    if act.kind == "launch":
        return "launch", act.op
    return ("end", act.op) if act.kind in ("end", "say") else None


def _time(act: Act, times: dict[int, tuple[int, int]]) -> int:
    """When an act happened: the host does things by the end of its slice, an op from its start."""
    is_between = act.kind in ("launch", "wait", "say")
    start, end = times.get(act.during if is_between else act.op, (0, 0))  # 0: with what came before
    return end if act.kind == "end" or is_host(act.lane) else start
