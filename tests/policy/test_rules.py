"""Where the published schedulers differ: the smallest case of each rule, under each of its answers.

SGLang's answers are those of its own scheduler, run beside this one step by step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import minisched
from minisched.core import Request, Result, SamplingParams, ScheduleBatch
from minisched.memory import RadixCache
from minisched.policy import SchedulePolicy
from minisched.policy.rules import Rules
from minisched.policy.systems import RULES, find_rules
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.wiring import TREES
from tests.support import turn

Item = tuple[int, int, int]  # comes before which step, prompt, max_new_tokens


def step(scheduler: Scheduler) -> str:
    """The next step in short: prompts, then who decodes."""
    batch = turn(scheduler)
    prompts = [f"{row.req.rid}[{row.start}:{row.end}]" for row in batch.rows]
    rids = sorted(batch.rids[batch.num_extend_reqs :])
    return " ".join([*prompts[: batch.num_extend_reqs], *rids])


def run(
    items: Sequence[Item], steps: int, priorities: Sequence[int] = (), ignore_eos: str = "",
    **settings: object,
) -> list[str]:  # fmt: skip
    """So many steps of requests ``a``, ``b``, ``c``, which have no token in common."""
    config = SchedulerConfig(context_len=200, **settings)  # type: ignore[arg-type]
    scheduler, found = Scheduler(config), list[str]()
    for number in range(steps):
        for at, (comes, length, new) in enumerate(items):
            if comes == number:
                rid = "abcdef"[at]
                params = SamplingParams(max_new_tokens=new, ignore_eos=rid in ignore_eos)
                priority = priorities[at] if priorities else 0
                prompt = [50 * at + place for place in range(length)]
                scheduler.receive([Request(rid, prompt, params, priority=priority)])
        found.append(step(scheduler))
    return found


@pytest.mark.parametrize(
    ("answer", "third"),
    [("left", "a b"), ("every_step", "c[0:4]")],
)
def test_when_one_who_was_refused_is_asked_again(answer: str, third: str) -> None:
    """b comes, c does not; once b runs, only a share of its tokens is kept back."""
    items = [(0, 3, 10), (1, 5, 20), (1, 4, 6)]
    found = run(items, 3, rules=f"sglang,ask_again={answer}", kv_tokens=40)
    assert found == ["a[0:3]", "b[0:5]", third]


@pytest.mark.parametrize(("who", "second"), [("a", "a"), ("", "b[0:5]")])
def test_of_one_who_ignores_eos_all_its_tokens_are_kept_back(who: str, second: str) -> None:
    found = run([(0, 6, 30), (1, 5, 25)], 2, ignore_eos=who, rules="sglang", kv_tokens=60)
    assert found == ["a[0:6]", second]


@pytest.mark.parametrize(
    ("prompt_len", "page_size", "context_len", "fitting"),
    [
        (20, 1, 1024, 18),  # of 40 slots a page and one token are spared
        (20, 4, 1024, 15),
        (21, 4, 1024, 11),  # the prompt takes whole pages
        (20, 1, 30, 8),  # two positions of the context are spared
        (39, 1, 1024, 1),
    ],
)
def test_a_request_gets_as_many_new_tokens_as_an_empty_pool_holds(
    prompt_len: int, page_size: int, context_len: int, fitting: int
) -> None:
    config = SchedulerConfig(kv_tokens=40, page_size=page_size, context_len=context_len)
    scheduler = Scheduler(config)
    req = Request("a", [7] * prompt_len, SamplingParams(max_new_tokens=20))
    scheduler.receive([req])
    assert req.params.max_new_tokens == fitting
    assert req.max_device_len == prompt_len + fitting and turn(scheduler).rids == ("a",)


def test_a_request_that_asks_for_too_much_is_refused_where_none_is_clipped() -> None:
    scheduler = Scheduler(SchedulerConfig(kv_tokens=40, rules="sglang,too_many_tokens=refused"))
    req = Request("a", [7] * 20, SamplingParams(max_new_tokens=21))
    scheduler.receive([req])
    assert "together more than the KV pool of 40 slots" in req.error


def test_for_memory_alone_a_lower_priority_makes_no_way() -> None:
    """There are rows enough, and not enough memory for both."""
    found = run([(0, 10, 30), (2, 20, 10)], 3, [0, 40], rules="sglang", kv_tokens=60,
                enable_priority_scheduling=True)  # fmt: skip
    assert found == ["a[0:10]", "a", "a"]


def test_for_a_row_a_lower_priority_makes_way() -> None:
    """And each who comes behind the urgent one would need somebody's row, too."""
    found = run([(0, 3, 30), (0, 3, 30), (2, 4, 10)], 4, [5, 0, 40], max_running_requests=2,
                rules="sglang", enable_priority_scheduling=True)  # fmt: skip
    assert found == ["a[0:3] b[0:3]", "a b", "c[0:4]", "a c"]


