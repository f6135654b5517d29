"""Pages and rows: whose each is at every moment, as the marks tell it, and when they go back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Lease, Request, Result, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.state import memory
from minisched.export.views.page_blocks import number
from minisched.loops.run import run_loop
from minisched.memory.free_rule import RULES
from minisched.memory.page_allocator import PageAllocator
from minisched.memory.req_to_token import OwnershipError, ReqToTokenPool
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import LOOP_OPTIONS, VOCAB, Workload, check_all, fresh, many, play, workloads

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 30, 0, 2, 1)

# -- page_allocator: marks replay to the books -----------------------------------------------------


@given(st.integers(1, 8), st.integers(0, 200))
def test_pages_for_is_the_least_that_holds_them(size: int, tokens: int) -> None:
    need = PageAllocator(1, size).pages_for(tokens)
    assert need * size >= tokens > (need - 1) * size


def test_nothing_is_handed_out_while_its_lease_is_in_use() -> None:
    allocator, lease = PageAllocator(2), Lease(1, "a")
    allocator.alloc(lease, 1)
    assert lease.pages == [1], "never page 0"
    allocator.free(lease.pages)
    with pytest.raises(OwnershipError, match="page 1 was handed out"):
        allocator.alloc(Lease(2, "b"), 1)
    table = ReqToTokenPool(1)
    table.free(table.alloc("a"))
    with pytest.raises(OwnershipError, match="row 1 was handed out"):
        table.alloc("b")


def watch(device: SimDevice, truths: dict[int, Any]) -> Callable[[Engine], None]:
    """Whose every page and row is, after every call that changes it."""

    def owners(pool: Any, free: list[int], most: int) -> dict[int, str]:
        used = {at: pool.last_owner(at) for at in range(1, most + 1) if at not in free}
        return {at: lease.rid if lease else "" for at, lease in used.items()}

    def patch(engine: Engine) -> None:
        allocator, table = engine.scheduler.allocator, engine.scheduler.table

        def followed(call: Callable[..., Any]) -> Callable[..., Any]:
            def both(*args: Any) -> Any:
                result = call(*args)
                truths[device.now()] = (
                    owners(allocator, allocator.free_pages, allocator.num_pages),
                    owners(table, table.free_rows, table.size),
                )
                return result

            return both

        for thing, names in ((allocator, ("alloc", "disown", "free")), (table, ("alloc", "free"))):
            for name in names:
                setattr(thing, name, followed(getattr(thing, name)))

    return patch


@given(workloads(max_requests=5), st.sampled_from(LOOP_OPTIONS))
def test_whole_runs_replay_to_the_scheduler_s_books(workload: Workload, options: Any) -> None:
    device, truths = SimDevice(), dict[int, Any]()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, *options, device, model, COST, watch(device, truths))
    trace = device.recorder.trace(options[0], "sim", "hash", "virtual")
    pages, rows = memory.pages(trace), memory.rows(trace)
    for time, (owners, rows_then) in truths.items():
        assert {number(stay): stay.rid for stay in pages.at(time).values()} == owners
        assert {number(stay): stay.rid for stay in rows.at(time).values()} == rows_then


# -- when memory goes back -------------------------------------------------------------------------


def releases(workload: Workload, rule: str) -> tuple[list[tuple[int, str, int]], set[str]]:
    """Which row goes back after which step under a rule, and whose it was; who wastes a row."""
    freed: list[tuple[int, str, int]] = []

    def watch(engine: Engine) -> None:
        leases, free = engine.scheduler.leases, engine.scheduler.table.free

        def follow(lease: Lease) -> None:
            if lease.last_step:  # not one that was opened and found too large
                freed.append((lease.row, lease.rid, leases.returned_step))
            free(lease)

        engine.scheduler.table.free = follow  # type: ignore[method-assign]

    workload = fresh(workload)
    workload.config = replace(workload.config, free_rule=rule)
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    check_all(workload, *play(workload, "mini_overlap", "pool", {}, device, model, COST, watch))
    marks = device.recorder.trace("", "", "", "virtual").marks
    return freed, {str(mark.attrs["rid"]) for mark in marks if mark.name == "wasted row"}


@given(workload=workloads(with_aborts=False))
@settings(max_examples=many(10, 60))
def test_with_two_steps_in_flight_deferred_is_lease_and_at_once_a_step_earlier(
    workload: Workload,
) -> None:
    """Row by row, with retractions and chunks; where memory is no constraint, for at_once."""
    assert releases(workload, "deferred") == releases(workload, "lease")
    workload.config = replace(
        workload.config, page_size=1, kv_tokens=400, max_running_requests=9,
        schedule_conservativeness=0.0,
    )  # fmt: skip
    (freed, wasted), (early, same) = releases(workload, "lease"), releases(workload, "at_once")
    expected = {rid: step - (rid in wasted) for _, rid, step in freed}
    assert {rid: step for _, rid, step in early} == expected and same == wasted


@pytest.mark.parametrize(("rule", "taken"), [("lease", 2), ("deferred", 1), ("at_once", 1)])
def test_with_three_steps_in_flight_deferred_overlooks_one(rule: str, taken: int) -> None:
    """The newest batch does not name the request, the one before does: its row goes back early."""
    config = SchedulerConfig(free_rule=rule, run_ahead=True, max_running_requests=3)
    scheduler = Scheduler(config)
    stops = Request("a", [1, 2], SamplingParams(stop_token_ids=frozenset({9})))
    scheduler.receive([stops])
    first, second = scheduler.next_batch(), scheduler.next_batch()
    scheduler.receive([Request("b", [3, 4])])
    third = scheduler.next_batch()
    assert first and second and third and (second.rids, third.rids) == (("a",), ("b",))
    scheduler.process(first, Result([9]))
    assert scheduler.table.size - scheduler.table.available_size == taken
    assert first.leases[0].last_step == 2 > scheduler.leases.returned_step


@pytest.mark.parametrize("relay", ["token_pool", "pool"])
@pytest.mark.parametrize("rule", RULES)
def test_two_requests_in_one_row(rule: str, relay: str) -> None:
    """mini-sglang #89: the scheduler's stream fills a row that the engine's stream still writes.

    a stops early; b's prompt is long enough to reach where a's late token lands.
    """
    stops = SamplingParams(max_new_tokens=8, stop_token_ids=frozenset(range(128, 256)))
    config = SchedulerConfig(max_running_requests=1, disable_radix_cache=True, free_rule=rule)

    def run(loop: str, relay: str) -> Any:
        second = SamplingParams(max_new_tokens=3, ignore_eos=True)
        both = [Request("a", [1, 2, 3], stops), Request("b", range(20, 32), second)]
        return run_loop(loop, SimDevice(), HashModel(), both, config, COST, relay)

    truth, found = run("serial", ""), run("mini_overlap", relay)
    assert 1 <= len(truth.outputs["a"]) < stops.max_new_tokens, "a has to end by a stop token"
    assert (found.outputs == truth.outputs) == (rule != "at_once" or relay == "pool")
    late = [item for item in found.trace.slices if (item.name, item.rids) == ("sample", ("a",))][-1]
    first = next(s for s in found.trace.slices if (s.name, s.rids) == ("prepare", ("b",)))
    assert late.step == len(truth.outputs["a"]) + 1, "a's wasted row"
    assert (first.start < late.end) == (rule == "at_once")
