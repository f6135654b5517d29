"""Races in whole runs: none in the healthy loops, and the right words for those put in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.conflicts import Newest
from minisched.checks.draw.designs import read_design
from minisched.checks.draw.draw import draw
from minisched.checks.judge import judge
from minisched.checks.leaks.pending import find_pending
from minisched.checks.overlap.launches import launches
from minisched.checks.races import (
    Examined,
    Race,
    Words,
    examine,
    find_races,
    offence_of,
)
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export import native
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Slice, Trace
from minisched.trace.cells import common, joined, spans_of, to_text, without
from tests.support import open_device, play
from tests.test_free_rule import COST, two_in_one_row

README = Path(__file__).resolve().parents[1] / "traces" / "README.md"

NO_WAIT = Edit("worker.worker:Worker.launch_copy", "    self.copy_stream.wait(last)\n", "")
ONE_SLOT = Edit("worker.batch_record:BatchRecord.__init__", "max(2, depth)", "1")
FREE_AT_ONCE = Edit(
    "memory.free_rule:lease", "    return lease.last_step <= steps.returned\n", "    return True\n"
)
ONE_BUFFER = Edit("worker.output_ring:OutputRing.__init__", "range(depth)", "range(1)")


def traced(loop: str, relay: str, *edits: Edit) -> Trace:
    """Four requests on the simulator, with some lines of the code changed."""
    params = SamplingParams(max_new_tokens=6)
    requests = [Request(f"r{i}", [i + 1, 2, 3, 4, 5], params) for i in range(4)]
    config = SchedulerConfig(kv_tokens=200, context_len=64, chunked_prefill_size=8)
    with put_in(edits):
        return run_loop(loop, SimDevice(), HashModel(), requests, config, SIM_COST, relay).trace


def made(acts: Iterable[Act], slices: Iterable[Slice] = (), marks: Iterable[Mark] = ()) -> Trace:
    return Trace("made", "none", "none", "wall", tuple(slices), (), (), tuple(marks), tuple(acts))


# -- whole runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "relay"), [(loop, relay) for loop in LOOPS for relay in LOOPS[loop].relays]
)
def test_healthy_loops_have_no_race_and_wait_for_nothing_for_ever(loop: str, relay: str) -> None:
    trace = native.from_json(native.to_json(traced(loop, relay)))
    assert trace.program
    assert examine(trace) == Examined((), ())


@pytest.mark.parametrize("loop", ["serial", "overlap", "overlap_thread", "mini_overlap"])
def test_a_copy_that_does_not_wait_for_the_sampling(loop: str) -> None:
    """Told once, although it is missing in every step."""
    trace = traced(loop, LOOPS[loop].relays[0], NO_WAIT)
    [race] = find_races(trace)
    assert re.fullmatch(
        r"device output buffer \d \(cells 0-1\): copy of step 1 \(copy stream; r0, r1\) reads what "
        r"sample of step 1 \(forward stream; r0, r1\) writes, and nothing orders the two: copy of "
        r"step 1 does not wait for sample of step 1; \d+ such pairs",
        str(race),
    )
    samples = [item for item in trace.slices if item.name == "sample"]
    assert race.count == len(samples)
    names = {item.id: (item.name, item.step) for item in trace.slices}
    assert race.missing and [names[one] for one in race.missing] == [("sample", 1), ("copy", 1)]


def test_tensors_let_go_of_while_a_step_reads_them() -> None:
    [race] = find_races(traced("overlap", "pool", ONE_SLOT))
    assert (race.where, race.second.kind) == ("the inputs of step 1", "free")
    assert race.missing_edge == "the free must wait for sample of step 1"


def test_one_output_buffer_for_two_steps_in_flight() -> None:
    races = find_races(traced("overlap", "pool", ONE_BUFFER))
    assert "sample of step 2 does not wait for copy of step 1" in {
        race.missing_edge for race in races
    }
    assert {race.where for race in races} == {
        "device output buffer 0 (cells 0-1)", "host output buffer 0 (cells 0-1)",
    }  # fmt: skip


def test_what_the_host_reads_it_reads_in_the_process_of_that_step() -> None:
    """The trace notes the slice before, which is the launch of the next step."""
    races = find_races(traced("overlap", "pool", ONE_BUFFER))
    [read] = [race for race in races if race.first.lane == "host"]
    assert read.missing_edge == "copy of step 2 does not wait for process of step 1 on the host"


def test_memory_freed_under_a_step_in_flight() -> None:
    """The free has to come later: did the next step wait for it, nothing would overlap."""
    trace = traced("overlap", "ring", FREE_AT_ONCE)
    [race] = find_races(trace)
    slices = {item.id: item for item in trace.slices}
    assert race.missing
    use, free = (slices[one] for one in race.missing)
    assert (use.name, free.name) == ("forward", "process") and use.step == free.step + 1
    assert str(race).startswith(
        f"{race.where}: process of step {free.step} on the host (r0) frees what forward of step "
        f"{use.step} (forward stream; r0) writes, and nothing orders the two: the free must wait "
        f"for forward of step {use.step}"
    )
    assert len(race.also) == 1 and {race.where.split()[0], race.also[0].split()[0]} == {"KV", "row"}


@pytest.mark.parametrize("relay", ["token_pool", "pool"])
@pytest.mark.parametrize("rule", ["lease", "deferred", "at_once"])
def test_a_row_handed_on_too_early_races_where_two_streams_write_it(rule: str, relay: str) -> None:
    """mini-sglang #89; and ``at_once`` is harmless while one stream writes."""
    workload = two_in_one_row(rule)
    run = run_loop(
        "mini_overlap", SimDevice(), HashModel(), workload.requests, workload.config, COST, relay
    )
    races = find_races(run.trace)
    if rule == "at_once" and relay == "token_pool":
        [race] = races
        assert race.where.startswith("token-pool cell (row 1, position ")
        assert re.fullmatch(r"upload of step \d does not wait for sample of step \d",
                            race.missing_edge)  # fmt: skip
        assert race.who[0].endswith("(forward stream; a)")
        assert race.who[1].endswith("(scheduler stream; b)")
    else:
        assert races == []


