"""The race detector against brute force: every order in which a small program can happen.

Lanes only wait for one another, they never choose, so what may happen next depends on how far each
lane is and on nothing else. The states of a program are therefore tuples of places, and visiting
all that can be reached is visiting all interleavings. A program has a race where two accesses to
one cell, from two lanes and not both reads, may both happen next: then they stand next to each
other in one interleaving, either way round.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.races.act_order import in_order
from minisched.checks.races.detector import VALUE, Detector
from minisched.checks.races import examine
from minisched.checks.races.vector_clock import VectorClock
from minisched.export.native_program import check_program
from minisched.trace import Act, Trace

Lanes = dict[str, list[Act]]
Where = tuple[str, int, frozenset[str]]  # resource, cell, the two lanes

LANES = ("host", "copy", "forward")
KINDS = ("read", "read", "write", "write", "free")


@dataclass
class Found:
    """``races``: which lanes race for which cell; ``left``: how many acts never happen."""

    races: set[Where] = field(default_factory=set)
    uses: set[tuple[str, int]] = field(default_factory=set)  # reads behind a free: lane, place
    left: dict[str, int] = field(default_factory=dict)


# -- every interleaving ------------------------------------------------------------------------


def access(act: Act) -> tuple[str, str, set[int]] | None:
    """Kind, resource and cells of what an act touches; an op's end writes its value."""
    if act.kind == "end":
        return "write", VALUE, {act.op}
    if not act.at:
        return None
    first, _, last = act.at.partition("-")
    return act.kind, act.resource, set(range(int(first), int(last or first) + 1))


def by_brute_force(lanes: Lanes) -> Found:
    """Visit every state that the lanes can get to."""
    names, found = list(lanes), Found()
    start = (tuple(0 for _ in names), frozenset[tuple[str, int]]())
    seen, todo, furthest = {start}, [start], start[0]
    while todo:
        places, freed = todo.pop()
        furthest = max(furthest, places, key=sum)
        done = [act for name, at in zip(names, places, strict=True) for act in lanes[name][:at]]
        launched = {act.op for act in done if act.kind == "launch"}
        ended = {act.op for act in done if act.kind in ("end", "say")}
        ready = []
        for lane, at in enumerate(places):
            for act in lanes[names[lane]][at : at + 1]:
                needs = {"begin": launched, "wait": ended}.get(act.kind)
                if needs is None or act.op in needs:
                    ready.append((lane, act))
        look_for_races([act for _, act in ready], found)
        for lane, act in ready:
            now = freed
            if touched := access(act):
                kind, resource, numbers = touched
                cells = {(resource, cell) for cell in numbers}
                if kind == "read" and cells & freed:
                    found.uses.add((names[lane], places[lane]))
                now = {"free": freed | cells, "write": freed - cells}.get(kind, freed)
            after = (*places[:lane], places[lane] + 1, *places[lane + 1 :]), now
            if after not in seen:
                seen.add(after)
                todo.append(after)
    found.left = {
        name: len(lanes[name]) - at
        for name, at in zip(names, furthest, strict=True)
        if at < len(lanes[name])
    }
    return found


def look_for_races(ready: Sequence[Act], found: Found) -> None:
    for at, one in enumerate(ready):
        for other in ready[at + 1 :]:
            a, b = access(one), access(other)
            if a and b and a[1] == b[1] and {a[0], b[0]} != {"read"}:
                found.races |= {
                    (a[1], cell, frozenset({one.lane, other.lane})) for cell in a[2] & b[2]
                }


# -- the detector ------------------------------------------------------------------------------


def by_detector(lanes: Lanes, kind: type[Detector] = Detector) -> Found:
    """What vector clocks say of the same program."""
    acts = [act for acts in lanes.values() for act in acts]
    order, detector, found = in_order(acts), kind(acts), Found()
    place: defaultdict[str, int] = defaultdict(int)
    moments: dict[tuple[str, int], int] = {}
    for act in order.acts:
        detector.take(act)
        moments[act.lane, detector.clocks[act.lane][act.lane]] = place[act.lane]
        place[act.lane] += 1
    for pair in detector.pairs:
        first, second = pair.first, pair.second
        if pair.kind == "race":
            found.races |= {
                (first.act.resource, cell, frozenset({first.act.lane, second.act.lane}))
                for start, end in pair.cells
                for cell in range(start, end + 1)
            }
        else:
            found.uses.add((second.act.lane, moments[second.act.lane, second.moment]))
    found.left = {lane: len(acts) for lane, acts in order.stuck.items()}
    return found


