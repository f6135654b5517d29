"""Races: programs written by hand and what each says, and what is put into any ordered program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from minisched.checks.happens_before import waits_in_vain
from minisched.checks.races import Race, Words, examine, find_races
from minisched.export.native import from_json, to_json
from minisched.export.native_program import check_program
from minisched.trace import Act, Mark, Program, Slice, Touch, Trace
from minisched.trace.cells import cells_of

# -- programs in a few letters ---------------------------------------------------------------------
# ``a1:w3-9+20,r2@x`` launches op 1 on stream a, which writes KV slots and reads slot 2 for request
# x; ``a<1`` tells stream a to wait for op 1, ``<1`` lets the host wait; ``!f1@x`` is the host's own
# free. Other memory than KV is named: ``weights.r1``.


def made(acts: Iterable[Act], slices: Iterable[Slice] = (), marks: Iterable[Mark] = ()) -> Trace:
    return Trace("made", "none", "none", "wall", tuple(slices), (), (), tuple(marks), tuple(acts))


def touch_of(text: str) -> Touch:
    kinds = {"r": "read", "w": "write", "f": "free"}
    found = re.fullmatch(r"(?:([\w ]+)\.)?([rwf])([\d+-]+)(?:@(\w+))?", text)
    assert found, text
    resource, kind, cells, rid = found.groups("")
    return Touch(kinds[kind], resource or "kv", cells.replace("+", " "), rid)


def issue(p: Program, text: str) -> None:
    for word in text.split():
        if word[0] == "!":
            kind, resource, cells, rid = touch_of(word[1:])
            p.touch(kind, resource, cells_of(str(cells)), rid)
        elif "<" in word:
            lane, _, number = word.partition("<")
            p.wait(int(number), lane)
        else:
            head, _, touches = word.partition(":")
            p.launch(head[0], int(head[1:]), (), map(touch_of, filter(None, touches.split(","))))


def recorded(write: str | Callable[[Program], Any], slices: Iterable[Slice] = ()) -> Trace:
    """A program as a device records it, in the order in which the host issued it."""
    ids = itertools.count(1)
    program = Program(lambda: next(ids))
    issue(program, write) if isinstance(write, str) else write(program)
    return made(program.acts, slices)


def launched(*numbers: int) -> list[Act]:
    return [Act("host", "launch", number) for number in numbers]


def op(lane: str, number: int, *touches: tuple[str, str, str]) -> list[Act]:
    inside = [Act(lane, kind, number, resource, at) for kind, resource, at in touches]
    return [Act(lane, "begin", number), *inside, Act(lane, "end", number)]


FREED = "a1:w1 <1 !f1"
HANDED_ON = "a1:w1@x <1 !f1@x a2:w1@y,r1@y"
PROGRAMS: dict[str, list[tuple[str, str, tuple[int, int] | None]]] = {
    "a1:w1 b2:r1": [("race", "1", (1, 2))],
    "a1:w1 b<1 b2:r1": [],
    "!w0-40 a1:w3-9+20+30-31 b2:r0-4+8+31-40": [("race", "3-4 8 31", (1, 2))],
    f"{FREED} a2:w0-2,r0-2": [],
    f"{FREED} a2:r1": [("use after free", "1", None)],
    "a1:w0-7 <1 !f0-7 a2:w0-2,r0-7": [("use after free", "3-7", None)],
    "!w5 a1:r0-7 !f5": [("unwritten", "0-4 6-7", None), ("race", "5", None)],
    HANDED_ON: [],
    "a1:w1@x <1 !f1@x a2:w1@x": [("write after free", "1", None)],
    f"{HANDED_ON} a3:w1@x": [("write after free", "1", None)],
    f"{HANDED_ON} a3:r1@x": [("late read", "1", None)],
    f"{FREED} !f1": [("double free", "1", None)],
    "a1:w0-1 <1 !f0-3 a2:w0-1 <2 !f0-3": [],  # a page is freed whole, however much was used
    "b<2 a2:w1 b3:r1": [("wait in vain", "", (2, 3)), ("race", "1", (2, 3))],
    "a<2 a1 b<1 b2": [("wait in vain", "", (2, 1))],  # no circle: there was nothing to wait for
    "b3:weights.r1": [],  # nobody writes it, ever
    "a1:w0-2,r2-4 a2:w4": [("unwritten", "3-4", None)],
    "d1:w1 a<1 a2:r1 b<1 b3:r1 c<1 c4:r1 d<2 d<3 d5:w1": [("race", "1", (4, 5))],
    "a1:w0 a2:w1 b<1 b3:r1": [("race", "1", (2, 3))],  # an old event of the stream
    "!pinned.w1 a1:pinned.r1 !pinned.w1": [("race", "1", None)],
    "!pinned.w1 a1:pinned.r1": [],  # a launch comes behind what the host did
    "a1:kv0.w1 b2:r1": [],
    "a1 b2:value.r1": [("race", "1", (1, 2))],
    "a1 b<1 b2:value.r1": [],
    "a1:future_map.w0 b2:future_map.w0": [("race", "0", (1, 2))],
    "a1:o.w0,w0 b2:o.r0 c3:r0": [("race", "0", (1, 2)), ("race", "0", (1, 3))],
    "a1:w1 b2:r1 c5:x.w7@y <5 !x.f7@y !x.f7@y c6:x.w7@y,x.r8": [
        ("race", "1", (1, 2)),
        ("double free", "7", None),
        ("write after free", "7", None),
        ("unwritten", "8", None),
    ],
}


def fact(race: Race) -> tuple[str, str, tuple[int, int] | None]:
    return race.kind, race.cells, race.missing


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_a_program_says(text: str) -> None:
    trace = recorded(text)
    found = examine(trace)
    assert sorted(map(fact, found.races), key=str) == sorted(PROGRAMS[text], key=str)
    assert not found.waits
    check_program(trace.program)
    assert examine(from_json(to_json(trace))) == found, "a file says the same"


NEVER: list[tuple[list[Act], tuple[str, ...], tuple[int, ...], int]] = [
    ([*launched(1), Act("a", "wait", 7), *op("a", 1, ("write", "kv", "0"))], ("a",), (7,), 4),
    ([*launched(1, 2), Act("a", "wait", 2), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
     ("a", "b"), (2, 1), 6),
    ([*launched(1, 2), Act("a", "wait", 7), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
     ("a", "b"), (7,), 6),
    ([Act("host", "wait", 2), *launched(2), *op("a", 2)], ("a", "host"), (2, 2), 4),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "lanes", "ops", "unreached"), NEVER)
def test_what_waits_for_ever_is_told(
    acts: list[Act], lanes: tuple[str, ...], ops: tuple[int, ...], unreached: int
) -> None:
    """Lanes in a circle, or one that nobody will wake; and those behind."""
    [found] = examine(made(acts)).waits
    assert (found.lanes, found.ops, found.unreached) == (lanes, ops, unreached)


CELLS = [
    ("kv", "17"), ("kv", "3-7 9"), ("kv", "1 3 5 7 9 11"), ("prefill kv", "3"), ("future map", "3"),
    ("page table", "128-131"), ("page table", "60-70"), ("token pool", "131"),
    ("token pool", "131-133"), ("token pool", "60-70"), ("token pool", "3 5 9-12 14"),
    ("host output 1", "0-1"), ("output 0", "0"), ("inputs", "4"), ("value", "8"), ("a mask", "0"),
]  # fmt: skip


def test_the_words(golden: Callable[[str, str], None]) -> None:
    marks = [Mark("row length", 0, {"page table": 64, "token pool": 64})]
    words = Words(made([], [Slice(8, "forward", "sample", 0, 1, 3)], marks))
    lines = [f"{resource} {at}: {words.cells(resource, at)}" for resource, at in CELLS]
    for text in PROGRAMS:
        lines += ["", text, *(f"  {race}" for race in examine(recorded(text)).races)]
    for acts, *_ in NEVER:
        lines += ["", *(str(found) for found in examine(made(acts)).waits)]
    golden("races.txt", "\n".join(lines) + "\n")


def test_what_one_missing_edge_explains_is_told_with_it() -> None:
    """The copy does not wait for the sampling, and the host, which waits for the copy, frees."""
    text = "a1:inputs.r4,w0,output.w0 b2:output.r0 <2 !f0 !inputs.f4"
    [race] = find_races(recorded("!inputs.w4 " + text))
    assert race.missing == (1, 2) and race.also == ("KV slot 0", "the inputs of step 4")


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_free_comes_behind_every_use_also_of_a_later_step(kind: str) -> None:
    """One edge, before the first of the frees that the host does in one go."""
    touches = [("write", "page table", "0-3"), (kind, "kv", "7")]
    slices = [Slice(9, "host", "process", 8, 9, 13), Slice(1, "a", "forward", 5, 20, 14)]
    frees = [Act("host", "free", 9, "kv", "7"), Act("host", "free", 9, "page table", "0-3")]
    [race] = find_races(made([*launched(1), *frees, *op("a", 1, *touches)], slices))
    assert (race.first.kind, race.second.kind, race.missing) == (kind, "free", (1, 9))
    assert race.also == ("page table cells 0-3",)
    cured = [*launched(1), Act("host", "wait", 1), *frees, *op("a", 1, *touches)]
    assert find_races(made(cured, slices)) == []


def test_the_frees_that_the_host_does_in_one_go_wait_together() -> None:
    """The row's edge, which is missing twice, would order the slot as well, freed just before."""
    acts, slices = list[Act](), list[Slice]()
    for step, touches in ((1, [("write", "kv", "1")]), (2, [])):
        row, process = str(step), 9 * step
        slices += [Slice(process, "host", "process", 8 * step, 9 * step, step),
                   Slice(step, "a", "forward", 8 * step, 9 * step, step + 1)]  # fmt: skip
        acts += launched(step)
        acts += [Act("host", "free", process, name, row) for name in ("kv", "page table")]
        acts += op("a", step, ("write", "page table", row), *touches)
    [race] = find_races(made(acts, slices))
    assert (race.resource, race.count, race.also) == ("page table", 2, ("KV slot 1",))


