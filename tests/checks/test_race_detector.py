"""The race detector against brute force: every order in which a small program can happen.

Lanes only wait for one another, they never choose, so a program's states are tuples of places, and
visiting all that can be reached is visiting all interleavings. A program has a race where two
accesses to one cell, from two lanes and not both reads, may both happen next.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minisched.checks.history import VALUE, PlayedOrder
from minisched.checks.races import find_endless, find_pairs, find_races
from minisched.trace import Act, Trace
from minisched.trace.native import check_program
from tests.support import many

Lanes = dict[str, list[Act]]
Where = tuple[str, int, frozenset[str]]  # resource, cell, the two lanes

LANES = ("host", "worker thread", "forward")
KINDS = ("read", "read", "write", "write", "free")


@dataclass
class Found:
    races: set[Where] = field(default_factory=set)
    uses: set[tuple[str, int]] = field(default_factory=set)  # after a free: lane, place
    left: dict[str, int] = field(default_factory=dict)  # how many acts never happen


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
    names, found = list(lanes), Found()
    start = (tuple(0 for _ in names), frozenset[tuple[str, int]]())
    seen, todo, furthest = {start}, [start], start[0]
    while todo:
        places, freed = todo.pop()
        furthest = max(furthest, places, key=sum)
        done = [act for name, at in zip(names, places, strict=True) for act in lanes[name][:at]]
        launched = {act.op for act in done if act.kind == "launch"}
        ended, ready = {act.op for act in done if act.kind in ("end", "say")}, []
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
    never = [act for name, at in zip(names, furthest, strict=True) for act in lanes[name][at:]]
    found.left = dict(Counter(act.lane for act in never))
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


def by_detector(lanes: Lanes) -> Found:
    order, found = PlayedOrder([act for acts in lanes.values() for act in acts]), Found()
    for pair in find_pairs(order):
        first, second = pair.first, pair.second
        cells = [cell for start, end in pair.cells for cell in range(start, end + 1)]
        if pair.kind == "race":
            both = frozenset({first.act.lane, second.act.lane})
            found.races |= {(first.act.resource, cell, both) for cell in cells}
        else:
            found.uses.add((second.act.lane, second.moment - 1))
    found.left = {lane: len(acts) for lane, acts in order.stuck.items()}
    return found


def disagreement(lanes: Lanes) -> str:
    """Where the two differ, or nothing; of uses after free it tells all where nothing races."""
    truth, told = by_brute_force(lanes), by_detector(lanes)
    if told.races != truth.races:
        return f"races: told {told.races}, true {truth.races}"
    if not told.uses <= truth.uses or (not truth.races and told.uses != truth.uses):
        return f"uses after free: told {told.uses}, true {truth.uses}"
    return "" if told.left == truth.left else f"left: told {told.left}, true {truth.left}"


# -- programs ----------------------------------------------------------------------------------


def program(dice: random.Random) -> Lanes:
    """Lanes of acts, well formed: of ops 1 to 3, signals 11, 12 and from 21 on, and two cells.

    Most waits are for what was begun or said before; some are for what comes later, or never.
    """
    num_lanes = dice.choice((2, 3, 3))
    lanes: Lanes = {name: [] for name in LANES[:num_lanes]}
    launched, begun, said, edges = list[int](), list[int](), list[int](), 0
    for _ in range(dice.randrange(4, 18)):
        lane, what, which, how = (dice.randrange(most) for most in (3, 11, 6, 5))
        name = LANES[lane % num_lanes]
        acts, op, signal = lanes[name], which % 3 + 1, 11 + which % 2
        if what in (0, 1, 2):
            acts.append(touch(name, which, how))
        elif what == 3 and op not in launched:
            launched.append(op)
            launcher = LANES[lane % 2]
            lanes[launcher].append(Act(launcher, "launch", op))
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
        elif what == 10:  # cells change hands
            owners = (("free", "a"), ("write", "b"), ("read", "ab"[how % 2]))
            acts += [Act(name, kind, 0, "kv", str(which % 2), rid) for kind, rid in owners]
    return lanes


def touch(lane: str, which: int, how: int, op: int = 0) -> Act:
    at = ("0", "1", "0-1")[which % 3]
    return Act(lane, KINDS[how % len(KINDS)], op, "kv", at, ("", "a", "b", "a", "b", "a")[which])


def random_programs(count: int) -> Iterator[Lanes]:
    """The same each time: Hypothesis shrinks, but draws slowly."""
    dice = random.Random(7)
    return (program(dice) for _ in range(count))


def test_no_false_alarm_and_none_missed() -> None:
    """Nor does a verdict hang on the order of lanes in a file: one behind the other, or mixed."""
    kinds = Counter[str]()
    for lanes in random_programs(count := many(500, 4000)):
        assert disagreement(lanes) == "", lanes
        check_program([act for acts in lanes.values() for act in acts])
        found, order = (
            by_detector(lanes),
            PlayedOrder([act for acts in lanes.values() for act in acts]),
        )
        kinds["race" if found.races else "no race"] += 1
        kinds["stuck"] += bool(found.left)
        kinds["use after free"] += bool(found.uses)
        mixed = [done.act for done in order.done]
        mixed += [act for acts in order.stuck.values() for act in acts]
        backwards = [act for acts in reversed(lanes.values()) for act in acts]
        for acts in (mixed, backwards):
            trace = Trace("", "", "", "virtual", (), (), (), (), tuple(acts))
            assert bool(find_endless(trace)) == bool(found.left)
            assert any(race.kind == "race" for race in find_races(trace)) == bool(found.races)
    assert len(kinds) == 4 and min(kinds.values()) > count // 40, "each kind has to come up often"
