"""When memory goes back: two rules are one at depth two, and the third needs a single stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from minisched.core import Lease, NoBatch, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.memory.free_rule import RULES, Steps
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import VOCAB, Broken, Workload, check_all, fresh, play, workloads

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 30, 0, 2, 1)
LOOPS_OF_DEPTH_TWO = [
    ("overlap", "ring"), ("overlap", "pool"),
    ("mini_overlap", "token_pool"), ("mini_overlap", "pool"),
]  # fmt: skip


def with_rule(workload: Workload, rule: str) -> Workload:
    """The same requests, not run yet, under another rule."""
    copy = fresh(workload)
    copy.config = SchedulerConfig(**{**vars(workload.config), "free_rule": rule})
    return copy


def released(
    workload: Workload, rule: str, loop: str, relay: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Plays it; gives (row, last step that had come back) of each release.

    And the same of each row that was handed out while a launched step still named it.
    """
    freed: list[tuple[int, int]] = []
    early: list[tuple[int, int]] = []

    def spy(engine: Engine) -> None:
        leases, table = engine.scheduler.leases, engine.scheduler.table
        free, alloc = table.free, table.alloc
        last: dict[int, Lease] = {}

        def spied_free(lease: Lease) -> None:
            freed.append((lease.row, leases.returned_step))
            free(lease)

        def spied_alloc(rid: str = "") -> Lease:
            lease = alloc(rid)
            before = last.get(lease.row)
            if before is not None and before.last_step > leases.returned_step:
                early.append((lease.row, leases.returned_step))
            last[lease.row] = lease
            return lease

        table.free = spied_free  # type: ignore[method-assign]
        table.alloc = spied_alloc  # type: ignore[method-assign]

    workload = with_rule(workload, rule)
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, loop, relay, {}, SimDevice(), model, COST, spy)
    check_all(workload, engine, outputs)
    return freed, early


@pytest.mark.parametrize(("loop", "relay"), LOOPS_OF_DEPTH_TWO)
@given(workload=workloads())
@settings(max_examples=60, deadline=None)
def test_with_two_steps_in_flight_deferred_is_lease(
    loop: str, relay: str, workload: Workload
) -> None:
    """Row by row and step by step, with retractions, chunks and aborts; and nobody is early."""
    by_lease = released(workload, "lease", loop, relay)
    assert released(workload, "deferred", loop, relay) == by_lease
    assert by_lease[1] == []


@given(last=st.integers(0, 9), returned=st.integers(0, 9), ahead=st.integers(0, 1))
def test_the_two_rules_agree_wherever_one_step_is_ongoing(
    last: int, returned: int, ahead: int
) -> None:
    steps = Steps(returned + ahead, returned)
    lease = Lease(1, last_step=min(last, steps.launched))
    assert RULES["deferred"](lease, steps) == RULES["lease"](lease, steps)


def test_with_three_steps_in_flight_deferred_overlooks_one() -> None:
    """The newest batch does not name the request, the one before does: its row goes back early."""
    taken: dict[str, int] = {}
    for rule in RULES:
        config = SchedulerConfig(free_rule=rule, run_ahead=True, max_running_requests=3)
        scheduler = Scheduler(config)
        stops = Request("a", [1, 2], SamplingParams(stop_token_ids=frozenset({9})))
        scheduler.receive([stops])
        first, second = scheduler.next_batch(), scheduler.next_batch()
        scheduler.receive([Request("b", [3, 4])])
        third = scheduler.next_batch()
        assert first and second and third and (second.rids, third.rids) == (("a",), ("b",))
        scheduler.process(first, Result([9]))
        taken[rule] = scheduler.table.size - scheduler.table.available_size
        assert first.leases[0].last_step == 2 > scheduler.leases.returned_step
    assert taken == {"lease": 2, "deferred": 1, "at_once": 1}


