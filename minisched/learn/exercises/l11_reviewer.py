"""Lesson 11, you are the reviewer: what comes before what, races, and three traces with a bug."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, permutations, product
from random import Random
from typing import Any

from ...checks.draw import draw, read_design
from ...checks.history import PlayedOrder, many, order_of
from ...checks.judge import judge
from ...export.notebook import NotebookPicture
from ...museum import find
from ...trace import Act, Edge, Trace
from ...trace.cells import spans_of
from ...trace.events import lane_words
from ..exercise import Exercise, Pure
from ..guard import unwatched
from ..outputs import Table
from ..runs import Box, boxes, timing

Step = tuple[str, str, Any]  # a lane, what it did, and to which op, or to which cells of memory
TOUCHES = ("read", "write", "free")
MOST = 120  # acts of a program that are looked at

# -- Runs with a bug that was published, put back into the package

REVIEWED = {"A": "finalized_first", "B": "mlx_old_token", "C": "pinned_buffer_rewritten"}
GUILTY = {
    "A": set(product(("wait", "process", "output"), (1, 2))),
    "B": set(product(("prepare", "launch", "forward"), (3, 4))),
    "C": {("upload", 1), ("prepare", 2)},
}
"""The slices that break the law: the host waits for a step, processes it and sends its tokens, all
before the next launch; a step takes an old token; the buffer's reader, and its next writer."""
FOLLOWS = {
    "A": {(name, 2): "comes too late. Which slice made it late?" for name in ("launch", "forward")},
    "B": {
        **dict.fromkeys(product(("sample", "copy", "process", "output"), (3, 4)),
                        "only follows from a wrong input. Which slice took that input?"),
        ("sample", 2): "left the right token. Which slice did not take it?",
    },
    "C": {},
}  # fmt: skip
"""Slices that do nothing wrong themselves, and a question that leads on."""


@cache
def trace_of_bug(name: str) -> Trace:
    """The trace of a bug of the museum, by its name or by its letter in lesson 11.

    Raises:
        ValueError: there is none of that name.
    """
    bug = find(REVIEWED.get(name, name))
    if bug.is_refuted:
        raise ValueError(f"{name!r} is a suspicion that did not hold: it has no run with a bug.")
    return bug.with_bug().trace


def step_of(act: Act) -> Step:
    """Return an act of a lane in the learner's form."""
    if not act.resource:
        return act.lane, act.kind, act.op
    cells = {cell for first, last in spans_of(act.at) for cell in range(first, last + 1)}
    return act.lane, act.kind, (act.resource, tuple(sorted(cells)))


def act_of(step: Step) -> Act:
    """Return a learner's step as the act of a program."""
    lane, kind, what = step
    if isinstance(what, int):
        return Act(lane, kind, what)
    memory, cells = what
    return Act(lane, kind, 0, memory, " ".join(map(str, cells)))


def acts(trace: Trace) -> list[tuple[str, str, Any]]:
    """Everything that the lanes of a run did, in an order that happened."""
    return [step_of(done.act) for done in order_of(trace).done]


def touches(trace: Trace, memory: str) -> Table:
    """Return the reads and writes of some memory with their slices, in an order that happened."""
    by_id = {item.id: item for item in trace.slices}
    rows = [
        (
            str(at),
            lane_words(done.act.lane),
            f"{during.name} {during.step}",
            done.act.kind,
            done.act.at,
        )
        for at, done in enumerate(order_of(trace).done)
        if done.act.resource == memory and (during := by_id.get(done.act.op)) and during.step
    ]
    return Table(("act", "lane", "in", "does", f"{memory} cells"), tuple(rows))


EXAMPLE: tuple[Step, ...] = (
    ("host", "launch", 1), ("host", "launch", 2), ("forward", "begin", 1), ("forward", "end", 1),
    ("copy", "wait", 1), ("copy", "begin", 2), ("copy", "end", 2), ("host", "wait", 2),
)  # fmt: skip
"""A forward pass, and the copy of its token, which waits for it: one step of lesson 1."""
EXAMPLE_LANES = ("host", "forward", "copy")


