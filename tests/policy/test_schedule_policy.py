"""Who is admitted first, who gives way when memory runs out, and one budget for everybody."""

from __future__ import annotations

import random
from collections import deque
from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.core import FinishReason, Request, Result, SamplingParams, ScheduleBatch
from minisched.core.part import Admission, RequestPart
from minisched.memory import RadixCache
from minisched.memory.radix_cache import TreeNode
from minisched.policy import (
    NewTokenRatio,
    PrefillAdder,
    SchedulePolicy,
    WaitingQueue,
)
from minisched.policy.decode import DECAY_STEPS
from minisched.policy.prefill_adder import ChunkRule
from minisched.policy.rules import RUN_FIRST
from minisched.policy.sglang import Ratio, fewest_outputs
from minisched.policy.waiting import LONG_QUEUE, is_held
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder, Recorder
from tests.support import check_books, turn

EIGHT = SamplingParams(max_new_tokens=8, ignore_eos=True)


# -- schedule_policy: orders that look at the cache; the law of progress has the others ------------

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
        Request(
            f"r{at}",
            prompt,
            SamplingParams(max_new_tokens=new),
            admission=Admission(order=at),
            priority=priority,
        )
        for at, (prompt, new, priority) in enumerate(waiting)
    ]


def ordered(policy: SchedulePolicy, reqs: list[Request]) -> list[Request]:
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


