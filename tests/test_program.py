"""What each lane did, in its own order: how it is written, and what holds of every program."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core.model_worker_batch import slots_of
from minisched.devices.sim import SimDevice
from minisched.memory.free_rule import RULES
from minisched.trace import NullRecorder, Recorder, Touch, Trace
from minisched.trace.cells import spans_of, to_text
from minisched.trace.lanes import is_host
from minisched.trace.side import SideRecorder
from minisched.worker.row_slots import RowSlots
from tests.support import LOOP_OPTIONS, Workload, hash_model, play, workloads
from tests.test_declared import small_workload

# -- cells as text ---------------------------------------------------------------------------------


def cells_in(text: str) -> list[int]:
    return [cell for first, last in spans_of(text) for cell in range(first, last + 1)]


@given(st.lists(st.integers(0, 60)))
def test_cells_are_written_in_order_and_each_once(cells: list[int]) -> None:
    text = to_text(cells)
    assert cells_in(text) == sorted(set(cells))
    spans = spans_of(text)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(spans)), "none is in two"
    assert to_text(text) == text


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_range_is_written_as_its_cells_are(start: int, stop: int) -> None:
    assert to_text(range(start, stop)) == to_text(list(range(start, stop)))
    assert to_text(range(start, stop, 2)) == to_text(list(range(start, stop, 2)))


@pytest.mark.parametrize("text, why", [
    ("7-3", "the span 7-3 ends before it begins."),
    ("1 x", "'x' is no span of cells; one looks like 3-7, or 9."),
    ("3-", "'3-' is no span of cells; one looks like 3-7, or 9."),
    ("-3", "'-3' is no span of cells; one looks like 3-7, or 9."),
])  # fmt: skip
def test_what_is_no_span_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError) as refusal:
        spans_of(text)
    assert str(refusal.value) == why


changes = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 20)),
    max_size=8,
)


@given(changes)
def test_a_row_s_slots_are_written_as_if_from_scratch(made: Any) -> None:
    """Whatever is listed anew, and however far is read."""
    row, mirror = RowSlots(), list[int]()
    for at, slots, end in made:
        at = min(at, len(mirror))
        mirror[at:] = new = slots
        row.replace(at, new)
        assert row.slots == mirror
        assert row.up_to(min(end, len(mirror))) == to_text(mirror[:end])


# -- who acts --------------------------------------------------------------------------------------


def test_a_lane_is_known_by_its_thread() -> None:
    program = Recorder().program
    program.enter("host", 4)

    def work() -> None:
        with program.inside("worker thread", 9):
            program.touch("read", "kv", [3, 1, 2], "a")
        program.say(7)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    program.launch("forward", 5, touches=[Touch("write", "kv", "8-9"), Touch("read", "kv", ())])
    program.wait(5, "copy")
    program.wait(0)
    assert [(act.lane, act.kind, act.op, act.at) for act in program.acts] == [
        ("worker thread", "begin", 9, ""),
        ("worker thread", "read", 9, "1-3"),
        ("worker thread", "end", 9, ""),
        ("host", "say", 7, ""),
        ("host", "launch", 5, ""),
        ("forward", "begin", 5, ""),
        ("forward", "write", 5, "8-9"),
        ("forward", "end", 5, ""),
        ("copy", "wait", 5, ""),
    ]


def test_a_side_names_its_lanes_and_its_memory() -> None:
    whole = Recorder()
    sides = [SideRecorder(whole, name).program for name in ("prefill", "decode")]
    for program in sides:
        program.touch("write", "kv", [1])
        with program.acting("kv transfer", 3):
            program.touch("read", "value", [2])
    assert [(act.lane, act.resource) for act in whole.program.acts] == [
        ("prefill host", "prefill kv"), ("kv transfer", "value"),
        ("decode host", "decode kv"), ("kv transfer", "value"),
    ]  # fmt: skip
    assert sides[0].new_id() != sides[1].new_id()
    assert not SideRecorder(NullRecorder(), "decode").program.is_on


# -- of every run ----------------------------------------------------------------------------------


def run(workload: Workload, which: Any, recorder: Recorder) -> tuple[Any, Trace]:
    device = SimDevice(recorder)
    engine, _ = play(workload, *which, device, hash_model("sim", workload.eos_ids))  # type: ignore[arg-type]
    return engine, recorder.trace("", "", "", "virtual")


@given(workloads(max_requests=4), st.sampled_from(LOOP_OPTIONS))
@settings(max_examples=50, deadline=None)
def test_ops_are_launched_once_and_run_one_after_the_other(workload: Workload, which: Any) -> None:
    _, trace = run(workload, which, Recorder())
    kinds = {kind: Counter(a.op for a in trace.program if a.kind == kind)
             for kind in ("launch", "begin", "end")}  # fmt: skip
    assert kinds["launch"] == kinds["begin"] == kinds["end"]
    assert set(kinds["launch"].values()) <= {1}
    running: dict[str, int] = {}
    for act in trace.program:
        inside = running.get(act.lane, 0)
        if act.kind == "begin":
            assert not inside
            running[act.lane] = act.op
        elif act.kind == "end":
            assert running.pop(act.lane) == act.op
        elif act.resource:
            assert act.at and (act.op == inside or act.lane == "host" or is_host(act.lane))
    assert not running
    lanes = {item.id: item.lane for item in trace.slices}
    assert all(lanes[a.op] == a.lane for a in trace.program if a.kind in ("begin", "end"))


@given(workloads(max_requests=4), st.sampled_from(LOOP_OPTIONS))
@settings(max_examples=20, deadline=None)
def test_who_records_nothing_keeps_no_program(workload: Workload, which: Any) -> None:
    engine, trace = run(workload, which, NullRecorder())
    assert trace.program == ()
    touches = engine.worker.touches
    assert not touches.steps and not touches.table


@given(workloads(max_requests=4), st.sampled_from(LOOP_OPTIONS), st.sampled_from(sorted(RULES)))
@settings(max_examples=50, deadline=None)
def test_what_goes_back_is_freed_where_the_rule_promises_that_nobody_names_it(
    workload: Workload, which: Any, rule: str
) -> None:
    """Under the other rules a freed page may still be written, in the order of its stream."""
    config = replace(workload.config, free_rule=rule)
    engine, trace = run(replace(workload, config=config), which, Recorder())
    if rule == "lease":
        assert check_freed(trace, config.page_size) >= 0
    else:
        assert not any(act.resource.endswith(("kv", "page table"))
                       for act in trace.program if act.kind == "free")  # fmt: skip
    assert not engine.worker.touches.steps, "every step that was laid out was launched"


def check_freed(trace: Trace, page_size: int) -> int:
    """All pages that the host took back, each as often; how many rows were not freed with them.

    That is a row which never got a page: the page table lists nothing for it.
    """
    freed = [(act.resource.removeprefix("stage 0 "), act.at)
             for act in trace.program if act.kind == "free"]  # fmt: skip
    marks = [mark for mark in trace.marks if mark.name == "page free"]
    pages = [int(page) for mark in marks for page in str(mark.attrs["pages"]).split()]
    slots = Counter(cell for resource, at in freed if resource == "kv" for cell in cells_in(at))
    assert slots == Counter(slots_of(pages, page_size))
    rows = [resource for resource, _ in freed].count("page table")
    return sum(mark.name == "row free" for mark in trace.marks) - rows


def test_what_the_cache_gives_up_is_freed_too() -> None:
    workload = small_workload()
    _, trace = run(workload, ("overlap", "pool", {}), Recorder())
    assert any(mark.name == "radix evict" for mark in trace.marks)
    assert check_freed(trace, workload.config.page_size) == 0