def clocks_of_example() -> Table:
    """Return the acts of the example with their vector clocks, and the act from which each learns.

    A clock is that of the act before it on its lane, merged with that other one, plus one.
    """
    rows, clocks = [], clocks_of(list(EXAMPLE))
    for at, ((lane, kind, op), clock) in enumerate(zip(EXAMPLE, clocks, strict=True)):
        giver = _giver(at)
        counts = [str(clock.get(name, 0)) for name in EXAMPLE_LANES]
        rows.append((str(at), lane, f"{kind} {op}", "" if giver is None else str(giver), *counts))
    return Table(("act", "lane", "does", "learns from", *EXAMPLE_LANES), tuple(rows))


def picture_of_example() -> NotebookPicture:
    """Return the acts of the example by lane, with an arrow from each act to one that learns of it.

    A box has its clock: the acts of the host, the forward stream and the copy stream.
    """
    clocks, some, edges = clocks_of(list(EXAMPLE)), list[Box](), list[Edge]()
    for at, ((lane, _, _), clock) in enumerate(zip(EXAMPLE, clocks, strict=True)):
        counts = " ".join(str(clock.get(name, 0)) for name in EXAMPLE_LANES)
        some.append((lane, counts, 10.0 * at, 10.0 * at + 10, 0))
        if (giver := _giver(at)) is not None:
            edges.append(Edge(giver + 1, at + 1, "launch"))
    title = "The acts that each act knows of: of host, forward and copy, itself included"
    return NotebookPicture(boxes(title, *some, edges=edges))


def _giver(at: int) -> int | None:
    """Return the act of another lane from which an act of the example learns."""
    _, kind, op = EXAMPLE[at]
    needed = {"begin": "launch", "wait": "end"}.get(kind)
    return next((i for i in range(at) if EXAMPLE[i][1:] == (needed, op)), None)


# -- Programs, and what comes before what in them --------------------------------------------------

BY_HAND: tuple[list[Step], ...] = (
    [("host", "launch", 1), ("forward", "begin", 1), ("forward", "end", 1), ("host", "wait", 1)],
    [("host", "launch", 1), ("host", "launch", 2), ("forward", "begin", 1), ("copy", "begin", 2),
     ("forward", "end", 1), ("copy", "end", 2), ("host", "wait", 1)],
    [*EXAMPLE],
    [("host", "launch", 1), ("forward", "begin", 1), ("forward", "end", 1), ("forward", "say", 1),
     ("host", "wait", 1)],
    [("host", "launch", 1), ("forward", "begin", 1), ("forward", "say", 1), ("forward", "end", 1),
     ("host", "wait", 1)],
)  # fmt: skip
LOOPS = ("serial", "overlap", "overlap_thread", "mini_overlap", "vllm_async", "mindie_plugin")
RACES = ("pinned_buffer_rewritten", "request_table_rewritten", "tensor_freed_under_kernel",
         "row_reused_in_flight")  # fmt: skip


@cache
def programs() -> tuple[list[Step], ...]:
    """Of random runs on six loops, and of four published races."""
    runs = [judge(draw(seed).on(read_design(loop))).trace for seed in range(3) for loop in LOOPS]
    return tuple(acts(trace)[:MOST] for trace in (*runs, *map(trace_of_bug, RACES)))


@cache
def drawn_programs() -> tuple[list[Step], ...]:
    """Programs of a host and three streams, drawn: ops, signals, waits, and touches of memory."""
    return tuple(drawn_program(Random(seed)) for seed in range(60))


def drawn_program(random: Random) -> list[Step]:
    """Return a program of about eight acts, with some lanes that begin with the same word."""
    program, queued, began = list[Step](), dict[str, list[int]](), dict[str, int]()
    launched, ended = 0, list[int]()
    for _ in range(random.randint(4, 12)):
        lane = random.choice(("host", "host", "copy", "copy 2", "forward"))
        op, kind = began.get(lane, 0), random.choice(("op", "op", "wait", *TOUCHES))
        if kind == "wait" and ended:
            program.append((lane, "wait", random.choice(ended)))
        elif kind in TOUCHES:
            cells = tuple(sorted(random.sample(range(1, 6), random.randint(1, 3))))
            program.append((lane, kind, (random.choice(("kv", "kv", "kv_cache")), cells)))
        elif lane == "host":
            launched += 1
            queued.setdefault(random.choice(("copy", "copy 2", "forward")), []).append(launched)
            program.append(("host", "launch", launched))
        elif op:
            ended.append(op)
            said = random.choice(("end", "end", "say"))
            program.append((lane, said, op))
            if said == "end":
                del began[lane]
        elif queued.get(lane):
            began[lane] = queued[lane].pop(0)
            program.append((lane, "begin", began[lane]))
    return program


