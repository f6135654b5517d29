"""No leak on any loop, at any step; and each that is put in is found, with its owner's story.

Two readers look: one at a live scheduler between two turns, one at a trace alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.judge import judge
from minisched.checks.laws import Broken
from minisched.checks.leaks import books
from minisched.checks.leaks.leak import Leak
from minisched.checks.leaks.leaks import find_leaks, not_checked
from minisched.checks.many import case_of
from minisched.checks.tokens.ends import find_ends, find_misreads
from minisched.core import Lease, Output, Request, SamplingParams
from minisched.devices.cost import MICROSECOND, NO_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.devices.thread import ThreadDevice
from minisched.engine.engine import Engine
from minisched.export.native import from_json, to_json
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Trace
from tests.support import LOOP_OPTIONS, VOCAB, LoopOptions, Workload, fresh, play, workloads

HOST = {"schedule": 500 * MICROSECOND, "launch": 100 * MICROSECOND, "process": 500 * MICROSECOND}
COST = CostModel(HOST, 1000 * MICROSECOND, 0, 200 * MICROSECOND, 100 * MICROSECOND)


def healthy(engine: Engine) -> None:
    """Nothing is changed."""


def played(
    workload: Workload,
    loop: str = "overlap",
    relay: str = "ring",
    patch: Callable[[Engine], None] = healthy,
    options: dict[str, Any] | None = None,
) -> tuple[Trace, list[str]]:
    """A run's trace, and what the live reader said, turn by turn and then at idle."""
    workload, device, said = fresh(workload), SimDevice(), list[str]()

    def look(check: Callable[[], None]) -> None:
        try:
            check()
        except Broken as error:
            said.append(str(error))

    model, options = HashModel(VOCAB, eos_ids=workload.eos_ids), options or {}
    try:
        engine, _ = play(
            workload, loop, relay, options, device, model, COST, patch,
            lambda engine: look(partial(books.check_step, engine.scheduler)),
        )  # fmt: skip
        look(partial(books.check_idle, engine.scheduler))
    except Exception as error:  # a broken scheduler may crash in any way
        said.append(f"{type(error).__name__}: {error}")
    return device.recorder.trace(loop, "sim", "hash", "virtual"), said


