"""Programs written by hand, and what each must say; and what is put into any ordered program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.evidence import lacking
from minisched.checks.happens_before import waits_in_vain
from minisched.checks.races import examine, find_races, offence_of
from minisched.export.native import NotATrace, from_json, to_json
from minisched.export.native_program import check_program
from minisched.export.offence import draw
from minisched.export.offence_text import to_text as offence_text
from minisched.museum.patch import Edit
from minisched.trace import Act, Mark, Program, Slice, Touch, Trace
from tests.test_races import launched, made, op, traced

Write = Callable[[Program], Any]


def recorded(write: Write, marks: Iterable[Mark] = (), slices: Iterable[Slice] = ()) -> Trace:
    """A program as a device records it, in the order in which the host issued it."""
    ids = itertools.count(1)
    program = Program(lambda: next(ids))
    write(program)
    return made(program.acts, slices, marks)


def w(cells: str, resource: str = "kv", rid: str = "") -> Touch:
    return Touch("write", resource, cells, rid)


def r(cells: str, resource: str = "kv", rid: str = "") -> Touch:
    return Touch("read", resource, cells, rid)


# -- what each must say ----------------------------------------------------------------------------


def a_race(p: Program) -> None:
    p.launch("a", 1, (), [w("1")])
    p.launch("b", 2, (), [r("1")])


def freed(p: Program, rid: str = "") -> None:
    """Op 1 has written cell 1, and it is free by now."""
    p.launch("a", 1, (), [w("1", rid=rid)])
    p.wait(1)
    p.touch("free", "kv", [1], rid)


def read_behind_a_free(p: Program) -> None:
    freed(p)
    p.launch("a", 2, (), [r("1")])


def written_behind_a_free(p: Program) -> None:
    freed(p)
    p.launch("a", 2, (), [w("1")])


def written_by_the_next_owner(p: Program) -> None:
    freed(p, "r0")
    p.launch("a", 2, (), [w("1", rid="r1"), r("1", rid="r1")])


def written_by_the_old_owner(p: Program) -> None:
    freed(p, "r0")
    p.launch("a", 2, (), [w("1", rid="r0")])


def written_by_the_old_owner_though_another_has_it(p: Program) -> None:
    written_by_the_next_owner(p)
    p.launch("a", 3, (), [w("1", rid="r0")])


def read_by_the_old_owner_though_another_has_it(p: Program) -> None:
    written_by_the_next_owner(p)
    p.launch("a", 3, (), [r("1", rid="r0")])


def freed_twice(p: Program) -> None:
    freed(p)
    p.touch("free", "kv", [1])


def freed_once_more_with_what_was_in_use(p: Program) -> None:
    """A page of four cells of which two are used: it is freed as a whole each time."""
    for op_id in (1, 2):
        p.launch("a", op_id, (), [w("0-1")])
        p.wait(op_id)
        p.touch("free", "kv", range(4))


def wait_before_the_launch(p: Program) -> None:
    p.wait(2, "b")
    p.launch("a", 2, (), [w("1")])
    p.launch("b", 3, (), [r("1")])


def wait_before_the_launch_of_a_thread(p: Program) -> None:
    """A host waits until it is said: that is an order."""
    p.launch("a", 1, (), [w("1")])
    with p.acting("worker thread", 0):
        p.wait(7)
        p.touch("read", "kv", [1])
    p.wait(1)
    p.say(7)


def each_waits_for_the_other(p: Program) -> None:
    """No circle: when the first stream is told to wait, there is nothing to wait for."""
    p.wait(2, "a")
    p.launch("a", 1)
    p.wait(1, "b")
    p.launch("b", 2)


def host_waits_for_what_never_comes(p: Program) -> None:
    p.wait(9)
    p.launch("b", 3, (), [r("1")])


def weights(p: Program) -> None:
    p.launch("b", 3, (), [r("1", "weights")])


def read_of_what_nobody_wrote(p: Program) -> None:
    p.launch("a", 1, (), [w("0-2"), r("2-4")])
    p.launch("a", 2, (), [w("4")])


def three_readers(p: Program) -> None:
    p.launch("w", 1, (), [w("1")])
    for lane, op_id in (("a", 2), ("b", 3), ("c", 4)):
        p.wait(1, lane)
        p.launch(lane, op_id, (), [r("1")])
    p.wait(2, "w")
    p.wait(3, "w")
    p.launch("w", 5, (), [w("1")])


def an_old_event_of_the_stream(p: Program) -> None:
    p.launch("a", 1, (), [w("0")])
    p.launch("a", 2, (), [w("1")])
    p.wait(1, "b")
    p.launch("b", 3, (), [r("1")])


def pinned_memory_written_while_it_is_copied(p: Program) -> None:
    p.touch("write", "pinned", [1])
    p.launch("a", 1, (), [r("1", "pinned")])
    p.touch("write", "pinned", [1])


def a_launch_comes_behind_what_the_host_did(p: Program) -> None:
    p.touch("write", "pinned", [1])
    p.launch("a", 1, (), [r("1", "pinned")])


def other_memory(p: Program) -> None:
    p.launch("a", 1, (), [w("1", "kv0")])
    p.launch("b", 2, (), [r("1")])


def a_value_that_nobody_waits_for(p: Program) -> None:
    class Op:
        slice_id = 1

    p.launch("a", 1)
    p.launch("b", 2, (Op(),))


def both_into_the_dump(p: Program) -> None:
    p.launch("a", 1, (), [w("0", "future map")])
    p.launch("b", 2, (), [w("0", "future map")])


def unordered(where: str, touches: str, missing: str) -> str:
    return f"{where}: {touches}, and nothing orders the two: {missing}"


READ = unordered("KV slot 1", "op {} (b stream) reads what op {} (a stream) writes",
                 "op {} does not wait for op {}")  # fmt: skip
OWNER = (
    "KV slot 1: op {} (a stream; r0) {}s what the host (r0) frees before, and r0 has not got it "
)
VAIN = (
    "the {} stream: it is told to wait for op {} before that is launched, which is no order on a "
    "stream: op {} does not wait for op {}"
)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (a_race, [READ.format(2, 1, 2, 1)]),
        (read_behind_a_free, ["KV slot 1: op 2 (a stream) reads what the host frees before, and "
                              "nobody has written it since: a use after free"]),
        (written_behind_a_free, []),
        (written_by_the_next_owner, []),
        (written_by_the_old_owner, [OWNER.format(2, "write") + "back: a write after free"]),
        (written_by_the_old_owner_though_another_has_it,
         [OWNER.format(3, "write") + "back: a write after free"]),
        (read_by_the_old_owner_though_another_has_it,
         [OWNER.format(3, "read") + "back: a use after free"]),
        (freed_twice, ["KV slot 1: the host frees what the host frees before, and nobody has had "
                       "it since: a double free"]),
        (freed_once_more_with_what_was_in_use, []),
        (wait_before_the_launch, [VAIN.format("b", 2, 3, 2), READ.format(3, 2, 3, 2)]),
        (wait_before_the_launch_of_a_thread, []),
        (each_waits_for_the_other, [VAIN.format("a", 2, 1, 2)]),
        (host_waits_for_what_never_comes, []),
        (weights, []),
        (read_of_what_nobody_wrote,
         ["KV slots 3-4: op 1 (a stream) reads what nobody has written before"]),
        (three_readers, [unordered("KV slot 1", "op 5 (w stream) writes what op 4 (c stream) reads",
                                   "op 5 does not wait for op 4")]),
        (an_old_event_of_the_stream, [READ.format(3, 2, 3, 2)]),
        (pinned_memory_written_while_it_is_copied,
         [unordered("pinned cell 1", "the host writes what op 1 (a stream) reads",
                    "the host does not wait for op 1")]),
        (a_launch_comes_behind_what_the_host_did, []),
        (other_memory, []),
        (a_value_that_nobody_waits_for,
         [unordered("the value of op 1", "op 2 (b stream) reads what op 1 (a stream) writes",
                    "op 2 does not wait for op 1")]),
        (both_into_the_dump,
         [unordered("future slot 0", "op 2 (b stream) writes what op 1 (a stream) writes",
                    "op 2 does not wait for op 1")]),
    ],
)  # fmt: skip
def test_what_a_program_says(write: Write, says: list[str]) -> None:
    trace = recorded(write)
    found = examine(trace)
    assert [str(race) for race in found.races] == says
    assert bool(found.waits) == (write is host_waits_for_what_never_comes)
    check_program(trace.program)
    assert examine(from_json(to_json(trace))) == found, "a file says the same"


# -- who got it back -------------------------------------------------------------------------------

SLICES = [Slice(9, "host", "process", 50, 60, 1), Slice(2, "a", "forward", 90, 95, 2),
          Slice(8, "host", "launch", 80, 85, 2)]  # fmt: skip
POOL = Mark("kv pool", 0, {"page_size": 4})


def again(kind: str, rid: str, told_in: int = 8) -> list[Act]:
    """Cells 4-7 are written, freed in slice 9 and then touched by op 2; r0 frees, or is freed."""
    touched = [Act("a", kind, 2, "kv", "5", rid)]
    return [
        *launched(1), Act("host", "wait", 1), Act("host", "free", 9, "kv", "4-7", "r0"),
        Act("host", "launch", 2, during=told_in), *op("a", 1, ("write", "kv", "4-7")),
        Act("a", "begin", 2), *touched, Act("a", "end", 2),
    ]  # fmt: skip


def given_page(page: int, rid: str, time: int = 55) -> Mark:
    return Mark("page alloc", time, {"rid": rid, "row": 1, "pages": f"{page} 12"})


@pytest.mark.parametrize(
    ("mark", "told_in", "is_told"),
    [
        (POOL, 8, True),
        (given_page(1, "r0"), 8, False),
        (given_page(2, "r0"), 8, True),  # another page
        (given_page(1, "r1"), 8, True),  # to another one
        (given_page(1, "r0", 40), 8, True),  # before it was freed
        (given_page(1, "r0", 70), 7, True),  # the op was launched before it was given back
        (given_page(1, "r0", 99), 8, True),
    ],
)
def test_who_got_its_pages_back_may_write_them(mark: Mark, told_in: int, is_told: bool) -> None:
    """A request that was retracted, or came back under its id, is its own next owner."""
    slices = [*SLICES, Slice(7, "host", "launch", 1, 2, 1)]
    races = find_races(made(again("write", "r0", told_in), slices, [POOL, mark]))
    assert [race.kind for race in races] == ["write after free"] * is_told


def test_a_page_that_was_handed_out_and_never_used_may_be_freed_again() -> None:
    acts = [*again("write", "r0")[:4], Act("host", "free", 8, "kv", "4-7", "r1"),
            *op("a", 1, ("write", "kv", "4-7"))]  # fmt: skip
    for mark, kinds in ((given_page(1, "r1"), []), (given_page(2, "r1"), ["double free"])):
        found = find_races(made(acts, SLICES, [POOL, mark]))
        assert [race.kind for race in found] == kinds


def test_a_row_that_was_handed_out_and_never_used_may_be_freed_again() -> None:
    acts = [Act("host", "write", 9, "page table", "3"),
            *(Act("host", "free", 9, "page table", "3", rid) for rid in ("r0", "r1"))]  # fmt: skip
    for rid, kinds in (("r1", []), ("r2", ["double free"])):
        given = Mark("row alloc", 55, {"row": 1, "rid": rid})
        assert [race.kind for race in find_races(made(acts, SLICES, [given]))] == kinds


def test_who_got_a_row_may_share_pages_that_it_gave_up() -> None:
    """It finds its own prefix again, computed by another one in the meantime."""
    acts = [*again("write", "r1"), *launched(3), Act("a", "begin", 3),
            Act("a", "read", 3, "kv", "5", "r0"), Act("a", "end", 3)]  # fmt: skip
    given = [POOL, given_page(1, "r1"), Mark("row alloc", 70, {"row": 1, "rid": "r0"})]
    assert find_races(made(acts, SLICES, given)) == []
    [race] = find_races(made(acts, SLICES, given[:-1]))
    assert race.kind == "late read" and str(race).endswith(
        "r0 has not got it back: a use after free"
    )


# -- when a stream was told to wait ----------------------------------------------------------------


def test_where_lanes_stand_one_behind_the_other_every_wait_is_an_order() -> None:
    """Nothing is known then of when it was issued; so it is where lanes are sorted by time."""
    ordered = [*launched(2, 3), *op("a", 2, ("write", "kv", "1")),
               Act("b", "wait", 2), *op("b", 3, ("read", "kv", "1"))]  # fmt: skip
    for lanes in itertools.permutations(("host", "a", "b")):
        acts = [act for lane in lanes for act in ordered if act.lane == lane]
        assert waits_in_vain(acts) == {} and find_races(made(acts)) == []


def test_a_wait_with_nothing_behind_it_and_one_for_a_thread_are_not_in_vain() -> None:
    def write(p: Program) -> None:
        p.wait(2, "b")
        p.launch("a", 2)
        p.wait(5, "a")
        p.call(5)
        with p.inside("worker thread", 5):
            p.launch("a", 3)

    trace = recorded(write)
    assert waits_in_vain(trace.program) == {}


# -- any ordered program ---------------------------------------------------------------------------

STREAMS = ("forward", "copy", "upload")


@dataclass
class Owner:
    """Cells in somebody's hands: the op that last wrote them, and those that read them since."""

    rid: str
    written: int
    read: list[int] = field(default_factory=list)