def freed_at(workload: Workload, rule: str) -> tuple[dict[str, int], set[str]]:
    """Plays it; gives after which step each request's memory went back, and who wasted a row."""
    device, workload = SimDevice(), with_rule(workload, rule)
    owner: dict[Lease, str] = {}
    freed: dict[str, int] = {}

    def spy(engine: Engine) -> None:
        scheduler, leases = engine.scheduler, engine.scheduler.leases
        next_batch, free = scheduler.next_batch, leases.table.free

        def owned() -> ScheduleBatch | NoBatch:
            batch = next_batch()
            if batch:
                owner.update(zip(batch.leases, batch.rids, strict=True))
            return batch

        def note(lease: Lease) -> None:
            if lease in owner:  # not one that was opened and found too large
                freed[owner[lease]] = leases.returned_step
            free(lease)

        scheduler.next_batch = owned  # type: ignore[method-assign]
        leases.table.free = note  # type: ignore[method-assign]

    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "mini_overlap", "pool", {}, device, model, COST, spy)
    marks = device.recorder.trace("", "", "", "virtual").marks
    return freed, {str(mark.attrs["rid"]) for mark in marks if mark.name == "wasted row"}


@given(workload=workloads(with_aborts=False))
@settings(max_examples=100, deadline=None)
def test_at_once_is_one_step_earlier_for_whoever_wastes_a_row(workload: Workload) -> None:
    """Where memory is no constraint, so that all rules give the same schedule."""
    most = {"kv_tokens": 400, "max_running_requests": 9, "schedule_conservativeness": 0.0}
    workload.config = SchedulerConfig(**{**vars(workload.config), "page_size": 1, **most})
    freed, wasted = freed_at(workload, "lease")
    assert freed_at(workload, "deferred") == (freed, wasted)
    earlier = {rid: step - (rid in wasted) for rid, step in freed.items()}
    assert freed_at(workload, "at_once") == (earlier, wasted)


# -- what at_once relies on --------------------------------------------------------------------


def broken(workload: Workload, rule: str, relay: str) -> str:
    """What is wrong with a run of mini_overlap, or nothing."""
    try:
        released(workload, rule, "mini_overlap", relay)
    except Broken as error:
        return str(error)
    return ""


def some_workload(caught: Callable[[Workload], bool]) -> Workload:
    """The first workload drawn that does it."""
    search = settings(
        max_examples=3000, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
    )
    return find(workloads(), caught, settings=search)


def test_at_once_lets_a_wasted_row_overwrite_a_prompt_in_the_token_pool() -> None:
    """mini-sglang #89: the scheduler's stream fills a row that the engine's stream still writes."""
    workload = some_workload(
        lambda some: broken(some, "at_once", "token_pool").startswith("identity")
    )
    assert broken(workload, "lease", "token_pool") == ""
    assert broken(workload, "deferred", "token_pool") == ""


@pytest.mark.parametrize("relay", ["ring", "pool"])
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_at_once_is_harmless_while_one_stream_writes(relay: str, workload: Workload) -> None:
    assert broken(workload, "at_once", relay) == ""


STOPS = SamplingParams(max_new_tokens=8, stop_token_ids=frozenset(range(128, 256)))


def two_in_one_row(rule: str) -> Workload:
    """a stops early; b's prompt is long enough to reach where a's late token lands."""
    requests = [
        Request("a", [1, 2, 3], STOPS),
        Request("b", range(20, 32), SamplingParams(max_new_tokens=3, ignore_eos=True)),
    ]
    config = SchedulerConfig(max_running_requests=1, disable_radix_cache=True, free_rule=rule)
    return Workload(requests, [0, 0], {}, config)


@pytest.mark.parametrize("relay", ["token_pool", "pool"])
@pytest.mark.parametrize("rule", RULES)
def test_two_requests_in_one_row(rule: str, relay: str) -> None:
    """The example of the guide. Identity alone does not see every row that is handed out early."""
    truth = run_loop("serial", SimDevice(), HashModel(), two_in_one_row(rule).requests, cost=COST)
    assert 1 <= len(truth.outputs["a"]) < STOPS.max_new_tokens, "a has to end by a stop token"
    workload = two_in_one_row(rule)
    run = run_loop(
        "mini_overlap", SimDevice(), HashModel(), workload.requests, workload.config, COST, relay
    )
    assert (run.outputs == truth.outputs) == (rule != "at_once" or relay == "pool")
    late = [item for item in run.trace.slices if item.name == "sample" and item.rids == ("a",)][-1]
    next_owner = [item for item in run.trace.slices if item.rids == ("b",)]
    first = next(item for item in next_owner if item.name == "prepare")
    assert late.step == len(truth.outputs["a"]) + 1, "a's wasted row"
    assert (first.start < late.end) == (rule == "at_once")


def test_there_is_no_other_rule() -> None:
    with pytest.raises(ValueError, match=r"^free_rule is 'later', but it must be one of lease, "):
        SchedulerConfig(free_rule="later")