@given(waiting_lists, st.lists(prompt_lists, max_size=4))
def test_lpm_takes_the_longest_cached_prefix_first_and_twins_of_uncached_ones_last(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    """In-batch prefix caching: who shares 32 uncached tokens with an earlier one waits for it."""
    reqs = make_requests(waiting)
    hits, ahead, late = {}, list[list[int]](), set()
    for req in reqs:
        prompt = list(req.prompt)
        found = max((shared(prompt, each) for each in cached), default=0)
        hits[req] = min(found, len(prompt) - 1)
        if found <= 32:
            if any(shared(prompt, other) >= 32 for other in ahead):
                late.add(req)
            else:
                ahead.append(prompt)
    found = ordered(SchedulePolicy("lpm", filled_tree(cached)), reqs)
    assert found == sorted(reqs, key=lambda req: (req in late, 0 if req in late else -hits[req]))


@given(waiting_lists, st.lists(prompt_lists, max_size=4))
def test_dfs_weight_keeps_subtrees_together_the_heaviest_first(
    waiting: list[tuple[list[int], int, int]], cached: list[list[int]]
) -> None:
    reqs = make_requests(waiting)
    tree = filled_tree(cached)
    found = ordered(SchedulePolicy("dfs-weight", tree), reqs)
    at: dict[TreeNode, list[int]] = {}
    for place, req in enumerate(found):
        at.setdefault(tree.match_prefix(req.prompt).node, []).append(place)

    def check(node: TreeNode) -> list[int]:
        below = sorted(filter(None, map(check, node.children.values())))
        sizes = [len(places) for places in below]
        assert sizes == sorted(sizes, reverse=True)
        own = at.get(node, [])
        assert [found[place].admission.order for place in own] == sorted(
            found[p].admission.order for p in own
        )
        return [place for places in below for place in places] + own

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


@given(st.sampled_from(["fcfs", "lof", "priority"]), st.booleans(),
       st.randoms(use_true_random=False))  # fmt: skip
def test_a_queue_forgets_nobody(name: str, old_place: bool, dice: random.Random) -> None:
    """Against a list: added, removed, added again; some with stale output wait aside."""
    reqs = make_requests([([1], new, new % 3) for new in range(1, 7)])
    policy = SchedulePolicy(name, None)
    queue = WaitingQueue(policy, NullRecorder(), old_place)
    inside: list[Request] = []
    places: dict[Request, int] = {}
    held = RequestPart()
    held.is_held = True
    for moment in range(dice.randint(0, 200)):
        req = dice.choice(reqs)
        if req in inside and dice.randint(0, is_held(req)) == 0:
            queue.remove(req)
            inside.remove(req)
        elif req not in inside or is_held(req):
            was_there = req in places
            req.parts = dice.choice([(), (), (held,)])
            req.admission.retractions = int(was_there)
            queue.add(req)
            inside += [] if req in inside else [req]
            if not is_held(req) and not (was_there and old_place):
                places[req] = moment
        assert len(queue) == len(inside) and all((req in queue) == (req in inside) for req in reqs)
        assert set(queue) == set(inside)
        asked = [req for req in inside if not is_held(req)]
        first = min(asked, key=lambda r: (policy.rank(r), places[r]), default=None)
        assert next(queue.in_order(), None) is queue.first() is first


@pytest.mark.parametrize(
    ("name", "by_priority", "expected"),
    [
        ("fcfs", False, "abcd"), ("fcfs", True, "bdac"), ("priority", False, "bdac"),
        ("lof", False, "dcab"), ("lof", True, "dbca"), ("lpm", True, "abcd"),
    ],
)  # fmt: skip
def test_priority_is_a_flag_beside_fcfs_and_lof(
    name: str, by_priority: bool, expected: str
) -> None:
    news, priorities = (2, 1, 3, 4), (0, 5, 0, 5)
    tree = RadixCache()
    policy = SchedulePolicy(name, tree, enable_priority_scheduling=by_priority)
    reqs = [
        Request(rid, [at], SamplingParams(max_new_tokens=new), priority=priority)
        for at, (rid, new, priority) in enumerate(zip("abcd", news, priorities, strict=True))
    ]
    assert "".join(req.rid for req in ordered(policy, reqs)) == expected


def test_random_shuffles_what_the_last_pass_has_left_at_every_pass() -> None:
    """As ``random.shuffle`` of a list would, from a seed."""
    reqs, dice = make_requests([([1], 1, 0)] * 9), random.Random(3)
    queue, expected = WaitingQueue(SchedulePolicy("random", None, 3), NullRecorder()), list(reqs)
    for req in reqs:
        queue.add(req)
    for _ in range(3):
        dice.shuffle(expected)
        assert next(queue.in_order()) is expected[0]
        assert list(queue) == expected


@pytest.mark.parametrize("waits", ["behind", "old_place"])
def test_where_a_retracted_request_waits(waits: str) -> None:
    scheduler = Scheduler(SchedulerConfig(rules=f"sglang,retracted_waits={waits}"))
    scheduler.receive([Request("first", [1], EIGHT)])
    turn(scheduler)
    scheduler.receive([Request("second", [2], EIGHT)])
    scheduler.retraction.retract(scheduler.live["first"], "memory")
    expected = ["second", "first"] if waits == "behind" else ["first", "second"]
    assert [req.rid for req in scheduler.waiting_queue] == expected


def test_who_comes_back_by_the_same_id_waits_behind_those_who_came_meanwhile() -> None:
    queue = WaitingQueue(SchedulePolicy("fcfs", None), NullRecorder())
    first, other, again = (
        Request(rid, [1], admission=Admission(order=at)) for at, rid in enumerate("aba")
    )
    queue.add(first)
    queue.add(other)
    queue.remove(first)
    queue.add(again)
    assert queue.first() is other and list(queue) == [other, again] and first not in queue


# -- preemption: a higher priority takes running ones' places --------------------------------------


@given(
    running=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), min_size=1, max_size=5),
    asked=st.integers(0, 20),
    priority=st.integers(0, 6),
    threshold=st.integers(0, 3),
    ratio=st.sampled_from([0.0, 0.5]),
    returning=st.booleans(),
)
def test_preemption_for_a_row_takes_as_many_as_free_what_is_asked_for(
    running: list[tuple[int, int]], asked: int, priority: int, threshold: int, ratio: float,
    returning: bool,
) -> None:  # fmt: skip
    """At least one, as a row is lacking; the lowest first, then the newest; all or nobody."""
    scheduler = Scheduler(
        SchedulerConfig(kv_tokens=40, disable_radix_cache=True, free_rule="lease")
    )
    reqs = [
        Request(
            f"r{at}",
            [1],
            SamplingParams(max_new_tokens=new),
            priority=level,
            admission=Admission(order=at),
        )
        for at, (level, new) in enumerate(running)
    ]
    if returning:
        ended = scheduler.leases.open()
        ended.last_step = 1  # launched, and not back
        scheduler.leases.close(ended)
    new = Request(
        "new",
        [1],
        SamplingParams(max_new_tokens=4),
        priority=priority,
        admission=Admission(asked_len=asked),
    )
    leases, cache = scheduler.leases, scheduler.prefix_cache
    adder = PrefillAdder(
        leases, cache, NullRecorder(), reqs, ratio, 99, None, reserve=Ratio(), chunks=ChunkRule()
    )  # fmt: skip
    in_turn = sorted(reqs, key=lambda req: (req.priority, -req.admission.order))
    allowed = [req for req in in_turn if priority - req.priority > threshold]
    short = asked + 4 - adder.rem_total_tokens
    enough = [n for n in range(1, len(allowed) + 1)
              if sum(Ratio().kept_for(adder, req) for req in allowed[:n]) >= short]  # fmt: skip
    expected = enough[0] if enough and not returning else 0
    assert adder.preempt_to_schedule(new, threshold) == in_turn[:expected]


