"""Leaks that are put in are found with their owner's story, by two readers.

One looks at a live scheduler between two turns, one at a trace alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from minisched.checks.judge import judge
from minisched.checks.laws import Broken
from minisched.checks.leaks import books
from minisched.checks.leaks.leaks import find_leaks, not_checked
from minisched.checks.many import case_of
from minisched.checks.tokens.ends import find_ends, find_misreads
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MICROSECOND, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.native import from_json, to_json
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Trace
from tests.support import Workload, play

HOST = {"schedule": 500 * MICROSECOND, "launch": 100 * MICROSECOND, "process": 500 * MICROSECOND}
COST = CostModel(HOST, 1000 * MICROSECOND, 0, 200 * MICROSECOND, 100 * MICROSECOND)


def requests() -> list[Request]:
    stops = frozenset(range(128))
    return [
        Request(f"r{i}", [7, 7, 11, 2, i], SamplingParams(max_new_tokens=6, stop_token_ids=ends))
        for i, ends in enumerate([frozenset[int](), stops, stops])
    ]


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A healthy run of three requests that share a prefix; the last ones stop early."""
    run = run_loop("overlap", SimDevice(), HashModel(), requests(), SchedulerConfig(), COST)
    assert find_leaks(run.trace) == [] == not_checked(run.trace)
    assert find_ends(run.trace) == [] == find_misreads(run.trace)
    assert find_leaks(from_json(to_json(run.trace))) == []
    return run.trace


def without(trace: Trace, mark: Mark) -> Trace:
    return replace(trace, marks=tuple(other for other in trace.marks if other != mark))


def phases(trace: Trace, leak: Any) -> list[tuple[str, int]]:
    found = {item.id: (item.name, item.step) for item in trace.slices}
    return [found[at] for at in leak.slices]


# -- leaks that are put in -------------------------------------------------------------------------


FREE = "self.allocator.free(lease.pages[lease.shared_pages :], lease)"
ROW, UNLOCK = "self.table.free(lease)", "self.tree.dec_lock_ref(lease.node)"
CLOSE = "self.leases.close(lease)"


def of_release(healthy: str, bug: str) -> Edit:
    return Edit("memory.lease_pool:LeasePool.release", healthy, bug)


PAGE_FORGOTTEN = of_release(FREE, FREE.replace(":]", ": -1]"))
PAGE_LOST = Edit("memory.lease_pool:LeasePool._free_retired", "self.allocator.free(pages)", "pass")
PAGE_TWICE = of_release(FREE, f"{FREE}; self.allocator.free(lease.pages[-1:])")
ROW_FORGOTTEN = of_release(ROW, "pass")
ROW_TWICE = of_release(ROW, f"{ROW}; {ROW}")
LOCK_FORGOTTEN = of_release(UNLOCK, "pass")
NOT_CLOSED = Edit(
    "scheduler.ending:Endings._finish", CLOSE, f"reason is FinishReason.ABORT or {CLOSE}"
)

LONG = SamplingParams(max_new_tokens=9, ignore_eos=True)
WORKLOAD = Workload(
    [
        Request("a", [7, 7, 11, 2], SamplingParams(max_new_tokens=2)),
        Request("b", [7, 7, 11, 5], SamplingParams(max_new_tokens=4)),
        Request("c", [3, 3, 5, 6], LONG),
    ],
    arrivals=[0, 1, 1],
    aborts={5: "c"},
    config=SchedulerConfig(kv_tokens=40, context_len=16, max_running_requests=3),
)


@pytest.mark.parametrize(
    ("edit", "resource", "kind", "rid", "story", "told", "live"),
    [
        (PAGE_FORGOTTEN, "page", "held", "a",
         [("schedule", 0), ("process", 3)], "page 16 was allocated to a in step 1", "nor held"),
        (PAGE_LOST, "page", "lost", "b",
         [("process", 3)], "gave up pages 5-7 in step 3 (process, 4.8 ms)",
         "neither free, nor cached, nor held"),
        (PAGE_TWICE, "page", "freed", "a",
         [("process", 4)] * 2, "again in step 4 (process, 6 ms)",
         "times among the free ones"),
        (ROW_FORGOTTEN, "row", "held", "a",
         [("schedule", 0), ("process", 3)], "in step 1 (schedule, 0.5 ms)",
         "nobody holds it: row"),
        (ROW_TWICE, "row", "freed", "a",
         [("schedule", 0), ("process", 3), ("process", 4)], "4 (process, 6 ms), when it was a's",
         "was freed twice"),
        (LOCK_FORGOTTEN, "lock", "held", "a",
         [("schedule", 0), ("process", 3)], "taken for a in step 3 (process, 4.8 ms)",
         "should have been unlocked then"),
        (NOT_CLOSED, "row", "held", "c",
         [("schedule", 0), ("receive", 0)], "committed (receive, 6 ms)",
         "lease was never released"),
    ],
)  # fmt: skip
def test_both_readers_find_it_and_say_whose_it_was(
    edit: Edit, resource: str, kind: str, rid: str,
    story: list[tuple[str, int]], told: str, live: str,
) -> None:  # fmt: skip
    device, said = SimDevice(), list[str]()

    def look(check: Callable[[], None]) -> None:
        try:
            check()
        except Broken as error:
            said.append(str(error))

    workload = replace(WORKLOAD, requests=[
        Request(req.rid, req.prompt, req.params) for req in WORKLOAD.requests])  # fmt: skip
    try:
        with put_in([edit]):
            engine, _ = play(
                workload, "overlap", "ring", {}, device, HashModel(64), COST,
                each_turn=lambda engine: look(partial(books.check_step, engine.scheduler)),
            )  # fmt: skip
        look(partial(books.check_idle, engine.scheduler))
    except Exception as error:  # a broken scheduler may crash in any way
        said.append(f"{type(error).__name__}: {error}")
    trace = device.recorder.trace("overlap", "sim", "hash", "virtual")
    found = [leak for leak in find_leaks(trace) if (leak.resource, leak.kind) == (resource, kind)]
    assert found and (found[0].rid, rid in str(found[0])) == (rid, True), find_leaks(trace)
    assert phases(trace, found[0]) == story and told in str(found[0])
    assert any(live in words and rid in words for words in said)