# -- programs by hand --------------------------------------------------------------------------


def op(lane: str, number: int, *touches: tuple[str, str, str]) -> list[Act]:
    return [
        Act(lane, "begin", number),
        *(Act(lane, kind, number, resource, at) for kind, resource, at in touches),
        Act(lane, "end", number),
    ]


def launched(*numbers: int) -> list[Act]:
    return [Act("host", "launch", number) for number in numbers]


def test_cells_that_both_touch_are_told_and_no_others() -> None:
    acts = [
        Act("host", "write", 0, "kv", "0-40"),
        *launched(1, 2),
        *op("a", 1, ("write", "kv", "3-9 20 30-31")),
        *op("b", 2, ("read", "kv", "0-4 8 31-40")),
    ]
    [race] = find_races(made(acts))
    assert (race.resource, race.cells, race.where) == ("kv", "3-4 8 31", "KV slots 3-4 8 31")
    assert str(race) == (
        "KV slots 3-4 8 31: op 2 (b stream) reads what op 1 (a stream) writes, and nothing orders "
        "the two: op 2 does not wait for op 1"
    )


def test_a_free_that_the_next_owner_writes_behind_is_no_race() -> None:
    host = [*launched(1), Act("host", "wait", 1), Act("host", "free", 9, "kv", "0-7")]
    next_owner = [*launched(2), *op("a", 2, ("write", "kv", "0-7"), ("read", "kv", "0-7"))]
    assert find_races(made([*host, *op("a", 1, ("write", "kv", "0-7")), *next_owner])) == []