class Ordered:
    """Issues ops as a scheduler does that forgets no wait; ``free`` is what anybody may have."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lane_of: dict[int, str] = {}
        self.owners: dict[int, Owner] = {}  # by cell
        self.free = list(range(4))
        self.rids = itertools.count()

    def run(self, lane: str, touches: Iterable[Touch], behind: Iterable[int]) -> int:
        """Launch an op on a stream that has waited for others."""
        for before in behind:
            self.program.wait(before, lane)
        number = self.program.new_id()
        self.lane_of[number] = lane
        self.program.launch(lane, number, (), touches)
        return number

    def take(self, lane: str) -> None:
        """A request gets a cell, and writes it: the host has waited for whom had it before."""
        if self.free:
            cell, rid = self.free.pop(0), f"r{next(self.rids)}"
            self.owners[cell] = Owner(rid, self.run(lane, [w(str(cell), rid=rid)], ()))

    def use(self, lane: str, which: int, is_read: bool) -> None:
        """It reads its cell, or writes it once more."""
        if cells := sorted(self.owners):
            owner = self.owners[cell := cells[which % len(cells)]]
            behind = [owner.written] if is_read else [owner.written, *owner.read]
            touch = (r if is_read else w)(str(cell), rid=owner.rid)
            number = self.run(lane, [touch], behind)
            if is_read:
                owner.read.append(number)
            else:
                owner.written, owner.read = number, []

    def give_back(self, which: int) -> None:
        """The host waits for all who use a cell, and frees it."""
        if cells := sorted(self.owners):
            owner = self.owners.pop(cell := cells[which % len(cells)])
            for number in (owner.written, *owner.read):
                self.program.wait(number)
            self.program.touch("free", "kv", [cell], owner.rid)
            self.free.append(cell)

    def in_vain(self, lane: str, which: int) -> None:
        """What orders nothing that has to be ordered: a wait for anybody, another's memory."""
        if self.lane_of:
            self.program.wait(sorted(self.lane_of)[which % len(self.lane_of)], lane)
        self.run(lane, [w(str(which), lane)], ())