def disagreement(lanes: Lanes, kind: type[Detector] = Detector) -> str:
    """Where the two differ, or nothing.

    A use after free that the detector tells of happens in some interleaving; where nothing races,
    it tells of all.
    """
    truth, told = by_brute_force(lanes), by_detector(lanes, kind)
    if told.races != truth.races:
        return f"races: told {told.races}, true {truth.races}"
    if not told.uses <= truth.uses or (not truth.races and told.uses != truth.uses):
        return f"uses after free: told {told.uses}, true {truth.uses}"
    return "" if told.left == truth.left else f"left: told {told.left}, true {truth.left}"


# -- programs ----------------------------------------------------------------------------------

Event = tuple[int, int, int, int]  # lane, what, which, how


def program(events: Sequence[Event], num_lanes: int) -> Lanes:
    """Lanes out of numbers: any numbers make a program that is well formed.

    Ops are 1 to 3, signals 11, 12 and from 21 on, and there are two cells. Most waits are for what
    was begun or said before; some are for what comes later, perhaps in a circle, or never.
    """
    lanes: Lanes = {name: [] for name in LANES[:num_lanes]}
    launched: list[int] = []
    begun: list[int] = []
    said: list[int] = []
    edges = 0
    for lane, what, which, how in events:
        name = LANES[lane % num_lanes]
        acts, op, signal = lanes[name], which % 3 + 1, 11 + which % 2
        if what in (0, 1, 2):
            acts.append(touch(name, which, how))
        elif what == 3 and op not in launched:
            launched.append(op)
            acts.append(Act(name, "launch", op))
        elif what in (4, 5) and (left := [op for op in launched if op not in begun]):
            begun.append(left[0])
            inside = [touch(name, how, how + which, left[0])] if how else []
            acts += [Act(name, "begin", left[0]), *inside, Act(name, "end", left[0])]
        elif what == 6:
            known = [*said, *begun] if how < 4 else [1, 2, 11, 12, 99]
            acts += [Act(name, "wait", known[-1 - which % len(known)])] if known else []
        elif what == 7 and signal not in said:
            said.append(signal)
            acts.append(Act(name, "say", signal))
        elif what == 8:  # an edge from here to another lane
            other = LANES[(lane + 1 + which % (num_lanes - 1)) % num_lanes]
            edges += 1
            acts.append(Act(name, "say", 20 + edges))
            lanes[other].append(Act(other, "wait", 20 + edges))
        elif what == 9:
            acts.append(Act(name, "read", op, VALUE, str(op)))
    return lanes


def touch(lane: str, which: int, how: int, op: int = 0) -> Act:
    at = ("0", "1", "0-1")[which % 3]
    return Act(lane, KINDS[how % len(KINDS)], op, "kv", at)


events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 5), st.integers(0, 4)),
    min_size=3,
    max_size=16,
)


def random_programs(count: int) -> Iterator[Lanes]:
    """Many programs, the same each time: Hypothesis shrinks, but draws slowly."""
    dice = random.Random(7)
    for _ in range(count):
        yield program(
            [(dice.randrange(3), dice.randrange(10), dice.randrange(6), dice.randrange(5))
             for _ in range(dice.randrange(4, 18))],
            dice.choice((2, 3, 3)),
        )  # fmt: skip


@given(events=events, num_lanes=st.integers(2, 3))
@settings(max_examples=250, deadline=None)
def test_the_detector_says_what_brute_force_says(events: list[Event], num_lanes: int) -> None:
    lanes = program(events, num_lanes)
    check_program([act for acts in lanes.values() for act in acts])
    assert disagreement(lanes) == ""


