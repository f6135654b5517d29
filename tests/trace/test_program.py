"""What each lane did: cells as text, who acts, what holds of every program, and files in gzip."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.draw.draw import draw
from minisched.core.model_worker_batch import slots_of
from minisched.devices.sim import SimDevice
from minisched.memory.free_rule import RULES
from minisched.models.hash import HashModel
from minisched.trace import NullRecorder, Program, Recorder, Touch, Trace
from minisched.trace.cells import common, joined, spans_of, to_text, without
from minisched.trace.files import DamagedGzip, read_text, unpacked
from minisched.trace.lanes import is_host
from minisched.trace.side import SideRecorder
from minisched.worker.row_slots import RowSlots
from tests.support import LOOP_OPTIONS, VOCAB, Workload, fresh, play, workloads

# -- cells as text ---------------------------------------------------------------------------------


def cells_in(spans: Any) -> list[int]:
    spans = spans_of(spans) if isinstance(spans, str) else spans
    return [cell for first, last in spans for cell in range(first, last + 1)]


some_cells = st.lists(st.integers(0, 40))


@given(some_cells, some_cells)
def test_cells_are_written_in_order_and_each_once_and_spans_are_sets(
    a: list[int], b: list[int]
) -> None:
    text, some, others = to_text(a), spans_of(to_text(a)), spans_of(to_text(b))
    assert cells_in(text) == sorted(set(a)) and to_text(text) == text
    assert all(one[1] + 1 < other[0] for one, other in pairwise(some)), "none is in two"
    assert set(cells_in(common(some, others))) == {*a} & {*b}
    assert set(cells_in(without(some, others))) == {*a} - {*b}
    assert joined([*some, *others]) == to_text([*a, *b])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2))
def test_a_range_is_written_as_its_cells_are(start: int, stop: int, step: int) -> None:
    assert to_text(range(start, stop, step)) == to_text(list(range(start, stop, step)))


@pytest.mark.parametrize("text", ["7-3", "1 x", "3-", "-3"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text.split()[-1])):
        spans_of(text)


@pytest.mark.parametrize(
    "cells", [[-1], [3, -1], range(-2, 2), [1.5], [1, 2.5], ["x"], [1, "x"], 5]
)
def test_a_program_refuses_cells_that_are_none(cells: Any) -> None:
    program = Program(lambda: 0)
    with pytest.raises(ValueError, match=r"does a write of 'kv', but .* whole numbers from 0 on"):
        program.touch("write", "kv", cells)
    with pytest.raises(ValueError, match=r"does a write of 'kv', but .* whole numbers from 0 on"):
        program.launch("forward", 1, (), [Touch("write", "kv", cells)])


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
        mirror[at:] = slots
        row.replace(at, slots)
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
        ("worker thread", "begin", 9, ""), ("worker thread", "read", 9, "1-3"),
        ("worker thread", "end", 9, ""), ("host", "say", 7, ""), ("host", "launch", 5, ""),
        ("forward", "begin", 5, ""), ("forward", "write", 5, "8-9"), ("forward", "end", 5, ""),
        ("copy", "wait", 5, ""),
    ]  # fmt: skip


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


def check_ops(trace: Trace) -> None:
    """They are launched once, and run one after the other."""
    kinds = {kind: Counter(a.op for a in trace.program if a.kind == kind)
             for kind in ("launch", "begin", "end")}  # fmt: skip
    assert kinds["launch"] == kinds["begin"] == kinds["end"]
    assert set(kinds["launch"].values()) <= {1}
    lanes = {item.id: item.lane for item in trace.slices}
    running: dict[str, int] = {}
    for act in trace.program:
        inside = running.get(act.lane, 0)
        if act.kind == "begin":
            assert not inside and lanes[act.op] == act.lane
            running[act.lane] = act.op
        elif act.kind == "end":
            assert running.pop(act.lane) == act.op
        elif act.resource:
            assert act.at and (act.op == inside or is_host(act.lane))
    assert not running


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


def run(workload: Workload, which: Any, recorder: Recorder) -> tuple[Any, Trace]:
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, _ = play(fresh(workload), *which, SimDevice(recorder), model)
    return engine, recorder.trace("", "", "", "virtual")


@given(workloads(max_requests=4), st.sampled_from(LOOP_OPTIONS), st.sampled_from(sorted(RULES)))
def test_what_holds_of_every_program(workload: Workload, which: Any, rule: str) -> None:
    """What goes back is freed where the rule promises that nobody names it any more.

    Under the other rules a freed page may still be written, in the order of its stream.
    """
    workload.config = replace(workload.config, free_rule=rule)
    engine, trace = run(workload, which, Recorder())
    check_ops(trace)
    if rule == "lease":
        assert check_freed(trace, workload.config.page_size) >= 0
    else:
        assert not any(act.resource.endswith(("kv", "page table"))
                       for act in trace.program if act.kind == "free")  # fmt: skip
    assert not engine.worker.touches.steps, "every step that was laid out was launched"
    engine, trace = run(workload, which, NullRecorder())
    touches = engine.worker.touches
    assert not trace.program and not touches.steps and not touches.table


def test_what_the_cache_gives_up_is_freed_too() -> None:
    seen = set()
    for seed in range(30):
        workload = draw(seed, odd=False).workload
        try:
            _, trace = run(workload, ("overlap", "pool", {}), Recorder())
        except ValueError:  # the loop refuses what a request wants
            continue
        check_freed(trace, workload.config.page_size)
        seen |= {mark.name for mark in trace.marks}
    assert {"radix evict", "flush cache", "retraction"} <= seen


# -- files in gzip ---------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
LINE = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("check FILE.json", "traces/overlap.json"),
        ("check FILE.json", "tests/checks/profiles/sglang_decode.json"),
        ("stepper FILE.json", "traces/overlap.json"),
        ("view decode FILE.json --form text", "traces/decode.json"),
        ("watch FILE.json --frames 2", "traces/overlap.json"),
        ("replay FILE.jsonl", json.dumps(LINE)),
        ("run --prompts FILE.txt --max-new-tokens 2", "one\ntwo\n"),
    ],
)
def test_what_is_in_gzip_is_read_as_if_it_were_not(cli: Any, line: str, what: str) -> None:
    data = (ROOT / what).read_bytes() if what.startswith("t") else what.encode()
    name = re.findall(r"FILE\.\w+", line)[0]
    told = []
    for written in (data, gzip.compress(data)):
        Path(name).write_bytes(written)
        code, out, err = cli(line)
        assert code == 0, err
        told.append(re.sub(r"The simulation took .*", "", out, flags=re.DOTALL))
    assert told[0] == told[1] and told[0]
    Path(name).write_bytes(gzip.compress(data)[:-9])
    code, out, err = cli(line)
    assert (code, out) == (2, "") and "its gzip is damaged" in err and len(err.splitlines()) == 1


def test_what_is_no_gzip_and_short(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert read_text(tmp_path / "a") == ""
    (tmp_path / "a").write_bytes(b"\x1f\x8b")
    with pytest.raises(DamagedGzip), unpacked(tmp_path / "a") as file:
        file.read()