def by_hand_and_runs() -> Iterator[tuple[list[Step]]]:
    """Each program, the small ones first."""
    for program in (*BY_HAND, *drawn_programs(), *programs()):
        yield (program,)


def clocks_of(program: list[Step]) -> list[dict[str, int]]:
    """The package's clock of each act, this one included."""
    done = PlayedOrder([act_of(step) for step in program]).done
    return [{**one.clock, one.act.lane: one.moment} for one in done]


def with_clocks() -> Iterator[tuple[list[Step], list[dict[str, int]]]]:
    """Each program with the right clocks; those with a race also up to the first one."""
    for program in (*TOUCHING, *PAIRS, *three_touches(), *drawn_programs(), *programs()):
        clocks = clocks_of(program)
        if races := races_in(program, clocks):
            end = min(j for _, j in races) + 1
            yield program[:end], clocks[:end]
        yield program, clocks


def says_before(clocks: list[dict[str, int]], program: list[Step], i: int, j: int) -> bool:
    """Return whether clocks order act ``i`` before act ``j``."""
    lane = program[i][0]
    return clocks[i].get(lane, 0) <= clocks[j].get(lane, 0)


def in_words(program: list[Step], at: int) -> str:
    """``act 3 (host: wait 1)``."""
    lane, kind, what = program[at]
    return f"act {at} ({lane}: {kind} {what})"


def ends_twice(clocks: list[dict[str, int]], program: list[Step]) -> str:
    """Return a sentence on a wait that counts a later signal of an op than the first, or ''."""
    first = dict[Any, int]()
    for at, (_, kind, op) in enumerate(program):
        if kind in ("end", "say") and at != first.setdefault(op, at):
            for j in range(at + 1, len(program)):
                is_wait = program[j][1:] == ("wait", op)
                if is_wait and says_before(clocks, program, at, j):
                    return (
                        f"{in_words(program, j)} waits for the first signal of op {op}, which is "
                        f"{in_words(program, first[op])}, and not for {in_words(program, at)}."
                    )
    return ""


def are_true_clocks(clocks: Any, program: list[Step]) -> str:
    """Return a sentence on a pair of acts that the package's clocks order differently, or ''."""
    if not isinstance(clocks, list) or len(clocks) != len(program):
        clocks = many(len(program), "clock")
        return f"`happens_before` must give a list of {clocks}, one for each act."
    if not all(isinstance(clock, dict) for clock in clocks):
        return "a clock must be a dictionary: how many acts of each lane have surely happened."
    if len({id(clock) for clock in clocks}) < len(clocks):
        return "two acts have the same dictionary: each needs a copy of its own."
    right = clocks_of(program)
    if said := ends_twice(clocks, program):
        return said
    for i, j in permutations(range(len(program)), 2):
        is_before = says_before(right, program, i, j)
        if says_before(clocks, program, i, j) != is_before:
            first, second = in_words(program, i), in_words(program, j)
            if is_before:
                return f"{first} surely comes before {second}, but not in your clocks."
            return f"nothing orders {first} before {second}, but your clocks do."
    for at, (clock, counts) in enumerate(zip(clocks, right, strict=True)):
        if {lane: count for lane, count in clock.items() if count} != counts:
            return (
                f"the clock of {in_words(program, at)} is {clock}, should be {counts}: it counts "
                "the acts of each lane that surely come before, and this one."
            )
    return ""


def draw_program(answer: Any, program: list[Step], *rest: Any) -> str:
    """A short program in its order, an act a millisecond."""
    if len(program) > 12:
        return ""
    some, ids, began = list[Box](), dict[Any, int](), dict[Any, int]()
    for at, (lane, kind, what) in enumerate(program):
        if kind == "begin":
            began[what] = at
        elif kind not in TOUCHES or lane == "host":
            is_end, step = kind == "end", what if isinstance(what, int) else 0
            start = began[what] if is_end else at
            some.append((lane, lane if is_end else kind, start, at + 1, step))
            ids.setdefault((kind, what), len(some))
    edges = [
        Edge(number, ids[then, op], name)
        for first, then, name in (("launch", "end", "launch"), ("end", "wait", "result"))
        for (kind, op), number in ids.items()
        if kind == first and (then, op) in ids
    ]
    return boxes("acts in the order in which they were noted", *some, edges=edges)


# -- Races -----------------------------------------------------------------------------------------

