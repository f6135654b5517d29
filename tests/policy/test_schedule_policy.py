"""Who is admitted first: every waiting order against the same order written down plainly."""

from __future__ import annotations

import random
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Request, Result, SamplingParams
from minisched.memory import RadixCache
from minisched.memory.radix_node import TreeNode
from minisched.policy import SchedulePolicy, WaitingQueue
from minisched.policy.preemption import preempt_to_schedule
from minisched.policy.prefill_budget import PrefillBudget
from minisched.policy.schedule_policy import LONG_QUEUE
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder

# -- schedule_policy: orders -----------------------------------------------------------------------

token_lists = st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=12)
blocks = st.lists(st.sampled_from([8, 9]), max_size=4)  # each of 16 tokens
long_lists = st.builds(lambda long, own: [t for t in long for _ in range(16)] + own, blocks,
                       token_lists)  # fmt: skip
prompt_lists = st.one_of(token_lists, long_lists)
waiting_lists = st.lists(
    st.tuples(prompt_lists, st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=9
)


def make_requests(waiting: list[tuple[list[int], int, int]]) -> list[Request]:
    return [
        Request(f"r{at}", prompt, SamplingParams(max_new_tokens=new), order=at, priority=priority)
        for at, (prompt, new, priority) in enumerate(waiting)
    ]


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


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(waiting_lists, st.integers(0, 3))
def test_orders_that_look_at_the_request_alone(
    waiting: list[tuple[list[int], int, int]], seed: int
) -> None:
    reqs = make_requests(waiting)
    keys = {
        "fcfs": lambda req: req.order,
        "lof": lambda req: (-req.params.max_new_tokens, req.order),
        "priority": lambda req: (-req.priority, req.order),
    }
    for name, key in keys.items():
        assert ordered(SchedulePolicy(name, None), reqs) == sorted(reqs, key=key)
    shuffled = ordered(SchedulePolicy("random", None, seed), reqs)
    assert shuffled == ordered(SchedulePolicy("random", None, seed), reqs[::-1])
    assert sorted(shuffled, key=lambda req: req.order) == reqs


def test_random_depends_on_the_seed() -> None:
    reqs = make_requests([([1], 1, 0)] * 9)
    assert len({tuple(ordered(SchedulePolicy("random", None, s), reqs)) for s in range(9)}) > 1


@given(waiting_lists, st.lists(prompt_lists, max_size=4))
def test_lpm_takes_the_longest_cached_prefix_first_and_twins_of_uncached_ones_last(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    """In-batch prefix caching: who shares 32 uncached tokens with an earlier one waits for it."""
    reqs = make_requests(waiting)
    hits, ahead, late = {}, list[list[int]](), set()
    for req in reqs:
        prompt = list(req.prompt)
        hits[req] = max((shared(prompt[:-1], each) for each in cached), default=0)
        if hits[req] <= 32:
            if any(shared(prompt, other) >= 32 for other in ahead):
                late.add(req)
            else:
                ahead.append(prompt)
    found = ordered(SchedulePolicy("lpm", filled_tree(cached)), reqs)
    assert found == sorted(reqs, key=lambda req: (req in late, -hits[req], req.order))


@given(waiting_lists, st.lists(prompt_lists, max_size=4))
def test_dfs_weight_keeps_subtrees_together_the_heaviest_first(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    reqs = make_requests(waiting)
    tree = filled_tree(cached)
    found = ordered(SchedulePolicy("dfs-weight", tree), reqs)
    at: dict[TreeNode, list[int]] = {}
    for place, req in enumerate(found):
        at.setdefault(tree.match_prefix(req.prompt[:-1]).node, []).append(place)

    def check(node: TreeNode) -> list[int]:
        """Places of all below a node: its own, then each child's together, the heaviest first."""
        below = sorted(filter(None, map(check, node.children.values())))
        sizes = [len(places) for places in below]
        assert sizes == sorted(sizes, reverse=True)
        own = at.get(node, [])
        assert [found[place].order for place in own] == sorted(found[p].order for p in own)
        return own + [place for places in below for place in places]

    assert check(tree.root_node) == list(range(len(reqs)))


def test_over_a_long_queue_or_without_a_cache_lpm_is_first_come_first_served() -> None:
    tree = filled_tree([[1, 2, 3]])
    waiting = [([5, 5], 1, 0)] * LONG_QUEUE
    short = make_requests([*waiting[1:], ([1, 2, 3, 4], 1, 0)])
    assert ordered(SchedulePolicy("lpm", tree), short)[0] is short[-1]
    long = make_requests([*waiting, ([1, 2, 3, 4], 1, 0)])
    assert ordered(SchedulePolicy("lpm", tree), long)[:-LONG_QUEUE] == long[:-LONG_QUEUE]
    for name in ("lpm", "dfs-weight"):
        assert ordered(SchedulePolicy(name, None), short) == short


@given(st.sampled_from(["fcfs", "lof", "priority"]), st.randoms(use_true_random=False))
def test_a_queue_forgets_nobody(name: str, dice: random.Random) -> None:
    """Against a sorted list: added, removed, added again; some with stale output wait aside."""
    reqs = make_requests([([1], new, new % 3) for new in range(1, 7)])
    policy = SchedulePolicy(name, None)
    queue = WaitingQueue(policy, NullRecorder())
    inside: set[Request] = set()
    for _ in range(dice.randint(0, 200)):
        req = dice.choice(reqs)
        if req in inside and not req.num_stale_output_tokens:
            queue.remove(req)
            inside.remove(req)
        else:
            req.num_stale_output_tokens = dice.choice([0, 0, 1])
            queue.add(req)
            inside.add(req)
        assert len(queue) == len(inside) and all((req in queue) == (req in inside) for req in reqs)
        assert list(queue) == sorted(inside, key=lambda r: r.order)
        asked = [req for req in inside if not req.num_stale_output_tokens]
        first = min(asked, key=lambda r: (policy.rank(r), r.order), default=None)
        assert next(queue.in_order(), None) is queue.first() is first
        assert len(queue._line) + len(queue._heap) <= 2 * len(reqs) + 65, "it is tidied up"


def test_who_comes_back_by_the_same_id_waits_behind_those_who_came_meanwhile() -> None:
    queue = WaitingQueue(SchedulePolicy("fcfs", None), NullRecorder())
    first, other, again = (Request(rid, [1], order=at) for at, rid in enumerate("aba"))
    queue.add(first)
    queue.add(other)
    queue.remove(first)
    queue.add(again)
    assert queue.first() is other and list(queue) == [other, again] and first not in queue


# -- preemption: a higher priority takes running ones' places --------------------------------------


@given(
    running=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=5),
    need=st.integers(1, 20),
    priority=st.integers(0, 6),
    threshold=st.integers(0, 3),
    ratio=st.sampled_from([0.0, 0.5]),
    returning=st.integers(0, 9),
)
def test_preemption_is_all_or_nothing(
    running: list[tuple[int, int]], need: int, priority: int, threshold: int, ratio: float,
    returning: int,
) -> None:  # fmt: skip
    """Lowest priority first, then the newest; only over the threshold; no more than needed.

    Memory of a request that has ended, its step in flight, is waited for (SGLang #17797).
    """
    held = sum(pages for _, pages in running)
    config = SchedulerConfig(kv_tokens=held + returning + 1, disable_radix_cache=True)
    leases, reqs = Scheduler(config).leases, []
    for at, (level, pages) in enumerate(running):
        req = Request(f"r{at}", [1], SamplingParams(max_new_tokens=4), priority=level, order=at)
        req.lease = leases.open()
        leases.extend(req.lease, pages)
        reqs.append(req)
    ended = leases.open()
    leases.extend(ended, returning)
    ended.last_step = 1  # launched, and not back
    leases.close(ended)
    new = Request("new", [1] * need, SamplingParams(max_new_tokens=1), priority=priority)
    budget = PrefillBudget(leases, reqs, ratio, 99, None)
    short = need + 1 + 1 + 1 - budget.rem_total_tokens - returning
    in_turn = sorted(reqs, key=lambda req: (req.priority, -req.order))
    gains = [running[req.order][1] + budget.reserve(req) for req in in_turn]
    allowed = sum(priority - req.priority > threshold for req in in_turn)
    enough = [n for n in range(len(reqs) + 1) if sum(gains[:n]) >= short]
    expected = enough[0] if enough and enough[0] <= allowed else 0
    assert preempt_to_schedule(new, budget, reqs, threshold) == in_turn[:expected]


def run(scheduler: Scheduler, *reqs: Request) -> tuple[str, ...]:
    """One step, once these have come; who is in it."""
    scheduler.receive(reqs)
    batch = scheduler.next_batch()
    assert batch
    scheduler.process(batch, Result([5] * len(batch.rows)))
    return batch.rids


def test_what_several_share_comes_back_only_with_the_last_of_them() -> None:
    scheduler = Scheduler(SchedulerConfig(kv_tokens=30))
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    first = Request("a", [1] * 8, params)
    run(scheduler, first)
    assert first.lease is not None
    assert scheduler.leases.pages_given_back(first.lease) == 8
    scheduler.receive([Request("b", [1] * 8, params)])
    scheduler.next_batch()
    assert scheduler.leases.pages_given_back(first.lease) == 1, "seven are locked twice"