def test_who_writes_and_was_launched_behind_the_free_is_the_next_owner() -> None:
    """A thread frees in a call; the host queues the call first, and then the next owner's write."""
    acts = [*launched(1, 2), *op("worker thread", 1, ("free", "kv", "5")),
            *op("a", 2, ("write", "kv", "5"))]  # fmt: skip
    [race] = find_races(made(acts))
    assert race.missing == (1, 2) and race.first.kind == "free"


def test_a_race_reads_the_same_whoever_came_first_this_time() -> None:
    early = [Slice(1, "a", "sample", 10, 12, 3), Slice(2, "b", "copy", 1, 2, 3)]
    late = [Slice(1, "a", "sample", 10, 12, 3), Slice(2, "b", "copy", 20, 22, 3)]
    acts = [*launched(1, 2), *op("b", 2, ("read", "kv", "0")), *op("a", 1, ("write", "kv", "0"))]
    told = [race for slices in (early, late) for race in find_races(made(acts, slices))]
    assert str(told[0]) == str(told[1]) and told[0].missing == (1, 2)


def test_a_gigabyte_is_one_span_and_nobody_counts_its_bytes() -> None:
    words = (f"{'ab'[step % 2]}{step}:memory.w0-{1 << 30}" for step in range(1, 101))
    races = find_races(recorded(" ".join(words)))
    counts = {(race.first.lane, race.second.lane): race.count for race in races}
    assert counts == {("b", "a"): 50, ("a", "b"): 49}