def test_a_read_behind_a_free_is_a_use_after_free() -> None:
    host = [*launched(1), Act("host", "wait", 1), Act("host", "free", 9, "kv", "0-7"), *launched(2)]
    stream = [*op("a", 1, ("write", "kv", "0-7")),
              *op("a", 2, ("write", "kv", "0-2"), ("read", "kv", "0-7"))]  # fmt: skip
    slices = [Slice(9, "host", "process", 5, 6, 1), Slice(2, "a", "forward", 7, 8, 2, rids=("r",))]
    [race] = find_races(made([*host, *stream], slices))
    assert (race.kind, race.cells, race.missing) == ("use after free", "3-7", None)
    assert str(race) == (
        "KV slots 3-7: forward of step 2 (a stream; r) reads what process of step 1 on the host "
        "frees before, and nobody has written it since: a use after free"
    )
    assert offence_of(race, made([], slices)).slices == (9, 2)


def test_a_free_in_no_order_with_a_use_is_a_race() -> None:
    acts = [*launched(1), Act("host", "free", 9, "kv", "5"), *op("a", 1, ("read", "kv", "0-7"))]
    [race] = find_races(made(acts))
    assert (race.kind, race.cells, race.first.kind, race.second.kind) == (
        "race",
        "5",
        "read",
        "free",
    )
    assert race.missing_edge == "the free must wait for op 1"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_free_comes_behind_every_use_also_of_a_later_step(kind: str) -> None:
    """One edge, before the first of the frees that the host does in one go."""
    touches = [("write", "page table", "0-3"), (kind, "kv", "7")]
    slices = [Slice(9, "host", "process", 8, 9, 13), Slice(1, "a", "forward", 5, 20, 14)]
    frees = [Act("host", "free", 9, "kv", "7"), Act("host", "free", 9, "page table", "0-3")]
    acts = [*launched(1), *frees, *op("a", 1, *touches)]
    [race] = find_races(made(acts, slices))
    assert (race.first.kind, race.second.kind, race.missing) == (kind, "free", (1, 9))
    assert str(race) == (
        f"KV slot 7: process of step 13 on the host frees what forward of step 14 (a stream) "
        f"{kind}s, and nothing orders the two: the free must wait for forward of step 14; that "
        "edge would also order page table cells 0-3"
    )
    cured = [*launched(1), Act("host", "wait", 1), *frees, *op("a", 1, *touches)]
    assert find_races(made(cured, slices)) == []


def test_the_frees_that_the_host_does_in_one_go_wait_together() -> None:
    """The row's edge, which is missing twice, would order the slot as well, freed just before."""
    acts, slices = [], []
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
    assert race.missing_edge == "op 2 does not wait for call 1"


def test_the_value_of_an_op_is_read_by_who_takes_it() -> None:
    acts = [*launched(1, 2), *op("a", 1), *op("b", 2, ("read", "value", "1"))]
    [race] = find_races(made(acts))
    assert race.where == "the value of op 1"
    waits = [Act("b", "wait", 1)]
    assert (
        find_races(
            made([*launched(1, 2), *op("a", 1), *waits, *op("b", 2, ("read", "value", "1"))])
        )
        == []
    )


def test_what_one_missing_edge_explains_is_told_with_it() -> None:
    """The copy does not wait for the sampling, and the host, which waits for the copy, frees."""
    acts = [
        *launched(1, 2),
        Act("host", "wait", 2),
        Act("host", "free", 9, "kv", "0"),
        Act("host", "free", 9, "inputs", "4"),
        *op("a", 1, ("read", "inputs", "4"), ("write", "kv", "0"), ("write", "output 0", "0")),
        *op("b", 2, ("read", "output 0", "0")),
    ]
    [race] = find_races(made(acts))
    assert race.missing == (1, 2)
    assert race.also == ("KV slot 0", "the inputs of step 4")
    assert str(race).endswith("; that edge would also order KV slot 0 and the inputs of step 4")