Move = tuple[int, int, int]
moves = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 9)), max_size=30)


def ordered(p: Program, made_of: Iterable[Move]) -> Ordered:
    scheduler = Ordered(p)
    for what, lane, which in made_of:
        if what < 2:
            scheduler.take(STREAMS[lane])
        elif what < 5:
            scheduler.use(STREAMS[lane], which, is_read=what < 4)
        elif what == 5:
            scheduler.give_back(which)
        else:
            scheduler.in_vain(STREAMS[lane], which)
    return scheduler


@given(moves)
@settings(max_examples=200, deadline=None)
def test_an_ordered_program_is_clean_whatever_is_interleaved(made_of: list[Move]) -> None:
    found = examine(recorded(lambda p: ordered(p, made_of)))
    assert found.races == () == found.waits


def late_write(p: Program, at: Ordered, cell: int, rid: str) -> None:
    at.run("forward", [w(str(cell), rid=rid)], at.lane_of)


def late_read(p: Program, at: Ordered, cell: int, rid: str) -> None:
    at.run("forward", [w(str(cell), rid="next")], at.lane_of)
    at.run("copy", [r(str(cell), rid=rid)], at.lane_of)


def free_again(p: Program, at: Ordered, cell: int, rid: str) -> None:
    p.touch("free", "kv", [cell], "other")