# -- when a stream was told to wait ----------------------------------------------------------------


def test_where_lanes_stand_one_behind_the_other_every_wait_is_an_order() -> None:
    """Nothing is known then of when it was issued; so it is where lanes are sorted by time."""
    ordered = [*launched(2, 3), *op("a", 2, ("write", "kv", "1")),
               Act("b", "wait", 2), *op("b", 3, ("read", "kv", "1"))]  # fmt: skip
    for lanes in itertools.permutations(("host", "a", "b")):
        acts = [act for lane in lanes for act in ordered if act.lane == lane]
        assert waits_in_vain(acts) == {} and find_races(made(acts)) == []


def test_a_host_waits_until_it_is_said() -> None:
    """So does its thread; and a wait with nothing behind it is not in vain."""

    def threads(p: Program) -> None:
        issue(p, "a1:w1")
        with p.acting("worker thread", 0):
            issue(p, "<7 !r1")
        p.wait(1)
        p.say(7)
        issue(p, "b<2 a2 a<5")
        p.call(5)
        with p.inside("worker thread", 5):
            p.launch("a", 3)

    trace = recorded(threads)
    assert waits_in_vain(trace.program) == {} and find_races(trace) == []


# -- who got it back -------------------------------------------------------------------------------

SLICES = [Slice(9, "host", "process", 50, 60, 1), Slice(2, "a", "forward", 90, 95, 2),
          Slice(8, "host", "launch", 80, 85, 2), Slice(7, "host", "launch", 1, 2, 1)]  # fmt: skip