def test_what_several_share_comes_back_only_with_the_last_of_them() -> None:
    """What preemption by priority counts on."""
    scheduler = Scheduler(SchedulerConfig(kv_tokens=30))
    first, other = (Request(rid, [1] * 8, EIGHT) for rid in "ab")
    scheduler.receive([first])
    turn(scheduler)
    assert first.lease is not None
    assert scheduler.leases.pages_given_back(first.lease) == 8
    scheduler.receive([other])
    scheduler.next_batch()
    assert scheduler.leases.pages_given_back(first.lease) == 1, "seven are locked twice"


# -- retraction: the victim, and its way back ------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_the_victim_is_the_last_of_the_published_order(lengths: list[tuple[int, int]]) -> None:
    """SGLang sorts by (outputs, -prompt), largest first, and pops from the end."""
    reqs = [Request(str(at), [1] * prompt, admission=Admission(order=at), output_ids=[5] * outputs)
            for at, (prompt, outputs) in enumerate(lengths)]  # fmt: skip
    by_key = sorted(reqs, key=lambda req: (len(req.output_ids), -len(req.prompt)), reverse=True)
    assert fewest_outputs(reqs) is by_key[-1]


@pytest.mark.parametrize("run_first", RUN_FIRST)
def test_the_last_request_that_can_never_fit_ends_with_a_reason(run_first: str) -> None:
    """Somebody else holds the memory for good (SGLang aborts the last one too)."""
    config = SchedulerConfig(kv_tokens=9, schedule_conservativeness=0.0, run_first=run_first)
    scheduler = Scheduler(config)
    scheduler.receive([Request("r0", [0], EIGHT)])
    turn(scheduler)
    held = scheduler.leases.open()
    scheduler.leases.extend(held, len(scheduler.allocator.free_pages))
    req = scheduler.live["r0"]
    assert not scheduler.next_batch()
    (output,) = scheduler.take_outputs()
    assert output.finish_reason is FinishReason.ERROR and req.finished
    assert output.error == "it needs 2 pages of KV memory, but only 1 are available."


def test_a_prompt_that_is_only_partly_computed_gives_way_first() -> None:
    """It has produced nothing; its chunks, and those who decode beside them, fill the memory."""
    config = SchedulerConfig(
        kv_tokens=36, chunked_prefill_size=8, enable_mixed_chunk=True,
        schedule_conservativeness=0.0, disable_radix_cache=True,
    )  # fmt: skip
    scheduler = Scheduler(config)
    eight = SamplingParams(max_new_tokens=8)
    scheduler.receive([Request(f"r{i}", [i], eight) for i in range(6)])
    scheduler.receive([Request("long", [9] * 12, SamplingParams(max_new_tokens=1))])
    batch = turn(scheduler)
    while not scheduler.retraction.num_retractions:
        batch = turn(scheduler)
    assert sorted(batch.rids) == [f"r{i}" for i in range(6)] and "long" in scheduler.live