READ, WRITE = ("kv", (3,)), ("kv", (3, 4))
TOUCHING: tuple[list[Step], ...] = (
    [("host", "launch", 1), ("forward", "begin", 1), ("forward", "read", READ),
     ("host", "write", WRITE), ("forward", "end", 1)],
    [("host", "launch", 1), ("forward", "begin", 1), ("forward", "read", READ),
     ("forward", "end", 1), ("host", "wait", 1), ("host", "write", WRITE)],
    [("host", "read", READ), ("forward", "read", READ)],
    [("host", "write", WRITE), ("forward", "read", READ)],
    [("host", "write", ("kv", (1, 5))), ("forward", "read", READ)],
    [("host", "write", ("kv", (*range(40),))), ("forward", "read", ("kv", (*range(39, 99),)))],
    [("forward", "read", READ), *(("host", "launch", op) for op in range(50)),
     ("copy", "write", WRITE)],
)  # fmt: skip
PAIRS: list[list[Step]] = [
    [("copy", one, ("kv", cells)), ("copy 2", other, ("kv", others))]
    for one, other in product(TOUCHES, TOUCHES)
    for cells, others in (((1, 2), (2, 3)), ((2, 3), (1, 2)))
]
"""Two touches of each kind: the cell that both have is the first of one, and the last of one."""


def three_touches() -> Iterator[list[Step]]:
    """Yield programs with two touches of a cell, of ops or of the host, before one of the host.

    The copy or the host may wait for an op. So the last touch of a cell may be in order, and an
    earlier one of another lane not.
    """
    cell = ("kv", (1,))
    for kinds in product(TOUCHES, repeat=3):
        first: list[Step] = [
            ("host", "launch", 1), ("host", "launch", 2),
            ("forward", "begin", 1), ("forward", kinds[0], cell), ("forward", "end", 1),
        ]  # fmt: skip
        yield [*first, ("host", kinds[1], cell), ("host", kinds[2], cell)]
        yield [*first[:4], ("forward", kinds[1], cell), first[4], ("host", kinds[2], cell)]
        for copy_waits, waits in product(((), (1,)), ((), (1,), (2,), (1, 2))):
            yield [
                *first, *(("copy", "wait", op) for op in copy_waits),
                ("copy", "begin", 2), ("copy", kinds[1], cell), ("copy", "end", 2),
                *(("host", "wait", op) for op in waits), ("host", kinds[2], cell),
            ]  # fmt: skip


def conflicts(program: list[Step], i: int, j: int) -> bool:
    """Two lanes touch a common cell, one of them not only to read it."""
    (lane, kind, what), (other, its_kind, its) = program[i], program[j]
    if lane == other or kind not in TOUCHES or its_kind not in TOUCHES:
        return False
    same = what[0] == its[0] and set(what[1]) & set(its[1])
    return bool(same and {kind, its_kind} != {"read"})


def races_in(program: list[Step], clocks: list[dict[str, int]]) -> list[tuple[int, int]]:
    """Return each pair of acts that conflict, and that nothing orders."""
    return [
        (i, j)
        for i, j in combinations(range(len(program)), 2)
        if conflicts(program, i, j)
        and not (says_before(clocks, program, i, j) or says_before(clocks, program, j, i))
    ]


def is_a_race(answer: Any, program: list[Step], clocks: list[dict[str, int]]) -> str:
    """A pair that races, or None where there is none."""
    races = races_in(program, clocks)
    if answer is None and races:
        i, j = races[0]
        return f"{in_words(program, i)} and {in_words(program, j)} race, but you found nothing."
    if answer is None or (isinstance(answer, tuple) and (answer in races or answer[::-1] in races)):
        return ""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"`race` gives {answer!r}; it must be a pair of numbers of acts, or None."
    if not all(isinstance(at, int) and 0 <= at < len(program) for at in answer):
        return f"`race` gives {answer!r}, but the acts are numbered from 0 to {len(program) - 1}."
    i, j = answer
    first, second = in_words(program, i), in_words(program, j)
    if conflicts(program, i, j):
        return f"one of {first} and {second} surely comes before the other: no race."
    return f"{first} and {second} can't hurt each other, in whichever order they come."


# -- Three traces with a bug -----------------------------------------------------------------------