def early_read(p: Program, at: Ordered, cell: int, rid: str) -> None:
    at.run("forward", [r("99")], at.lane_of)
    at.run("forward", [w("99")], at.lane_of)


def early_wait(p: Program, at: Ordered, cell: int, rid: str) -> None:
    number = p.new_id()
    p.wait(number, "copy")
    p.launch("forward", number, (), [w("98")])
    at.run("copy", [r("98")], ())


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (late_write, ["write after free"]),
        (late_read, ["late read"]),
        (free_again, ["double free"]),
        (early_read, ["unwritten"]),
        (early_wait, ["wait in vain", "race"]),
    ],
)
@given(made_of=moves)
@settings(max_examples=40, deadline=None)
def test_a_fault_is_told_wherever_it_is_put_in(
    fault: Callable[[Program, Ordered, int, str], None], kinds: list[str], made_of: list[Move]
) -> None:
    """And nothing else is: once, whatever went before."""

    def write(p: Program) -> None:
        scheduler = ordered(p, [*made_of, (0, 0, 0)])
        if not scheduler.owners:
            return
        cell = min(scheduler.owners)
        rid = scheduler.owners[cell].rid
        scheduler.give_back(0)
        fault(p, scheduler, cell, rid)

    races = find_races(recorded(write))
    assert [race.kind for race in races] == kinds
    assert all(race.count == 1 for race in races)


