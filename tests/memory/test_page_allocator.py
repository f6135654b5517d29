"""Pages and rows: none is handed out while it is in use, and when they go back, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Lease, Request, Result, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.memory.free_rule import RULES
from minisched.memory.page_allocator import PageAllocator
from minisched.memory.req_to_token import OwnershipError, ReqToTokenPool
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 30, 0, 2, 1)

# -- page_allocator: pages of tokens, each with one owner ------------------------------------------


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


# -- when memory goes back -------------------------------------------------------------------------


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
