"""No leak on any loop, at any step; and each that is put in is found, with its owner's story.

Two readers look: one at a live scheduler between two turns, one at a trace alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import Phase, find, given, settings

from minisched.checks import books
from minisched.checks.laws import Broken
from minisched.checks.leak import Leak
from minisched.checks.leaks import find_leaks, not_checked
from minisched.core import Lease, SamplingParams
from minisched.core.request import Request
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.devices.thread import ThreadDevice
from minisched.engine.engine import Engine
from minisched.export.native import from_json, to_json
from minisched.loops.run import run_loop
from minisched.memory.radix_node import TreeNode
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Slice, Trace

from .laws import LOOP_OPTIONS, play
from .workloads import VOCAB, Workload, fresh, workloads

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


def healthy(engine: Engine) -> None:
    """Nothing is changed."""


def played(
    workload: Workload,
    loop: str = "overlap",
    relay: str = "ring",
    patch: Callable[[Engine], None] = healthy,
    options: dict[str, object] | None = None,
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
            lambda engine: look(lambda: books.check_step(engine.scheduler)),
        )  # fmt: skip
        look(lambda: books.check_idle(engine.scheduler))
    except Exception as error:  # a broken scheduler may crash in any way
        said.append(f"{type(error).__name__}: {error}")
    return device.recorder.trace(loop, "sim", "hash", "virtual"), said


@pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS)
@given(workload=workloads())
@settings(max_examples=6, deadline=None)
def test_nothing_leaks_at_any_step(
    loop: str, relay: str, options: dict[str, object], workload: Workload
) -> None:
    trace, said = played(workload, loop, relay, options=options)
    assert said == []
    assert find_leaks(trace) == []


@pytest.mark.parametrize("device", [SimDevice, ThreadDevice])
@pytest.mark.parametrize("loop", ["serial", "overlap", "overlap_thread", "mindie_dual", "pd"])
def test_nothing_leaks_on_other_clocks_and_two_schedulers(loop: str, device: type) -> None:
    if loop == "pd" and device is not SimDevice:
        return
    before = books.threads()
    run = run_loop(loop, device(), HashModel(), requests(), SchedulerConfig(kv_tokens=64))
    assert find_leaks(run.trace) == [] == not_checked(run.trace)
    assert find_leaks(from_json(to_json(run.trace))) == []
    assert set(books.threads()) <= set(before)


def requests() -> list[Request]:
    """Three that share a prefix; the last ones stop early."""
    stops = frozenset(range(128))
    return [
        Request(f"r{i}", [7, 7, 11, 2, i], SamplingParams(max_new_tokens=6, stop_token_ids=ends))
        for i, ends in enumerate([frozenset[int](), stops, stops])
    ]


# -- leaks that are put in ---------------------------------------------------------------------


def page_forgotten(engine: Engine) -> None:
    """The last page of whatever is freed is not."""
    allocator, free = engine.scheduler.allocator, engine.scheduler.allocator.free
    allocator.free = lambda pages: free(pages[:-1])  # type: ignore[method-assign]


def page_freed_twice(engine: Engine) -> None:
    """The first page of a lease goes back twice."""
    allocator, free = engine.scheduler.allocator, engine.scheduler.allocator.free
    allocator.free = lambda pages: (free(pages), free(pages[:1]))[0]  # type: ignore[method-assign]


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
    scheduler, abort, close = engine.scheduler, engine.scheduler.abort, engine.scheduler.leases.close

    def careless(rid: str) -> list[object]:
        scheduler.leases.close = lambda lease: None  # type: ignore[method-assign]
        outputs = abort(rid)
        scheduler.leases.close = close  # type: ignore[method-assign]
        return outputs

    scheduler.abort = careless  # type: ignore[method-assign, assignment]


@dataclass(frozen=True)
class Bug:
    """A leak that is put in: what each reader has to say of it."""

    patch: Callable[[Engine], None]
    resource: str
    kind: str
    from_trace: str
    live: str


BUGS = [
    Bug(page_forgotten, "page", "", "page", "neither free, nor cached, nor held"),
    Bug(page_freed_twice, "page", "freed", "was freed twice", "times among the free ones"),
    Bug(row_forgotten, "row", "held", "and its lease was never released", "nobody holds it"),
    Bug(row_freed_twice, "row", "freed", "although nobody held it", "is held twice"),
    Bug(lock_forgotten, "lock", "held", "a lock on node", "times, but it is nobody who may hold it"),
    Bug(lease_of_an_abort_not_closed, "row", "held", "ended (abort)", "was never released"),
]


def found_by(trace: Trace, bug: Bug) -> list[Leak]:
    """What the reader of traces says of a bug."""
    return [
        leak
        for leak in find_leaks(trace)
        if leak.resource == bug.resource and bug.kind in leak.kind and bug.from_trace in str(leak)
    ]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.patch.__name__)
def test_both_readers_find_it(bug: Bug) -> None:
    def caught(workload: Workload) -> bool:
        trace, said = played(workload, patch=bug.patch)
        return bool(found_by(trace, bug)) and any(bug.live in item for item in said)

    search = settings(max_examples=2000, deadline=None, derandomize=True, database=None)
    workload = find(workloads(), caught, settings=search)
    assert played(workload)[1] == [] == find_leaks(played(workload)[0])
    trace, said = played(workload, patch=bug.patch)
    leak, words = found_by(trace, bug)[0], next(item for item in said if bug.live in item)
    print(leak, "|", words)