def is_diagnosed(answer: Any, letter: str) -> str:
    """The law that is broken, and one of the slices that break it."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        return f"`diagnose` has {answer!r} for {letter}; it must be a law, a name and a step."
    law, name, step = answer
    if not isinstance(name, str) or type(step) is not int:
        return f"`diagnose` has {answer!r} for {letter}; the name is a text, the step a number."
    if law != find(REVIEWED[letter]).law:
        return f"trace {letter}: the law that it breaks is not {law!r}."
    if (name, step) in GUILTY[letter]:
        return ""
    asks = FOLLOWS[letter].get((name, step), "did nothing wrong.")
    return f"trace {letter}: {law} it is, but {name} {step} {asks}"


def draw_bug(answer: Any, letter: str) -> str:
    """The trace, without a hint."""
    return timing(trace_of_bug(letter), whole=True, title=f"trace {letter}", detail=True).svg


EXERCISES = (
    Exercise(
        name="happens_before",
        hole=Pure(by_hand_and_runs, holds=unwatched(are_true_clocks), draw=draw_program),
        solution="""
            def happens_before(program):
                clocks, newest, launched, ended = [], {}, {}, {}
                for lane, kind, what in program:
                    clock = dict(newest.get(lane, {}))
                    giver = {}
                    if kind == "begin":
                        giver = launched[what]
                    elif kind == "wait":
                        giver = ended[what]
                    for other, count in giver.items():
                        clock[other] = max(clock.get(other, 0), count)
                    clock[lane] = clock.get(lane, 0) + 1
                    if kind == "launch":
                        launched[what] = clock
                    elif kind in ("end", "say"):
                        ended.setdefault(what, clock)
                    newest[lane] = clock
                    clocks.append(clock)
                return clocks
        """,
        hints=(
            "Three rules: a lane does one thing after the other; a launch comes before the "
            "beginning of its op; an end comes before whatever follows on a lane that waited for "
            "it.",
            "Keep the newest clock of each lane, and of each op the clock of its launch and of its "
            "end. An act begins with a copy of its lane's newest clock.",
            "A begin takes over what the launch knew, a wait what the end knew: the larger number "
            "for each lane. Then the act counts itself.",
        ),
        why=(
            "A clock is all that a lane can know: its own acts, and those that a launch or a wait "
            "brought. Times never enter. So clocks show the order of every run, and a stopwatch "
            "only shows the order of this one."
        ),
    ),
    Exercise(
        name="race",
        hole=Pure(with_clocks, holds=unwatched(is_a_race), draw=draw_program),
        solution="""
            TOUCHES = ("read", "write", "free")


            def race(program, clocks):
                touches = [(i, *act) for i, act in enumerate(program) if act[1] in TOUCHES]
                for j, other, its_kind, (its_memory, its_cells) in touches:
                    for i, lane, kind, (memory, cells) in touches:
                        if i >= j or lane == other or kind == its_kind == "read":
                            continue
                        if memory != its_memory or not set(cells) & set(its_cells):
                            continue
                        if clocks[i][lane] > clocks[j].get(lane, 0):
                            return i, j
                return None
        """,
        hints=(
            "Two acts of two lanes, on a common cell of the same memory, and not both reads.",
            "With `i < j`, act `i` comes before act `j` if `clocks[i][lane] <= "
            "clocks[j].get(lane, 0)`, where `lane` is that of `i`. The other way round it can't "
            "be: the program is in an order that happened.",
        ),
        why=(
            "Two touches race if no chain of lanes, launches and waits leads from one to the "
            "other. That they came in the good order this time is luck, and the trace shows that "
            "too. It is how `minisched check` finds races in a run that went well."
        ),
    ),
    Exercise(
        name="diagnose",
        hole=Pure(
            lambda: zip(REVIEWED), holds=unwatched(is_diagnosed), draw=draw_bug,
            call=lambda lines, letter: lines().get(letter),
        ),
        solution="""
            def diagnose():
                return {
                    "A": ("overlap", "wait", 2),
                    "B": ("identity", "forward", 3),
                    "C": ("race", "prepare", 2),
                }
        """,
        hints=(
            "A: does any work of the host lie above work of the device? Who is to blame waits.",
            "B: the red arrow shows which step got another token than it needs.",
            "C: the list shows the touches of pinned memory. Your `race` finds them, too.",
        ),
        why=(
            "A wrong token, a race and a lost overlap look alike from outside: nothing crashes. In "
            "a trace they are three different questions: what was read, what orders two touches, "
            "and what lies above what. A reviewer asks all three."
        ),
    ),
)  # fmt: skip