POOL = Mark("kv pool", 0, {"page_size": 4})
GONE = [*launched(1), Act("host", "wait", 1), Act("host", "free", 9, "kv", "4-7", "r0")]
WRITTEN = op("a", 1, ("write", "kv", "4-7"))


def again(told_in: int, rid: str = "r0") -> list[Act]:
    """Cells 4-7 are written, freed in slice 9 as r0's, and then written by op 2."""
    launch = Act("host", "launch", 2, during=told_in)
    late = [Act("a", "begin", 2), Act("a", "write", 2, "kv", "5", rid), Act("a", "end", 2)]
    return [*GONE, launch, *WRITTEN, *late]


def given_page(page: int, rid: str, time: int = 55) -> Mark:
    return Mark("page alloc", time, {"rid": rid, "row": 1, "pages": f"{page} 12"})


ROW = [Act("host", "write", 9, "page table", "3"),
       *(Act("host", "free", 9, "page table", "3", rid) for rid in ("r0", "r1"))]  # fmt: skip
TWICE = [*GONE, Act("host", "free", 8, "kv", "4-7", "r1"), *WRITTEN]
SHARED = [*again(8, "r1"), *launched(3), Act("a", "begin", 3),
          Act("a", "read", 3, "kv", "5", "r0"), Act("a", "end", 3)]  # fmt: skip


@pytest.mark.parametrize(
    ("acts", "marks", "kinds"),
    [
        (again(8), [], ["write after free"]),
        (again(8), [given_page(1, "r0")], []),
        (again(8), [given_page(2, "r0")], ["write after free"]),  # another page
        (again(8), [given_page(1, "r1")], ["write after free"]),  # to another one
        (again(8), [given_page(1, "r0", 40)], ["write after free"]),  # before it was freed
        (again(7), [given_page(1, "r0", 70)], ["write after free"]),  # launched before
        (again(8), [given_page(1, "r0", 99)], ["write after free"]),
        (TWICE, [given_page(1, "r1")], []),  # handed out, and never used
        (TWICE, [given_page(2, "r1")], ["double free"]),
        (ROW, [Mark("row alloc", 55, {"row": 1, "rid": "r1"})], []),
        (ROW, [Mark("row alloc", 55, {"row": 1, "rid": "r2"})], ["double free"]),
        # who got a row finds its own prefix again, computed by another one in the meantime
        (SHARED, [given_page(1, "r1"), Mark("row alloc", 70, {"row": 1, "rid": "r0"})], []),
        (SHARED, [given_page(1, "r1")], ["late read"]),
    ],
)  # fmt: skip
def test_who_got_it_back_may_touch_it(
    acts: list[Act], marks: Sequence[Mark], kinds: list[str]
) -> None:
    races = find_races(made(acts, SLICES, [POOL, *marks]))
    assert [race.kind for race in races] == kinds


# -- any ordered program ---------------------------------------------------------------------------