# -- whole runs, with a line of the engine changed -------------------------------------------------

FREED_TWICE = Edit(
    "worker.touches:Touches.follow",
    "        weakref.finalize(inputs, self.program.touch, *freed).atexit = False\n",
    "        for _ in range(2):\n"
    "            weakref.finalize(inputs, self.program.touch, *freed).atexit = False\n",
)
NEXT_SLOT = Edit(
    "relay.future_map:FutureMapRing.bind",
    "-row.lease.future_slot if",
    "-row.lease.future_slot - 7 if",
)


@pytest.mark.parametrize(
    ("edit", "kind", "says"),
    [
        (FREED_TWICE, "double free",
         r"the inputs of step 1: prepare of step 3 .* frees .* a double free; 7 such pairs"),
        (NEXT_SLOT, "unwritten",
         r"future slots? .*: forward of step \d \(forward stream; r0.*\) reads what nobody has .*"),
    ],
)  # fmt: skip
def test_a_changed_engine_is_seen_and_drawn(edit: Edit, kind: str, says: str) -> None:
    trace = traced("overlap", "ring", edit)
    races = [race for race in find_races(trace) if race.kind == kind]
    assert races and re.fullmatch(says, str(races[0])), races
    offence = offence_of(races[0], trace)
    assert offence.slices and offence.missing is None and not lacking("race", trace)
    assert " ".join(offence_text(trace, offence).split()).count("such pairs") <= 1
    for one in offence.slices:
        assert f'data-offence="{one}"' in draw(trace, offence)


def test_a_wait_in_vain_is_drawn_as_the_edge_that_it_should_have_been() -> None:
    slices = [Slice(2, "a", "forward", 5, 9, 1), Slice(3, "b", "copy", 6, 8, 1)]
    trace = recorded(wait_before_the_launch, slices=slices)
    vain, race = find_races(trace)
    assert str(vain) == (
        "the b stream: it is told to wait for forward of step 1 before that is launched, which is "
        "no order on a stream: copy of step 1 does not wait for forward of step 1"
    )
    for found in (vain, race):
        assert offence_of(found, trace).missing == (2, 3)


# -- cells that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cells", [[-1], [3, -1], range(-2, 2), [1.5], [1, 2.5], ["x"], [1, "x"], 5]
)
def test_a_program_refuses_cells_that_are_none(cells: Any) -> None:
    program = Program(lambda: 0)
    for act in (
        lambda: program.touch("write", "kv", cells),
        lambda: program.launch("forward", 1, (), [Touch("write", "kv", cells)]),
    ):
        with pytest.raises(
            ValueError, match=r"does a write of 'kv', but .* whole numbers from 0 on"
        ):
            act()


@pytest.mark.parametrize("at", ["-1", "x", "3-", "7-3", "3 2", "1.5", "2-4 3", "9" * 17])
def test_a_trace_with_cells_that_are_none_gets_one_sentence(at: str) -> None:
    """From whoever examines it, and from whoever reads it from a file."""
    trace = made([*launched(1), *op("a", 1, ("write", "kv", at))])
    with pytest.raises(ValueError) as said:
        examine(trace)
    assert re.fullmatch(r"the a stream writes cells of 'kv', but [^\n]*\.", str(said.value))
    with pytest.raises(
        NotATrace, match=r"program\[2\] has at = .*, but cells are written in order"
    ):
        from_json(to_json(trace))


@pytest.mark.parametrize("at", ['"-1"', '"7-3"', '"x"', "1.5", "-1", "[1]", "null"])
def test_a_file_with_cells_that_are_none_gets_one_sentence(
    at: str, tmp_path: Path, cli: Any
) -> None:
    path = tmp_path / "engine.json"
    text = to_json(made([*launched(1), *op("a", 1, ("write", "kv", "1"))]))
    path.write_text(text.replace('"at": "1"', f'"at": {at}'))
    code, out, err = cli(f"check {path}")
    said = " ".join(err.split())
    assert code == 2 and not out and "program[2] has at = " in said
    assert said.count(". ") == 0 and "Traceback" not in said


def test_nothing_of_this_hides_another_race() -> None:
    """One file may say all of it."""

    def write(p: Program) -> None:
        a_race(p)
        p.launch("c", 5, (), [w("7", "x", "r0")])
        p.wait(5)
        for _ in range(2):
            p.touch("free", "x", [7], "r0")
        p.launch("c", 6, (), [w("7", "x", "r0"), r("8", "x")])

    kinds = {race.kind for race in find_races(recorded(write))}
    assert kinds == {"race", "double free", "write after free", "unwritten"}