def test_two_missing_edges_are_two_races() -> None:
    acts = [
        *launched(1, 2, 3),
        *op("a", 1, ("write", "output 0", "0"), ("write", "kv", "0")),
        *op("b", 2, ("read", "output 0", "0")),
        *op("c", 3, ("read", "kv", "0")),
    ]
    assert {race.missing for race in find_races(made(acts))} == {(1, 2), (1, 3)}


@pytest.mark.parametrize(
    ("acts", "says", "unreached"),
    [
        (
            [*launched(1), Act("a", "wait", 7), *op("a", 1, ("write", "kv", "0"))],
            "the a stream waits for op 7, which nobody ends or says: it waits for ever; "
            "3 acts are never reached",
            4,
        ),
        (
            [*launched(1, 2), Act("a", "wait", 2), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
            "the a stream waits for op 2; the b stream waits for op 1: a circle; "
            "6 acts are never reached",
            6,
        ),
        (
            [*launched(1, 2), Act("a", "wait", 7), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
            "the a stream waits for op 7, which nobody ends or says: it waits for ever; "
            "6 acts are never reached, the b stream behind them",
            6,
        ),
        (
            [Act("host", "wait", 2), *launched(2), *op("a", 2)],
            "the a stream waits for the launch of op 2; the host waits for op 2: a circle; "
            "4 acts are never reached",
            4,
        ),
    ],
)
def test_what_waits_for_ever_is_told(acts: list[Act], says: str, unreached: int) -> None:
    [found] = examine(made(acts)).waits
    assert str(found) == says.replace("3 acts", f"{unreached} acts")
    assert found.unreached == unreached


def test_a_long_run_is_looked_at_in_spans() -> None:
    """A gigabyte as one span, by turns on two streams: nobody counts its bytes."""
    acts: list[Act] = []
    for step in range(1, 101):
        acts += [*launched(step), *op(f"s{step % 2}", step, ("write", "memory", f"0-{1 << 30}"))]
    races = find_races(made(acts))
    assert {(race.first.lane, race.second.lane): race.count for race in races} == {
        ("s1", "s0"): 50, ("s0", "s1"): 49,
    }  # fmt: skip


# -- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "at", "says"),
    [
        ("kv", "17", "KV slot 17"),
        ("kv", "3-7 9", "KV slots 3-7 9"),
        ("kv", "1 3 5 7 9 11", "KV slots 1 3 5 7 and 2 more"),
        ("prefill kv", "3", "KV slot 3 of the prefill side"),
        ("future map", "3", "future slot 3"),
        ("page table", "128-131", "row 2 of the page table"),
        ("page table", "60-70", "rows 0-1 of the page table"),
        ("token pool", "131", "token-pool cell (row 2, position 3)"),
        ("token pool", "131-133", "token-pool cells (row 2, positions 3-5)"),
        ("token pool", "60-70", "token-pool cells (row 0, position 60) to (row 1, position 6)"),
        (
            "token pool",
            "3 5 9-12 14",
            "token-pool cells (row 0, position 3) (row 0, position 5) and 5 more",
        ),
        ("host output 1", "0-1", "host output buffer 1 (cells 0-1)"),
        ("output 0", "0", "device output buffer 0 (cell 0)"),
        ("inputs", "4", "the inputs of step 4"),
        ("value", "8", "the value of sample of step 3"),
        ("a mask", "0", "a mask cell 0"),
    ],
)
def test_cells_have_their_own_words(resource: str, at: str, says: str) -> None:
    marks = [Mark("row length", 0, {"page table": 64, "token pool": 64})]
    words = Words(made([], [Slice(8, "forward", "sample", 0, 1, 3)], marks))
    assert words.cells(resource, at) == says


# -- any file in the documented schema ---------------------------------------------------------


def example() -> dict[str, Any]:
    """The example of the README."""
    [text] = re.findall(r"^```json\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)
    data: dict[str, Any] = json.loads(text)
    return data


def test_the_example_of_the_readme_is_caught() -> None:
    [race] = find_races(native.from_json(json.dumps(example())))
    said = " ".join(README.read_text(encoding="utf-8").rpartition("\n\n    ")[2].split())
    assert str(race) == said


def test_what_is_in_flight_where_a_recording_stops_is_no_leak() -> None:
    """Nobody waits for step 2 of the example; it is one once its requests have all ended."""
    data = example()
    assert find_pending(native.from_json(json.dumps(data))) == []
    for rid, count in (("a", 0), ("b", 2)):
        data["marks"].append(
            {"name": "finish", "time": 980000, "attrs": {"rid": rid, "reason": "length"}}
        )
        leaks = find_pending(native.from_json(json.dumps(data)))
        assert [leak.what for leak in leaks] == [
            f"the {name} of step 2" for name in ("forward", "copy")
        ][:count]


def test_the_example_says_what_launched_each_step() -> None:
    assert set(launches(native.from_json(json.dumps(example())))) == {2, 3, 5, 6}


def test_with_the_wait_that_it_lacks_the_example_is_fine() -> None:
    data = example()
    at = data["program"].index({"lane": "copy", "kind": "begin", "op": 6})
    data["program"].insert(at, {"lane": "copy", "kind": "wait", "op": 5})
    assert find_races(native.from_json(json.dumps(data))) == []


def changed(index: int, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda program: program[index].update(fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed(0, kind="fork"), "program[0] has kind = 'fork', but it must be one of launch, "),
        (changed(5, at="3-"), "program[5] has at = '3-', but cells are written in order, as in"),
        (changed(5, at="3 2"), "program[5] has at = '3 2', but cells are written in order"),
        (changed(5, at="5-3"), "program[5] has at = '5-3', but cells are written in order"),
        (changed(5, at="-1"), "program[5] has at = '-1', but cells are written in order"),
        (changed(5, at="1 1"), "program[5] has at = '1 1', but cells are written in order"),
        (changed(5, at=""), "program[5] is a read, but it lacks cells (at)"),
        (changed(5, resource=""), "program[5] is a read, but it lacks a resource"),
        (changed(4, at="1"), "program[4] is a wait and touches nothing, but it has a resource or"),
        (changed(4, op=0), "program[4] has op = 0, but an op is a number above 0"),
        (changed(4, op="x"), 'program[4] has op = "x"'),
        (changed(4, lane=""), "program[4] has no lane"),
        (changed(0, op=9), "program[6] is a begin of op 2, which nobody launches"),
        (changed(1, op=2), "program[1] is a second launch of op 2"),
        (changed(9, op=2), "program[9] is a second begin of op 2"),
        (changed(8, op=3), "program[8] is an end of op 3, which has not begun on its lane"),
        (changed(8, kind="say"), "program[9] is a begin of op 5, but op 2 has not ended on its"),
        (lambda program: program.extend([dict(lane=lane, kind="say", op=99) for lane in "ab"]),
         "program[22] says signal 99, which lane 'a' says too"),
    ],
)  # fmt: skip
def test_a_program_that_is_none_gets_a_sentence(
    change: Callable[[list[dict[str, Any]]], None], says: str
) -> None:
    data = example()
    change(data["program"])
    with pytest.raises(native.NotATrace, match=re.escape(says)) as caught:
        native.from_json(json.dumps(data), "engine.json")
    assert str(caught.value).startswith("engine.json is a damaged minisched trace: ")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_an_id_belongs_to_one_slice() -> None:
    data = example()
    data["slices"][1]["id"] = 1
    with pytest.raises(native.NotATrace, match="two slices have the same id"):
        native.from_json(json.dumps(data))


# -- spans -------------------------------------------------------------------------------------

cells = st.sets(st.integers(0, 30))


@given(a=cells, b=cells)
def test_spans_are_sets_of_cells(a: set[int], b: set[int]) -> None:
    some, others = spans_of(to_text(a)), spans_of(to_text(b))
    numbers = {cell for first, last in common(some, others) for cell in range(first, last + 1)}
    assert numbers == a & b
    rest = without(some, others)
    assert {cell for first, last in rest for cell in range(first, last + 1)} == a - b
    assert joined([*some, *others]) == to_text(a | b)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 3)), max_size=12))