@given(workload=workloads(), loops=st.lists(st.sampled_from(LOOP_OPTIONS), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_nothing_leaks_at_any_step(loops: list[LoopOptions], workload: Workload) -> None:
    for loop, relay, options in loops:
        trace, said = played(workload, loop, relay, options=options)
        assert said == []
        assert find_leaks(trace) == [] == [*find_ends(trace), *find_misreads(trace)]


RUNS = [
    (loop, device)
    for loop in ("serial", "overlap", "overlap_thread", "mindie_dual", "pd")
    for device in (SimDevice, ThreadDevice)
    if (loop, device) != ("pd", ThreadDevice)  # it runs on the simulator alone
]


@pytest.mark.parametrize(("loop", "device"), RUNS)
def test_nothing_leaks_on_other_clocks_and_with_two_schedulers(
    loop: str, device: Callable[[], Any]
) -> None:
    before = books.threads()
    run = run_loop(loop, device(), HashModel(), requests(), SchedulerConfig(kv_tokens=64))
    assert find_leaks(run.trace) == [] == not_checked(run.trace)
    assert [*find_ends(run.trace), *find_misreads(run.trace)] == []
    assert find_leaks(from_json(to_json(run.trace))) == []
    assert books.threads() == before


def requests() -> list[Request]:
    """Three that share a prefix; the last ones stop early."""
    stops = frozenset(range(128))
    return [
        Request(f"r{i}", [7, 7, 11, 2, i], SamplingParams(max_new_tokens=6, stop_token_ids=ends))
        for i, ends in enumerate([frozenset[int](), stops, stops])
    ]


AT_ONCE = [56, 89, 93]  # in these a row is freed while a step in flight names its duplicates


@pytest.mark.parametrize("seed", AT_ONCE)
def test_duplicates_that_outlive_their_lease_are_no_leak_unless_they_stay(seed: int) -> None:
    drawn = case_of(seed, "overlap")
    config = replace(drawn.workload.config, free_rule="at_once")
    case = replace(drawn, workload=replace(drawn.workload, config=config))
    outlived = list[Lease]()

    def look(engine: Engine) -> None:
        leases, came_back = engine.scheduler.leases, engine.scheduler.leases.came_back

        def looked(step: int) -> None:
            outlived.extend(books.outlived_by_pages(engine.scheduler))
            came_back(step)

        leases.came_back = looked  # type: ignore[method-assign]

    assert judge(case, look).holds and outlived
    said = list[str]()

    def forget(engine: Engine) -> None:
        next_batch = engine.scheduler.next_batch

        def looked() -> Any:
            try:
                books.check_pages(engine.scheduler)
            except Broken as error:
                said.append(str(error))
            return next_batch()

        engine.scheduler.leases._free_retired = lambda lease: None  # type: ignore[method-assign]
        engine.scheduler.next_batch = looked  # type: ignore[method-assign]

    assert judge(case, forget).broke("leak")
    assert "neither free, nor cached, nor held" in said[0]


# -- leaks that are put in ---------------------------------------------------------------------


def page_forgotten(engine: Engine) -> None:
    """The last page of whatever is freed is not."""
    allocator, free = engine.scheduler.allocator, engine.scheduler.allocator.free
    allocator.free = lambda pages, lease=None: free(pages[:-1])  # type: ignore[method-assign]


def page_freed_twice(engine: Engine) -> None:
    """The first page of a lease goes back twice."""
    allocator, free = engine.scheduler.allocator, engine.scheduler.allocator.free
    allocator.free = lambda pages, lease=None: (free(pages), free(pages[:1]))[0]  # type: ignore


def row_forgotten(engine: Engine) -> None:
    """A request's row is not given back."""
    engine.scheduler.table.free = lambda lease: None  # type: ignore[method-assign]


def row_freed_twice(engine: Engine) -> None:
    """A row is given back twice."""
    table, free = engine.scheduler.table, engine.scheduler.table.free
    table.free = lambda lease: (free(lease), free(lease))[0]  # type: ignore[method-assign]


def lock_forgotten(engine: Engine) -> None:
    """The lock is not taken off when a lease is released."""
    leases, release = engine.scheduler.leases, engine.scheduler.leases.release
    tree = engine.scheduler.tree

    def forgetful(lease: Lease) -> None:
        if tree is None:
            return release(lease)
        unlock, tree.dec_lock_ref = tree.dec_lock_ref, lambda node: None  # type: ignore
        release(lease)
        tree.dec_lock_ref = unlock  # type: ignore[method-assign]
        return None

    leases.release = forgetful  # type: ignore[method-assign]


def lease_of_an_abort_not_closed(engine: Engine) -> None:
    """A request that is aborted keeps its memory."""
    scheduler, abort = engine.scheduler, engine.scheduler.abort
    close = scheduler.leases.close

    def careless(rid: str, error: str = "") -> list[Output]:
        scheduler.leases.close = lambda lease: None  # type: ignore[method-assign]
        outputs = abort(rid, error)
        scheduler.leases.close = close  # type: ignore[method-assign]
        return outputs

    scheduler.abort = careless  # type: ignore[method-assign]


@dataclass(frozen=True)
class Bug:
    """A leak that is put in: what each reader has to say of it."""

    patch: Callable[[Engine], None]
    resource: str
    kind: str
    from_trace: str
    live: str


BUGS = [
    Bug(page_forgotten, "page", "", "page", "nor held: page"),
    Bug(page_freed_twice, "page", "freed", "was freed twice", "times among the free ones"),
    Bug(row_forgotten, "row", "held", "and its lease was never released", "nobody holds it: row"),
    Bug(row_freed_twice, "row", "freed", "was freed twice: in step", "and again in step"),
    Bug(
        lock_forgotten,
        "lock",
        "held",
        "it should have been unlocked then",
        "it should have been unlocked then",
    ),
    Bug(lease_of_an_abort_not_closed, "row", "held", "ended (abort)", "lease was never released"),
]
GIVES_UP = SamplingParams(max_new_tokens=9, ignore_eos=True)
WORKLOAD = Workload(
    [
        Request("a", [7, 7, 11, 2], SamplingParams(max_new_tokens=2)),
        Request("b", [7, 7, 11, 5], SamplingParams(max_new_tokens=4)),
        Request("c", [3, 3, 5, 6], GIVES_UP),
    ],
    arrivals=[0, 1, 1],
    aborts={5: "c"},
    config=SchedulerConfig(kv_tokens=40, context_len=16, max_running_requests=3),
)


def found_by(trace: Trace, bug: Bug) -> list[Leak]:
    """What the reader of traces says of a bug."""
    return [
        leak
        for leak in find_leaks(trace)
        if leak.resource == bug.resource and bug.kind in leak.kind and bug.from_trace in str(leak)
    ]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.patch.__name__)
def test_both_readers_find_it_and_say_whose_it_was(bug: Bug) -> None:
    trace, said = played(WORKLOAD)
    assert said == [] == find_leaks(trace)
    trace, said = played(WORKLOAD, patch=bug.patch)
    leak = found_by(trace, bug)[0]
    words = next(item for item in said if bug.live in item)
    rids = {req.rid for req in WORKLOAD.requests}
    if leak.rid:
        assert leak.rid in rids and leak.rid in str(leak)
        assert {item.id for item in trace.slices} >= set(leak.slices) != set()
    assert any(f"{rid} in step" in words or f"{rid}'s" in words for rid in rids)


def one_run() -> Trace:
    """A healthy run of three requests."""
    run = run_loop("overlap", SimDevice(), HashModel(), requests(), SchedulerConfig(), COST)
    return run.trace


def without(trace: Trace, *names: str) -> Trace:
    """The trace without the marks of these names."""
    marks = tuple(mark for mark in trace.marks if mark.name not in names)
    return replace(trace, marks=marks)


def test_the_story_says_who_took_it_when_and_who_should_have_given_it_back() -> None:
    trace = one_run()
    first = next(mark for mark in trace.marks if mark.name == "row free")
    leaks = find_leaks(replace(trace, marks=tuple(mark for mark in trace.marks if mark != first)))
    (leak,) = (leak for leak in leaks if leak.resource == "row")
    assert str(leak) == (
        "row 2 was allocated to r1 in step 1 (schedule, 0.5 ms); r1 ended (stop) in step 2 "
        "(process, 3.6 ms), and its lease was never released"
    )
    assert leak.offence.slices == leak.slices
    phases = {item.id: (item.name, item.step) for item in trace.slices}
    assert [phases[at] for at in leak.slices] == [("schedule", 0), ("process", 2)]


def test_what_is_held_between_two_steps_is_told_even_if_it_comes_back_in_the_end() -> None:
    trace = one_run()
    first = next(mark for mark in trace.marks if mark.name == "row free")
    others = tuple(mark for mark in trace.marks if mark != first)
    leaks = find_leaks(replace(trace, marks=(*others, replace(first, time=trace.end))))
    (leak,) = (leak for leak in leaks if leak.resource == "row")
    assert (leak.kind, leak.rid) == ("held", "r1")
    assert "and nobody named it any more, but it was released only" in str(leak)


def test_a_step_that_never_comes_back_leaves_its_future_slots() -> None:
    trace = one_run()
    last = [mark for mark in trace.marks if mark.name == "tokens"][-1]
    leaks = find_leaks(replace(trace, marks=tuple(mark for mark in trace.marks if mark != last)))
    (leak,) = (leak for leak in leaks if leak.resource == "step")
    assert f"step {last.attrs['step']} was committed" in str(leak)
    assert "never came back, and so future slot" in str(leak)


def test_a_future_slot_that_is_read_by_others_is_told() -> None:
    trace = one_run()
    assert find_misreads(trace) == []
    at, mark = [item for item in enumerate(trace.marks) if " " in str(item[1].attrs.get("reads"))][
        -1
    ]
    step, reads = int(mark.attrs["step"]), str(mark.attrs["reads"]).split()

    def told(*wrong: str) -> list[str]:
        lapped = replace(mark, attrs={**mark.attrs, "reads": " ".join(wrong)})
        odd = replace(trace, marks=(*trace.marks[:at], lapped, *trace.marks[at + 1 :]))
        assert find_leaks(odd) == []
        return [str(item) for item in find_misreads(odd)]

    right = [f"future slot {slot}, which step {step - 1} was given for " for slot in reads]
    (one,) = told("99", *reads[1:])
    assert f"step {step} reads future slot 99 for " in one
    assert f", which no step was given; it should have read {right[0]}" in one
    swapped = told(reads[1], reads[0], *reads[2:])
    assert len(swapped) == 2 and f"it should have read {right[1]}" in swapped[1]
    (late,) = told(*reads, "99")
    assert late == f"step {step} reads future slot 99, which no step was given"
    (none,) = told(*reads[:-1])
    assert "reads no future slot for" in none and f"it should have read {right[-1]}" in none


def test_who_ended_twice_or_heard_a_token_behind_the_end_is_told() -> None:
    trace = one_run()
    assert find_ends(trace) == []
    end = next(mark for mark in trace.marks if mark.name == "finish")
    twice = replace(trace, marks=(*trace.marks, replace(end, time=trace.end)))
    (found,) = find_ends(twice)
    assert found.law == "ends" and {item.id for item in trace.slices} >= set(found.slices) != set()
    assert str(found).startswith("r1 ended twice: (stop) in step 2 (process, 3.6 ms), and again")
    attrs: dict[str, Any] = {"step": 9, "rids": "r1", "tokens": "5"}
    behind = replace(trace, marks=(*trace.marks, Mark("tokens", trace.end, attrs)))
    (found,) = find_ends(behind)
    assert "r1 heard a token of step 9" in str(found)
    assert "although it had ended (stop) in step 2 (process, 3.6 ms)" in str(found)


def test_phases_that_cost_nothing_are_told_apart() -> None:
    run = run_loop("overlap", SimDevice(), HashModel(), requests(), SchedulerConfig(), NO_COST)
    first = next(mark for mark in run.trace.marks if mark.name == "row free")
    left = tuple(mark for mark in run.trace.marks if mark != first)
    (leak,) = (item for item in find_leaks(replace(run.trace, marks=left)) if item.what == "row 2")
    assert "in step 1 (schedule, 0 ms); r1 ended (stop) in step 2 (process, 0 ms)" in str(leak)
    assert from_json(to_json(run.trace)).marks == run.trace.marks


@pytest.mark.parametrize("waits", ["copy", "thread"])
def test_ops_that_nobody_waited_for(waits: str) -> None:
    trace = one_run()
    assert find_leaks(trace) == []
    if waits == "copy":
        ids = {item.id for item in trace.slices if item.name == "copy"}
        left = [act for act in trace.program if not (act.kind == "wait" and act.op in ids)]
        leaks = find_leaks(replace(trace, program=tuple(left)))
        assert len(leaks) == len(ids)
        assert str(leaks[0]) == (
            "host launched the copy of step 1 in its launch of step 1 on the copy stream, and "
            "nobody has waited for it"
        )
        return
    lane, call = "worker thread", 10**6
    acts = (Act("host", "launch", call), Act(lane, "begin", call))
    (leak,) = find_leaks(replace(trace, program=(*trace.program, *acts)))
    assert (leak.resource, leak.what) == ("thread", lane)


def test_what_a_trace_does_not_tell_is_said() -> None:
    trace = one_run()
    assert not_checked(trace) == []
    dumb = replace(without(trace, "commit", "tokens", "page alloc", "finish"), program=())
    said = " ".join(not_checked(dumb))
    assert all(name in said for name in ("'commit'", "'tokens'", "'page alloc'", "'finish'"))
    assert "no program" in said
    assert find_leaks(without(trace, "commit", "tokens")) == []


def test_a_thread_that_is_left_is_told() -> None:
    done = threading.Event()
    before = books.threads()
    left = threading.Thread(target=done.wait, name="copy thread")
    left.start()
    workload = Workload(requests(), [0, 0, 0], {}, SchedulerConfig())
    engine, _ = play(workload, "serial", "host", {}, SimDevice(), HashModel(), COST)
    try:
        with pytest.raises(Broken, match="copy thread is still alive"):
            books.check_idle(engine.scheduler, before)
    finally:
        done.set()
        left.join()
    books.check_idle(engine.scheduler, before)