def test_max_prefill_tokens_counts_only_where_no_prompt_is_cut() -> None:
    items = [(0, 12, 4), (0, 16, 4)]
    cut = run(items, 1, chunked_prefill_size=16, max_prefill_tokens=24)
    assert cut == ["a[0:12] b[0:4]"]
    whole = run(items, 1, chunked_prefill_size=-1, max_prefill_tokens=24)
    assert whole == ["a[0:12]"]


def test_whether_a_prompt_fits_into_a_chunk_is_asked_in_pages() -> None:
    """31 tokens, and 31 are left of the chunk; but they take 32."""
    found = run([(0, 17, 13), (2, 31, 2)], 3, page_size=4, kv_tokens=160,
                chunked_prefill_size=32, enable_mixed_chunk=True)  # fmt: skip
    assert found == ["a[0:17]", "a", "b[0:28] a"]


@pytest.mark.parametrize(("is_cached", "second"), [(True, "a"), (False, "b[0:10]")])
def test_where_nothing_is_cached_the_ends_of_those_who_ignore_eos_are_simulated(
    is_cached: bool, second: str
) -> None:
    """Both will say 20 tokens, but the first gives back its 10 when the second still has one."""
    found = run([(0, 10, 20), (1, 10, 20)], 2, ignore_eos="ab", kv_tokens=63 - 10 * is_cached,
                disable_radix_cache=not is_cached)  # fmt: skip
    assert found == ["a[0:10]", second]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "evicted"), [("both", [4, 5, 6, 7, 8, 9]), ("neither", [3])])
def test_which_half_of_an_edge_counts_as_used(answer: str, evicted: list[int]) -> None:
    tree = TREES[answer]()
    tree.insert([1, 1, 0], [1, 2, 3])
    tree.insert([0, 0, 0, 0, 1, 1], [4, 5, 6, 7, 8, 9])
    tree.insert([1, 1, 1], [1, 2, 10])
    assert tree.evict(1) == evicted


@pytest.mark.parametrize("answer", ["settled", "launched"])
def test_when_a_chunk_may_be_shared(answer: str) -> None:
    """The first chunk is in flight when the second is scheduled."""
    rules = f"sglang,enters_cache={answer}"
    config = SchedulerConfig(chunked_prefill_size=8, rules=rules, run_ahead=True)
    scheduler = Scheduler(config)
    scheduler.receive([Request("a", list(range(11))), Request("b", [0, 1, 2, 9, 9])])
    batches = [scheduler.next_batch(), scheduler.next_batch()]
    rows = [(row.req.rid, row.start) for batch in batches if batch for row in batch.rows]
    assert rows == [("a", 0), ("a", 8), ("b", 3 if answer == "launched" else 0)]


@pytest.mark.parametrize(("answer", "cached"), [("settled", 3), ("launched", 4)])
def test_whether_the_last_token_is_shared_when_a_step_in_flight_computes_it(
    answer: str, cached: int
) -> None:
    config = SchedulerConfig(rules=f"sglang,enters_cache={answer}", run_ahead=True)
    scheduler = Scheduler(config)
    stops = SamplingParams(stop_token_ids=frozenset({9}))
    scheduler.receive([Request("a", [1, 2, 3], stops)])
    first = scheduler.next_batch()
    assert isinstance(first, ScheduleBatch) and scheduler.next_batch()
    scheduler.process(first, Result([9]))
    assert (
        scheduler.tree is not None
        and scheduler.tree.evictable_size + scheduler.tree.protected_size == cached
    )


@pytest.mark.parametrize(("answer", "cached"), [("ahead", 0), ("lacking", 20)])
def test_how_much_of_the_cache_goes_with_a_retraction(answer: str, cached: int) -> None:
    """Room for 20 steps of the one who stays; what the victim gives back is not enough for that."""
    config = SchedulerConfig(rules=f"sglang,evicts={answer}", kv_tokens=40)
    scheduler, eight = Scheduler(config), SamplingParams(max_new_tokens=8)
    scheduler.receive([Request("old", list(range(100, 120)), SamplingParams(max_new_tokens=1))])
    turn(scheduler)
    scheduler.receive([Request("a", [1, 2], eight), Request("b", [3, 4], eight)])
    turn(scheduler)
    turn(scheduler)
    assert scheduler.tree is not None and len(scheduler.running_batch) == 2
    scheduler.retraction.retract(scheduler.running_batch[-1], "memory")
    left = scheduler.tree.match_prefix(list(range(100, 120))).pages
    assert len(left) == cached