def test_no_false_alarm_and_none_missed_in_thousands_of_programs() -> None:
    """With and without races, with waits that never end, and with uses after a free."""
    kinds: defaultdict[str, int] = defaultdict(int)
    for lanes in random_programs(3000):
        assert disagreement(lanes) == "", lanes
        found = by_detector(lanes)
        kinds["race" if found.races else "no race"] += 1
        kinds["stuck"] += bool(found.left)
        kinds["use after free"] += bool(found.uses)
        kinds["ordered across lanes"] += not found.races and crosses(lanes)
    assert min(kinds.values()) > 100, "each kind has to come up often"
    assert len(kinds) == 5


def crosses(lanes: Lanes) -> bool:
    """Whether two lanes touch one cell in a way that had to be ordered."""
    touched = [(lane, found) for lane, acts in lanes.items() for act in acts
               if (found := access(act))]  # fmt: skip
    return any(
        a != b and one[1] == other[1] and one[2] & other[2] and {one[0], other[0]} != {"read"}
        for a, one in touched
        for b, other in touched
    )


@given(events=events, num_lanes=st.integers(2, 3))
@settings(max_examples=150, deadline=None)
def test_the_order_in_a_file_changes_no_verdict(events: list[Event], num_lanes: int) -> None:
    """Lanes may stand one behind the other, or mixed in any way that keeps to each one's order."""
    lanes = program(events, num_lanes)
    mixed = [act for some in zip_all(list(lanes.values())) for act in some]
    backwards = [act for acts in reversed(lanes.values()) for act in acts]
    told = by_detector(lanes).races
    for acts in (mixed, backwards):
        found = examine(Trace("", "", "", "virtual", (), (), (), (), tuple(acts)))
        assert bool(found.waits) == bool(by_detector(lanes).left)
        assert bool([race for race in found.races if race.kind == "race"]) == bool(told)


def zip_all(lines: list[list[Act]]) -> list[list[Act]]:
    longest = max((len(line) for line in lines), default=0)
    return [[line[at] for line in lines if at < len(line)] for at in range(longest)]


# -- the law can fail --------------------------------------------------------------------------


class NoJoin(Detector):
    """A wait orders nothing."""

    def take(self, act: Act) -> None:
        super().take(Act(act.lane, "none", act.op) if act.kind == "wait" else act)


class NoLaunchEdge(Detector):
    """What was done before a launch does not come before the op."""

    def take(self, act: Act) -> None:
        super().take(Act(act.lane, "none", act.op) if act.kind == "begin" else act)


class ReadsForgotten(Detector):
    """A write behind a read is no conflict."""

    def take(self, act: Act) -> None:
        super().take(act)
        for memory in self.memory.values():
            for key in [key for key in memory.logs if key[1]]:
                del memory.logs[key]


class WritesAlone(Detector):
    """Two writes are no conflict, as if only readers were hurt."""

    def _found(self, kind: str, first: Any, second: Any, cells: Any) -> None:
        if {first.act.kind, second.act.kind} != {"write"}:
            super()._found(kind, first, second, cells)


class FreesForgotten(Detector):
    """Nobody remembers what was freed."""

    def _look_at_frees(self, access: Any, memory: Any) -> None:
        pass


class NotPassedOn(Detector):
    """Whoever waits knows how far that one is, and not whom that one had waited for itself."""

    def take(self, act: Act) -> None:
        super().take(act)
        if act.kind in ("end", "say"):
            own = {act.lane: self.clocks[act.lane][act.lane]}
            self.ended[act.op] = VectorClock(own)


def test_what_is_old_is_folded_and_forgotten_without_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minisched.checks.races.access_log.RECENT", 1)
    assert not any(map(disagreement, random_programs(800)))


@pytest.mark.parametrize(
    "broken", [NoJoin, NoLaunchEdge, NotPassedOn, ReadsForgotten, WritesAlone, FreesForgotten]
)
def test_a_broken_detector_is_found_out(broken: type[Detector]) -> None:
    assert any(disagreement(lanes, broken) for lanes in random_programs(1500))
