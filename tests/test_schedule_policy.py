"""The waiting order of every policy, against orders written down plainly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Request, Result, SamplingParams
from minisched.memory import RadixCache
from minisched.policy import SchedulePolicy, WaitingQueue
from minisched.policy.preemption import preempt_to_schedule
from minisched.policy.prefill_budget import PrefillBudget
from minisched.policy.schedule_policy import LONG_QUEUE, POLICIES
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder, Recorder

token_lists = st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=12)
waiting_lists = st.lists(
    st.tuples(token_lists, st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=9
)


def make_requests(waiting: list[tuple[list[int], int, int]]) -> list[Request]:
    reqs = []
    for index, (prompt, new, priority) in enumerate(waiting):
        params = SamplingParams(max_new_tokens=new)
        reqs.append(Request(f"r{index}", prompt, params, order=index, priority=priority))
    return reqs


def ordered(policy: SchedulePolicy, reqs: list[Request]) -> list[Request]:
    """The order in which a queue lets them go, one by one."""
    queue = WaitingQueue(policy, NullRecorder())
    for req in reqs:
        queue.add(req)
    found = []
    for req in queue.in_order():
        found.append(req)
        queue.remove(req)
    assert not queue
    return found


def filled_tree(cached: list[list[int]]) -> RadixCache:
    tree, page = RadixCache(1), 0
    for tokens in cached:
        tree.insert(tokens, range(page, page + len(tokens)))
        page += len(tokens)
    return tree


def hit(cached: list[list[int]], prompt: list[int]) -> int:
    """Tokens of a prompt that are cached, without its last."""
    lengths = [n for n in range(len(prompt)) if any(c[:n] == prompt[:n] for c in cached)]
    return max(lengths, default=0)


@given(waiting_lists)
def test_orders_that_look_at_the_request_alone(waiting: list[tuple[list[int], int, int]]) -> None:
    reqs = make_requests(waiting)
    keys = {
        "fcfs": lambda req: req.order,
        "lof": lambda req: (-req.params.max_new_tokens, req.order),
        "priority": lambda req: (-req.priority, req.order),
    }
    for name, key in keys.items():
        assert ordered(SchedulePolicy(name, None), reqs) == sorted(reqs, key=key)


@given(waiting_lists, st.integers(0, 3))
def test_random_is_repeatable_and_loses_nobody(
    waiting: list[tuple[list[int], int, int]], seed: int
) -> None:
    reqs = make_requests(waiting)
    first = ordered(SchedulePolicy("random", None, seed), reqs)
    assert first == ordered(SchedulePolicy("random", None, seed), list(reversed(reqs)))
    assert sorted(first, key=lambda req: req.order) == reqs


def test_random_depends_on_the_seed() -> None:
    reqs = make_requests([([1], 1, 0)] * 9)
    assert len({tuple(ordered(SchedulePolicy("random", None, s), reqs)) for s in range(9)}) > 1


@given(waiting_lists, st.lists(token_lists, max_size=4))
def test_lpm_takes_the_longest_cached_prefix_first(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    reqs = make_requests(waiting)  # too short for in-batch caching: that is tested below
    found = ordered(SchedulePolicy("lpm", filled_tree(cached)), reqs)
    assert found == sorted(reqs, key=lambda req: (-hit(cached, list(req.prompt)), req.order))


@given(waiting_lists, st.lists(token_lists, max_size=4))
def test_dfs_weight_keeps_subtrees_together_the_heaviest_first(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    """Below any node, those who wait on a heavier child come before those on a lighter one."""
    reqs = make_requests(waiting)
    found = ordered(SchedulePolicy("dfs-weight", filled_tree(cached)), reqs)
    assert set(found) == set(reqs)
    tree = filled_tree(cached)
    branch: dict[int, list[int]] = {}
    for place, req in enumerate(found):
        node, top = tree.match_prefix(req.prompt[:-1]).node, 0
        while node.parent is not None:
            top, node = node.id, node.parent
        branch.setdefault(top, []).append(place)
    for places in branch.values():
        assert places == list(range(places[0], places[0] + len(places))), "a subtree is torn apart"
    below = [len(places) for top, places in sorted(branch.items(), key=lambda i: i[1]) if top]
    assert below == sorted(below, reverse=True)


def test_of_those_that_share_an_uncached_prefix_one_goes_first() -> None:
    """In-batch prefix caching: the others wait until it is cached."""
    shared = list(range(40))
    prompts = [[*shared, 1], [*shared, 2], [7] * 3, [*shared, 3]]
    reqs = make_requests([(prompt, 1, 0) for prompt in prompts])
    tree = filled_tree([[9]])
    assert [req.rid for req in ordered(SchedulePolicy("lpm", tree), reqs)] == [
        "r0", "r2", "r1", "r3"
    ]  # fmt: skip
    tree.insert(shared, range(40))
    assert [req.rid for req in ordered(SchedulePolicy("lpm", tree), reqs)] == [
        "r0", "r1", "r3", "r2"
    ]  # fmt: skip


def test_over_a_long_queue_lpm_is_first_come_first_served() -> None:
    tree = filled_tree([[1, 2, 3]])
    waiting = [([5, 5], 1, 0)] * LONG_QUEUE
    short = make_requests([*waiting[1:], ([1, 2, 3, 4], 1, 0)])
    assert ordered(SchedulePolicy("lpm", tree), short)[0] is short[-1]
    long = make_requests([*waiting, ([1, 2, 3, 4], 1, 0)])
    assert ordered(SchedulePolicy("lpm", tree), long)[:-LONG_QUEUE] == long[:-LONG_QUEUE]


def test_without_a_cache_every_cache_aware_policy_is_fcfs() -> None:
    reqs = make_requests([([2], 1, 0), ([1, 2], 1, 0), ([1], 1, 0)])
    for name in ("lpm", "dfs-weight"):
        assert ordered(SchedulePolicy(name, None), reqs) == reqs


@given(st.data())
def test_a_queue_forgets_nobody(data: st.DataObject) -> None:
    """Against a sorted list: added, removed, added again, in any order."""
    reqs = make_requests([([1], new, new % 3) for new in range(1, 7)])
    policy = SchedulePolicy(data.draw(st.sampled_from(["fcfs", "lof", "priority"])), None)
    queue = WaitingQueue(policy, NullRecorder())
    inside: set[Request] = set()
    for req in data.draw(st.lists(st.sampled_from(reqs), max_size=30)):
        if req in inside:
            queue.remove(req)
            inside.remove(req)
        else:
            queue.add(req)
            inside.add(req)
        assert len(queue) == len(inside) and list(queue) == sorted(inside, key=lambda r: r.order)
        first = min(inside, key=lambda r: (policy.rank(r), r.order), default=None)
        assert next(queue.in_order(), None) is first


@given(
    running=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=5),
    need=st.integers(1, 20),
    priority=st.integers(0, 6),
    threshold=st.integers(0, 3),
    ratio=st.sampled_from([0.0, 0.5]),
)
def test_preemption_is_all_or_nothing(
    running: list[tuple[int, int]], need: int, priority: int, threshold: int, ratio: float
) -> None:
    """Lowest priority first, then the newest; only over the threshold; no more than needed."""
    held = sum(pages for _, pages in running)
    scheduler = Scheduler(SchedulerConfig(kv_tokens=held + 1))
    reqs = []
    for index, (level, pages) in enumerate(running):
        req = Request(f"r{index}", [1], SamplingParams(max_new_tokens=4), priority=level)
        req.order, req.lease = index, scheduler.leases.open()
        scheduler.leases.extend(req.lease, pages)
        reqs.append(req)
    new = Request("new", [1] * need, SamplingParams(max_new_tokens=1), priority=priority)
    budget = PrefillBudget(scheduler.leases, reqs, ratio, 99, None)
    short = need + 1 + 1 + 1 - budget.rem_total_tokens
    victims = preempt_to_schedule(new, budget, reqs, threshold)
    in_turn = sorted(reqs, key=lambda req: (req.priority, -req.order))
    assert victims == in_turn[: len(victims)]
    assert all(priority - victim.priority > threshold for victim in victims)
    gains = [running[req.order][1] + budget.reserve(req) for req in in_turn]
    allowed = sum(priority - req.priority > threshold for req in in_turn)
    enough = [n for n in range(len(reqs) + 1) if sum(gains[:n]) >= short]
    expected = enough[0] if enough and enough[0] <= allowed else 0
    assert len(victims) == expected


def test_a_request_of_high_priority_takes_a_running_ones_place() -> None:
    config = SchedulerConfig(
        kv_tokens=16, schedule_policy="priority", priority_scheduling_preemption_threshold=2
    )
    scheduler = Scheduler(config, Recorder())
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    scheduler.receive([Request("low", [1] * 6, params, priority=1)])
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5]))
    scheduler.receive([Request("near", [2] * 6, params, priority=3)])
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("low",), "3 is not higher than 1 by more than 2"
    scheduler.process(batch, Result([5]))
    scheduler.receive([Request("high", [3] * 6, params, priority=4)])
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("high",)
    assert [req.rid for req in scheduler.waiting_queue] == ["low", "near"]
    marks = scheduler.recorder.trace("", "", "", "").marks
    assert [mark.attrs["rid"] for mark in marks if mark.name == "retraction"] == ["low"]


@pytest.mark.parametrize("kv_tokens", [40, 45, 50])
def test_who_is_refused_for_the_length_of_the_batch_takes_nobodys_memory(kv_tokens: int) -> None:
    """What "last" needs is in the cache, locked by "runs": it has memory, and waits for a batch."""
    config = SchedulerConfig(
        kv_tokens=kv_tokens,
        max_prefill_tokens=8,
        schedule_policy="priority",
        priority_scheduling_preemption_threshold=0,
    )
    scheduler = Scheduler(config, Recorder())
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    scheduler.receive([Request("runs", [1] * 20, params, priority=1)])
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5]))
    one = SamplingParams(max_new_tokens=1)
    first, last = (
        Request("first", [2] * 6, one, priority=5),
        Request("last", [1] * 23, one, priority=4),
    )
    scheduler.receive([first, last])
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("first",) and scheduler.num_retractions == 0
    marks = scheduler.recorder.trace("", "", "", "").marks
    refusals = [mark.attrs["reason"] for mark in marks if mark.name == "refuse"]
    assert refusals == ["max_prefill_tokens: needs 3 tokens, 2 left"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_ends_every_request(policy: str) -> None:
    """No order starves anybody for ever once no new requests come."""
    scheduler = Scheduler(SchedulerConfig(kv_tokens=40, schedule_policy=policy))
    reqs = make_requests([([1] * (i % 5 + 1), 3, i % 3) for i in range(12)])
    scheduler.receive(reqs)
    for _ in range(300):
        batch = scheduler.next_batch()
        if batch:
            scheduler.process(batch, Result([5] * len(batch.rows)))
    assert all(req.finished for req in reqs)


def test_memory_on_its_way_back_is_waited_for_not_taken_from_somebody_else() -> None:
    """A request that has just ended, its step in flight, gives what is needed (SGLang #17797)."""
    config = SchedulerConfig(kv_tokens=20, disable_radix_cache=True)
    scheduler = Scheduler(config)
    reqs = []
    for index in range(2):
        req = Request(f"r{index}", [1], SamplingParams(max_new_tokens=1))
        req.order, req.lease = index, scheduler.leases.open()
        scheduler.leases.extend(req.lease, 9)
        reqs.append(req)
    ended, runs = reqs
    assert ended.lease is not None
    ended.lease.last_step = 1  # launched, and not back
    scheduler.leases.close(ended.lease)
    new = Request("new", [1] * 6, SamplingParams(max_new_tokens=1), priority=9)
    budget = PrefillBudget(scheduler.leases, [runs], 0.0, 99, None)
    assert preempt_to_schedule(new, budget, [runs], 0) == []
    scheduler.leases.came_back(1)
    assert scheduler.leases.available_pages == 11


def test_what_several_share_comes_back_only_with_the_last_of_them() -> None:
    scheduler = Scheduler(SchedulerConfig(kv_tokens=30))
    first = Request("a", [1] * 8, SamplingParams(max_new_tokens=4, ignore_eos=True))
    scheduler.receive([first])
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5]))
    assert first.lease is not None
    assert scheduler.leases.pages_given_back(first.lease) == 8
    scheduler.receive([Request("b", [1] * 8, first.params)])
    batch = scheduler.next_batch()
    assert batch and batch.starts == [7]
    assert scheduler.leases.pages_given_back(first.lease) == 1, "seven are locked twice"