def test_where_decodes_run_first_a_prompt_is_held_back_and_told_why() -> None:
    scheduler = Scheduler(SchedulerConfig(run_first="decode"), Recorder())
    scheduler.receive([Request("first", [1], EIGHT)])
    turn(scheduler)
    scheduler.receive([Request("second", [2], EIGHT)])
    assert turn(scheduler).rids == ("first",)
    marks = scheduler.recorder.marks
    reasons = [mark.attrs["reason"] for mark in marks if mark.name == "refuse"]
    assert reasons == ["those who decode run first"]


# -- the share of their remaining tokens that running requests are expected to use -----------------


@given(conservativeness=st.floats(0, 3), steps=st.integers(0, 2 * DECAY_STEPS))
def test_the_new_token_ratio_sinks_in_a_line_to_its_minimum(
    conservativeness: float, steps: int
) -> None:
    ratio = NewTokenRatio(conservativeness, NullRecorder())
    first = min(0.7 * conservativeness, 1.0)
    for _ in range(steps):
        ratio.on_decode()
    expected = first - (first - 0.14 * first) * min(steps, DECAY_STEPS) / DECAY_STEPS
    assert ratio.current == pytest.approx(expected, abs=1e-9)
    ratio.reset()
    assert ratio.current == first


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 99)), min_size=1, max_size=5))
def test_a_retraction_sets_the_ratio_to_what_is_really_used(reqs: list[tuple[int, int]]) -> None:
    ratio = NewTokenRatio(0.0, NullRecorder())
    kept = [Request(f"r{at}", [1], SamplingParams(max_new_tokens=new), output_ids=[5] * out)
            for at, (out, new) in enumerate(reqs)]  # fmt: skip
    ratio.on_retraction(kept)
    produced, wanted = sum(out for out, _ in reqs), sum(new for _, new in reqs)
    assert ratio.current == min(1.0, (produced + 20 * len(reqs)) / (wanted + 1))


# -- unified: one budget for prompts and decodes, as in vLLM ---------------------------------------


@example(waiting=[(1, 3), (15, 3)], extra=0, page=1, run_ahead=False)  # one gives way
@given(waiting=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=8),
       extra=st.integers(0, 20), page=st.sampled_from([1, 2, 4]),
       run_ahead=st.booleans())  # fmt: skip
def test_the_newest_is_preempted_and_nobody_is_admitted_in_that_step(
    waiting: list[tuple[int, int]], extra: int, page: int, run_ahead: bool
) -> None:
    """Nor in one that leaves somebody out: memory in flight comes back by itself."""
    longest = max(length + new for length, new in waiting)
    pages = -(-longest // page) + extra // page
    config = SchedulerConfig(
        kv_tokens=pages * page, page_size=page, run_first="unified", context_len=64,
        chunked_prefill_size=16, disable_radix_cache=True, run_ahead=run_ahead,
        overrun=int(run_ahead),
    )  # fmt: skip
    scheduler = Scheduler(config)
    flying = deque[ScheduleBatch]()
    for i, (length, new) in enumerate(waiting):
        params = SamplingParams(max_new_tokens=new, ignore_eos=True)
        scheduler.receive([Request(f"r{i}", [i] * length, params)])
    while scheduler.live:
        before = list(scheduler.running_batch)
        ready = scheduler.decode.schedule_next_batch()
        batch = scheduler.next_batch()
        check_books(scheduler)
        running = scheduler.running_batch
        gone = [req for req in before if req not in running]
        for victim in gone:
            assert all(before.index(victim) > before.index(req) for req in running if req in before)
        rows = batch.reqs if batch else []
        left = [req for req in ready if req in running and req not in rows]
        if gone or left:
            assert not batch or all(row.start for row in batch.rows[: batch.num_extend_reqs])
        if batch:
            flying.append(batch)
        if len(flying) == 1 + run_ahead or not batch:
            oldest = flying.popleft()
            scheduler.process(oldest, Result([5] * len(oldest.reqs)))