def test_the_newest_of_each_cell(changes: list[tuple[int, int, int]]) -> None:
    """Against a dictionary; 0 clears."""
    newest: Newest[int] = Newest()
    truth: dict[int, int] = {}
    for first, length, what in changes:
        for cell in range(first, first + length + 1):
            truth.update({cell: what}) if what else truth.pop(cell, None)
        if what:
            newest.put(first, first + length, what)
        else:
            newest.clear(first, first + length)
    found = {
        cell: what for first, last, what in newest.over(0, 30) for cell in range(first, last + 1)
    }
    assert found == truth
    for first in range(30):
        assert bool(newest.shared([(first, first + 2)])) == any(
            cell in truth for cell in range(first, first + 3)
        )


def test_a_race_reads_the_same_whoever_came_first_this_time() -> None:
    """The copy starts before the sampling here, and after it there: one verdict."""
    early = [Slice(1, "a", "sample", 10, 12, 3), Slice(2, "b", "copy", 1, 2, 3)]
    late = [Slice(1, "a", "sample", 10, 12, 3), Slice(2, "b", "copy", 20, 22, 3)]
    acts = [*launched(1, 2), *op("b", 2, ("read", "kv", "0")), *op("a", 1, ("write", "kv", "0"))]
    told: list[Race] = [race for slices in (early, late) for race in find_races(made(acts, slices))]
    assert str(told[0]) == str(told[1])
    assert told[0].missing == (1, 2)