@pytest.mark.parametrize(("answer", "cached"), [("ahead", 0), ("lacking", 8)])
def test_with_pages_of_several_tokens_a_page_for_every_row_is_made_free(
    answer: str, cached: int
) -> None:
    """Neither of the two needs one, and one is free; SGLang estimates."""
    config = SchedulerConfig(rules=f"sglang,evicts={answer}", kv_tokens=44, page_size=4)
    scheduler, five = Scheduler(config), SamplingParams(max_new_tokens=3)
    scheduler.receive([Request("old", list(range(32)), SamplingParams(max_new_tokens=1))])
    turn(scheduler)
    scheduler.receive([Request(rid, [at], five) for at, rid in enumerate("ab", 100)])
    turn(scheduler)
    turn(scheduler)
    assert scheduler.tree is not None
    assert len(scheduler.tree.match_prefix(list(range(32))).pages) == cached


@pytest.mark.parametrize("refreshes", [True, False])
def test_what_somebody_waits_for_counts_as_used(refreshes: bool) -> None:
    """At the first pass and at each 32nd after it, where the order does not look itself."""
    tree = RadixCache()
    policy = SchedulePolicy("fcfs", tree, refreshes=refreshes)
    waiting = [Request("a", [1, 2, 3])]
    for number in range(33):
        if number in (0, 32):
            tree.insert([1, 2], [1, 2])
            tree.insert([7], [3])
        policy.refresh(waiting)
        if number in (0, 32):
            assert tree.evict(1) == ([3] if refreshes else [1, 2])
            tree.evict(9)


# -- the table -------------------------------------------------------------------------------------


def test_rules_are_found_by_system_with_answers_changed() -> None:
    assert find_rules("sglang") == Rules() == RULES["sglang"]
    changed = find_rules("nano-vllm,ask_again=left")
    assert changed.ask_again == "left" and changed.retracted_waits == "old_place"
    for text in ("sglang,ask_again=never", "sglang,asks=left", "tgi"):
        with pytest.raises(ValueError, match=r"must be|no rule"):
            find_rules(text)


def test_a_full_batch_waits_for_one_who_is_about_to_end_and_retracts_nobody() -> None:
    """Its last token is in flight; its memory is back when that has come (SGLang 0.5.23)."""
    config = SchedulerConfig(
        kv_tokens=20, run_ahead=True, schedule_conservativeness=0.0, disable_radix_cache=True,
        rules="sglang,free_rule=at_once",
    )  # fmt: skip
    scheduler = Scheduler(config)
    short, long = SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=4)
    scheduler.receive([Request("a", [1, 2], short), Request("b", [3, 4], long)])
    flying = [scheduler.next_batch(), scheduler.next_batch()]
    held = scheduler.leases.open()
    scheduler.leases.extend(held, len(scheduler.allocator.free_pages))
    assert not scheduler.next_batch() and not scheduler.retraction.num_retractions
    for batch in flying:
        assert isinstance(batch, ScheduleBatch)
        scheduler.process(batch, Result([5] * len(batch.rows)))
    after = scheduler.next_batch()
    assert isinstance(after, ScheduleBatch) and after.rids == ("b",)
    assert not scheduler.retraction.num_retractions


# -- words for users, objects for the core ---------------------------------------------------------

ENGINE = "core memory policy scheduler relay worker engine devices loops speculative features"


def lines_with_a_word(source: str) -> Iterator[int]:
    """Yield each line that looks rules up or compares a field with the word of an answer."""
    names, objects = set(Rules.__dataclass_fields__), {"rules", "in_force"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            is_word = node.attr == "in_force"
            is_word |= node.attr in names and getattr(node.value, "attr", "") in objects
            is_word |= node.attr in names and getattr(node.value, "id", "") in objects
        elif isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            field = getattr(node.left, "attr", getattr(node.left, "id", ""))
            is_word = field in names and isinstance(node.comparators[0].value, str)
        else:
            is_word = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "find_rules"
        if is_word:
            yield node.lineno


def test_no_module_of_the_engine_reads_a_rule_but_those_that_turn_words_into_objects() -> None:
    top = Path(minisched.__file__).parent
    files = [path for folder in ENGINE.split() for path in (top / folder).glob("*.py")]
    readers = {
        str(path.relative_to(top)): len(set(lines_with_a_word(path.read_text("utf-8"))))
        for path in files
    }
    assert {name for name, count in readers.items() if count} == {
        "policy/rules.py",  # the words themselves
        "scheduler/config.py",  # settings that change a word
        "scheduler/wiring.py",
    }
    assert readers["scheduler/config.py"] <= 3


def test_a_chunk_is_never_longer_than_its_prompt() -> None:
    """The budget counts pages, and the decode beside the prompt leaves less than one."""
    rules = "mini-sglang,free_rule=lease,budget_counts=pages"
    config = SchedulerConfig(
        rules=rules, page_size=4, chunked_prefill_size=4, enable_mixed_chunk=True
    )
    scheduler, two = Scheduler(config), SamplingParams(max_new_tokens=2)
    scheduler.receive([Request("a", [7], two)])
    turn(scheduler)
    scheduler.receive([Request("b", [7], two)])
    assert [(row.req.rid, len(row.ids)) for row in turn(scheduler).rows] == [("b", 1), ("a", 1)]