def test_the_story_says_who_took_it_when_and_who_should_have_given_it_back(trace: Trace) -> None:
    """A row that comes back in the end was held between two steps all the same."""
    first = next(mark for mark in trace.marks if mark.name == "row free")
    never = without(trace, first)
    late = replace(trace, marks=(*never.marks, replace(first, time=trace.end)))
    for ran, told in ((never, "r1 ended (stop) in step 2 (process, "), (late, "released only")):
        [leak] = [leak for leak in find_leaks(ran) if leak.resource == "row"]
        assert (leak.what, leak.kind, leak.rid) == ("row 2", "held", "r1")
        assert "allocated to r1 in step 1 (schedule, " in str(leak) and told in str(leak)
        assert leak.offence.slices == leak.slices
        assert ran is late or phases(ran, leak) == [("schedule", 0), ("process", 2)]


def test_a_step_that_never_comes_back_leaves_its_future_slots(trace: Trace) -> None:
    last = [mark for mark in trace.marks if mark.name == "tokens"][-1]
    [leak] = find_leaks(without(trace, last))
    assert leak.resource == "step" and f"step {last.attrs['step']} was committed" in str(leak)


def test_who_ended_twice_or_heard_a_token_behind_the_end_is_told(trace: Trace) -> None:
    end = next(mark for mark in trace.marks if mark.name == "finish")
    [found] = find_ends(replace(trace, marks=(*trace.marks, replace(end, time=trace.end))))
    assert found.law == "ends" and ("process", 2) in phases(trace, found)
    assert str(found).startswith("r1 ended twice: (stop) in step 2 (process, ")
    behind = Mark("tokens", trace.end, {"step": 9, "rids": "r1", "tokens": "5"})
    [found] = find_ends(replace(trace, marks=(*trace.marks, behind)))
    assert "r1 heard a token of step 9" in str(found) and "ended (stop) in step 2" in str(found)


def test_ops_and_calls_that_nobody_waited_for(trace: Trace) -> None:
    ids = {item.id for item in trace.slices if item.name == "copy"}
    left = tuple(act for act in trace.program if not (act.kind == "wait" and act.op in ids))
    leaks = find_leaks(replace(trace, program=left))
    assert [(leak.resource, leak.kind) for leak in leaks] == [("op", "pending")] * len(ids)
    assert leaks[0].what == "the copy of step 1" and "its launch of step 1" in str(leaks[0])
    lane, call = "worker thread", 10**6
    acts = (Act("host", "launch", call), Act(lane, "begin", call))
    [leak] = find_leaks(replace(trace, program=(*trace.program, *acts)))
    assert (leak.resource, leak.what) == ("thread", lane)


def test_what_a_trace_does_not_tell_is_said(trace: Trace) -> None:
    dumb = ("commit", "tokens", "page alloc", "finish")
    marks = tuple(mark for mark in trace.marks if mark.name not in dumb)
    said = " ".join(not_checked(replace(trace, marks=marks, program=())))
    assert all(f"'{name}'" in said for name in dumb) and "no program" in said


# -- of a live scheduler ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [56, 89])
def test_duplicates_that_outlive_their_lease_are_no_leak_unless_they_stay(seed: int) -> None:
    drawn = case_of(seed, "overlap")
    config = replace(drawn.workload.config, free_rule="at_once")
    case = replace(drawn, workload=replace(drawn.workload, config=config))

    def forget(engine: Engine) -> None:
        engine.scheduler.leases._free_retired = lambda lease: None

    assert judge(case).holds and judge(case, forget).broke("leak")