# -- on every clock ----------------------------------------------------------------------------


def acts_by_lane(case: Case) -> dict[str, list[tuple[str, str, str]]]:
    """What each lane did in its own order, as far as it orders or touches anything.

    A lane need not be told that it comes after itself. When a device closes, it says every signal
    that nobody has said, on a wall clock only.
    """
    trace = judge(case).trace
    ran_on = {act.op: act.lane for act in trace.program if act.kind == "begin"}
    lanes: dict[str, list[tuple[str, str, str]]] = {}
    for act in trace.program:
        if act.kind != "wait" or ran_on.get(act.op) != act.lane:
            cells = act.at if act.resource != "value" else ""
            lanes.setdefault(act.lane, []).append((act.kind, act.resource, cells))
    while lanes["host"][-1][0] == "say":
        lanes["host"].pop()
    return lanes


@pytest.mark.parametrize("device", ["thread", "mlx"])
@pytest.mark.parametrize(
    "loop", ["overlap_thread", "mindie_plugin", "mindie_dual", "overlap", "vllm_async:pool:depth=4"]
)
def test_what_lanes_do_is_the_same_on_every_clock(loop: str, device: str) -> None:
    """A wait that a wall clock alone records never happened: it would hide whatever it orders."""
    for seed in (0, 1, 3, 4, 9):
        drawn = draw(seed)
        simulated = replace(drawn.on(read_design(loop)), cost=NO_COST)
        assert acts_by_lane(drawn.on(read_design(loop), device)) == acts_by_lane(simulated)


DEVICES = ["sim", "thread", "mlx"]


def handed_over(device: Device, unrelated: bool) -> Trace:
    """A thread writes and says so; the host reads without asking. It may make another signal."""
    said = device.signal("written")

    def work() -> None:
        device.recorder.program.touch("write", "shared", [1])
        said.set()

    with device.host("one", 10):
        call = device.thread("worker thread").launch(work, name="work", cost=5)
    device.idle_until(device.now() + 1_000_000)
    while not said.done:  # nobody asks by ``query``: that would be to wait for it
        device.idle_until(device.now() + 1_000_000)
    if unrelated:
        device.signal("of nobody here")
    with device.host("two", 10):
        device.recorder.program.touch("read", "shared", [1])
    call.synchronize()
    device.close()
    return device.recorder.trace("made", device.name, "none", device.clock)


@pytest.mark.parametrize("unrelated", [False, True])
@pytest.mark.parametrize("name", DEVICES)
def test_a_new_signal_hides_no_race_on_any_clock(name: str, unrelated: bool) -> None:
    [race] = find_races(handed_over(open_device(name), unrelated))
    assert (race.resource, race.second.lane) == ("shared", "host")


@pytest.mark.parametrize("name", DEVICES)
def test_whatever_is_made_or_handed_over_waits_for_nothing(name: str) -> None:
    """Of all that a device offers, only to be asked for, or to be waited for, orders anything."""
    device = open_device(name)
    said, stream = device.signal("said"), device.stream("forward")
    said.set()
    op = stream.launch(device.xp.asarray, [1], name="sample", cost=1)
    op.synchronize()
    before = len(device.recorder.program.acts)
    device.signal("another")
    device.stream("copy")
    device.thread("worker thread")
    device.memory("table", 4)
    device.host_memory("pinned", 4)
    device.flush(op)
    device.count_memory()
    device.clear_cache()
    device.idle_until(device.now() + 10)
    stream.launch(device.xp.asarray, [2], name="sample", cost=1)
    waits = [act for act in device.recorder.program.acts[before:] if act.kind == "wait"]
    device.close()
    assert waits == []


# -- what is freed -----------------------------------------------------------------------------


def test_every_page_that_comes_back_is_told_to_the_program() -> None:
    """Or a late reader of it is not seen: after an end, an eviction, a duplicate, a flush."""
    reasons = set()
    for seed in range(60):
        drawn = draw(seed)
        design = read_design("serial" if seed % 2 else "vllm_step")
        trace = judge(drawn.on(design)).trace
        size = drawn.workload.config.page_size
        given = [page for mark in trace.marks if mark.name == "page free"
                 for page in map(int, str(mark.attrs["pages"]).split())]  # fmt: skip
        told = [cell // size for act in trace.program
                if (act.kind, act.resource) == ("free", "kv")
                for first, last in spans_of(act.at)
                for cell in range(first, last + 1)]  # fmt: skip
        assert sorted(told) == sorted(page for page in given for _ in range(size))
        reasons |= {
            mark.name for mark in trace.marks if mark.name in ("radix evict", "flush cache")
        }
    assert reasons == {"radix evict", "flush cache"}


UNLOCKED = Edit(
    "memory.lease_pool:LeasePool.close",
    "    self.release(lease)\n",
    "    if self.tree is not None and isinstance(lease.node, TreeNode):\n"
    "        self.tree.dec_lock_ref(lease.node)\n"
    "        lease.node = None\n"
    "    self.release(lease)\n",
)
BUSY = Edit("scheduler.state:SchedulerState.flush_cache", "not self.leases.is_idle", "False")


def test_a_late_reader_of_a_flushed_page_is_seen() -> None:
    """A wasted row still reads the prefix that its request has left to the cache."""
    params = SamplingParams(max_new_tokens=3, stop_token_ids=frozenset(range(257)))
    config = SchedulerConfig(kv_tokens=20, context_len=32)
    workload = Workload([Request("a", [1, 2, 3, 4], params)], [0], {}, config, vocab_size=257)
    workload.flushes = frozenset(range(6))
    device, model = SimDevice(), HashModel()
    with put_in([UNLOCKED, BUSY]):
        play(workload, "overlap", "pool", {}, device, model, SIM_COST)
    races = find_races(device.recorder.trace("overlap", "sim", "hash", "virtual"))
    assert any(race.resource == "kv" and race.second.kind == "free" for race in races)
