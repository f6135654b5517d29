"""Admission: the budget against the published rules, chunks, and refusals with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.core import ForwardMode, Lease, Request, Result, SamplingParams
from minisched.features.logprobs import LogProbabilities
from minisched.memory import (
    BlockPool,
    LeasePool,
    PageAllocator,
    PrefixCache,
    RadixCache,
    ReqToTokenPool,
)
from minisched.policy import AddReqResult, DecodeManager, PrefillAdder
from minisched.policy.prefill_adder import ChunkRule
from minisched.policy.sglang import Ratio
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder, Recorder
from tests.support import turn

NUM_PAGES = 40
token_lists = st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=24)
ONE = SamplingParams(max_new_tokens=1)


# -- prefill: the four numbers that admission counts down ------------------------------------------


@dataclass
class Rules:
    """The published budget rules, straight down, on plain numbers and sets of prefixes."""

    page: int
    free: int  # pages
    cached: set[tuple[int, ...]]  # every whole-page prefix in the cache
    total_offset: float
    cur_offset: int
    rem_input: int
    rem_chunk: int | None
    locked: set[tuple[int, ...]] = field(default_factory=set)
    added: list[int] = field(default_factory=list)  # extend lengths

    def memory(self) -> int:
        return (self.free + len(self.cached - self.locked)) * self.page

    def add_one_req(self, prompt: list[int], new: int) -> str:
        ends = range(self.page, len(prompt), self.page)  # never the last token
        hit = {tuple(prompt[:end]) for end in ends} & self.cached
        extend, were_locked = len(prompt) - len(hit) * self.page, self.locked
        self.locked = were_locked | hit
        result = ""
        if extend + new + self.page >= self.memory() - self.total_offset:
            result = "NO_TOKEN"
        elif self.rem_chunk is None and self.ceiled(extend) >= self.rem_input and self.added:
            result = "OTHER"
        elif self.rem_chunk is not None and self.ceiled(extend) > self.rem_chunk:
            extend, new = self.rem_chunk // self.page * self.page, 0
            result = "OTHER" if extend <= 0 else ""
        if result:
            self.locked = were_locked
        return result or self.charge(extend, new)

    def ceiled(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def charge(self, extend: int, new: int) -> str:
        self.total_offset += self.ceiled(extend) + new + self.page
        self.cur_offset += self.ceiled(extend) + self.page
        self.rem_input -= self.ceiled(extend)
        if self.rem_chunk is not None:
            self.rem_chunk -= self.ceiled(extend)
        self.added.append(extend)
        if self.memory() - self.total_offset <= 0 or self.memory() - self.cur_offset <= 0:
            return "NO_TOKEN"
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return "OTHER"
        return "CONTINUE"


def filled_pool(page: int, cached: list[list[int]]) -> tuple[LeasePool, set[tuple[int, ...]]]:
    """Memory whose cache holds the whole pages of these token lists, and all their prefixes."""
    allocator, tree = PageAllocator(NUM_PAGES, page), RadixCache(page)
    prefixes: set[tuple[int, ...]] = set()
    for tokens in cached:
        lease = Lease(0, is_released=True)
        count = len(tokens) // page
        if count > len(allocator.free_pages):
            continue
        allocator.alloc(lease, count)
        known = tree.insert(tokens, lease.pages).num_cached_pages
        allocator.disown(lease.pages)
        allocator.free(lease.pages[:known])
        prefixes |= {tuple(tokens[:end]) for end in range(page, len(tokens) + 1, page)}
    return LeasePool(allocator, ReqToTokenPool(9), tree), prefixes


@given(
    page=st.sampled_from([1, 2, 4]),
    cached=st.lists(token_lists, max_size=5),
    waiting=st.lists(
        st.tuples(token_lists, st.sampled_from([1, 2, 3, 9, 20])), min_size=1, max_size=6
    ),
    running=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5)), max_size=3),
    ratio=st.sampled_from([0.0, 0.001, 0.3]),
    rem_input=st.integers(1, 40),
    chunk_pages=st.one_of(st.none(), st.integers(1, 12)),
    mixed=st.integers(0, 3),
)
def test_the_adder_follows_the_published_rules(
    page: int, cached: list[list[int]], waiting: list[tuple[list[int], int]],
    running: list[tuple[int, int]], ratio: float, rem_input: int, chunk_pages: int | None,
    mixed: int,
) -> None:  # fmt: skip
    leases, prefixes = filled_pool(page, cached)
    chunk = None if chunk_pages is None else chunk_pages * page
    runs = [
        Request("x", [1], SamplingParams(max_new_tokens=new), output_ids=[1] * min(new, out))
        for new, out in running
    ]
    cache, recorder = PrefixCache(leases, NullRecorder()), NullRecorder()
    adder = PrefillAdder(
        leases, cache, recorder, runs, ratio, rem_input, chunk, mixed,
        reserve=Ratio(), chunks=ChunkRule(),
    )  # fmt: skip
    reserve = sum(min(new - min(new, out), 4096) * ratio for new, out in running)
    rules = Rules(
        page, NUM_PAGES - len(prefixes), prefixes, mixed + reserve, mixed, rem_input - mixed,
        None if chunk is None else chunk - mixed,
    )  # fmt: skip
    for index, (prompt, new) in enumerate(waiting):
        req = Request(f"r{index}", prompt, SamplingParams(max_new_tokens=new))
        result = adder.add_one_req(req)
        assert result.name == rules.add_one_req(prompt, new)
        assert [length for _, length in adder.can_run_list] == rules.added
        assert adder.rem_total_tokens == pytest.approx(rules.memory() - rules.total_offset)
        assert adder.cur_rem_tokens == rules.memory() - rules.cur_offset
        assert adder.rem_input_tokens == rules.rem_input
        assert adder.rem_chunk_tokens == rules.rem_chunk
        if result is not AddReqResult.CONTINUE:
            break


@example(prompt=9, chunk=4, held=NUM_PAGES - 1, mixed=0, reserve=0, new=1)  # no memory
@example(prompt=9, chunk=1, held=0, mixed=3, reserve=0, new=1)  # no budget
@given(
    prompt=st.integers(2, 40),
    chunk=st.integers(1, 30),
    held=st.integers(0, 39),
    mixed=st.integers(0, 3),
    reserve=st.integers(0, 30),
    new=st.integers(1, 9),
)
def test_a_chunk_goes_on_by_the_published_rule(
    prompt: int, chunk: int, held: int, mixed: int, reserve: int, new: int
) -> None:
    """min(chunk, total) where total is left, else the chunk; never more than memory really has."""
    leases = LeasePool(PageAllocator(NUM_PAGES, 1), ReqToTokenPool(9), BlockPool(1))
    req = Request("r", [1] * prompt, SamplingParams(max_new_tokens=new))
    req.start(leases.open())
    assert req.lease is not None
    leases.extend(req.lease, 1)
    req.computed_len = 1
    leases.extend(leases.open(), held)
    running = [Request("x", [1], SamplingParams(max_new_tokens=reserve))] if reserve else []
    recorder = Recorder()
    cache = PrefixCache(leases, NullRecorder())
    adder = PrefillAdder(
        leases, cache, recorder, running, 1.0, 999, chunk, mixed,
        reserve=Ratio(), chunks=ChunkRule(),
    )  # fmt: skip
    memory = NUM_PAGES - 1 - held
    total = memory - mixed - reserve
    wanted = min(chunk - mixed, total) if total >= 1 else chunk - mixed
    expected = max(0, min(wanted, prompt - 1, memory))
    is_chunked = adder.add_chunked_req(req)
    assert adder.can_run_list == ([(req, expected)] if expected else [])
    assert is_chunked == (expected < prompt - 1)
    if expected:
        future = 0 if is_chunked else new
        assert adder.rem_total_tokens == total - expected - future - 1
    else:
        mark = recorder.marks[-1]
        assert mark.attrs["reason"] == f"the next chunk: needs 1 token, {min(wanted, 0)} left"


@pytest.mark.parametrize(
    ("settings", "lengths", "new", "said"),
    [
        ({"kv_tokens": 30, "context_len": 64}, [10, 10], 9, "KV memory: needs 20 tokens, 10 left"),
        ({"max_running_requests": 1}, [4, 4], 4, "max_running_requests: needs 1 row, 0 left"),
        ({"chunked_prefill_size": 16}, [16, 16, 16], 4,
         "chunked_prefill_size: needs 1 token, 0 left"),
        ({"chunked_prefill_size": 16, "run_first": "unified"}, [16, 16], 4,
         "the token budget: needs 1 token, 0 left"),
        ({"kv_tokens": 30, "run_first": "unified"}, [20, 20], 4,
         "KV memory: needs 20 tokens, 10 left"),
        ({"chunked_prefill_size": -1, "max_prefill_tokens": 12}, [8, 8], 4,
         "max_prefill_tokens: needs 8 tokens, 4 left"),
        ({"chunked_prefill_size": 17, "max_prefill_tokens": 16}, [16, 9], 4,
         "max_prefill_tokens: needs 1 token, 0 left"),
    ],
)  # fmt: skip
def test_every_refusal_says_why(
    settings: dict[str, Any], lengths: list[int], new: int, said: str
) -> None:
    scheduler = Scheduler(SchedulerConfig(**settings), Recorder())
    params = SamplingParams(max_new_tokens=new)
    scheduler.receive([Request(f"r{i}", [i] * n, params) for i, n in enumerate(lengths)])
    scheduler.next_batch()
    marks = scheduler.recorder.marks
    assert {mark.attrs["reason"] for mark in marks if mark.name == "refuse"} == {said}


# -- decode: who is in the set, and who may run now ------------------------------------------------


@given(prompt=st.integers(1, 5), launched=st.integers(1, 13), behind=st.integers(0, 3),
       run_ahead=st.booleans(), overrun=st.integers(0, 3))  # fmt: skip
def test_who_may_run(
    prompt: int, launched: int, behind: int, run_ahead: bool, overrun: int
) -> None:
    """Run-ahead asks only for lengths; without it the host must know the input token."""
    req = Request("r", [1] * prompt, SamplingParams(max_new_tokens=9))
    req.lease = Lease(1)
    for _ in range(launched - behind):
        req.append_host(5)
    req.computed_len, req.device_len = prompt + launched - 1, prompt + launched
    decode = DecodeManager(run_ahead, overrun)
    decode.add_reqs([req])
    expected = launched <= 8 + overrun and (run_ahead or behind == 0)
    assert decode.may_run(req) == expected
    assert decode.schedule_next_batch() == [req] * expected
    assert list(decode.running_reqs) == [req], "an optimistic length must not remove it"


# -- mixed_chunk: who decodes beside a prompt, and what it costs the chunk -------------------------


def with_running(decodes: int, config: SchedulerConfig, new: int = 20, **params: Any) -> Scheduler:
    """A scheduler in which that many requests decode, up to ``new`` tokens."""
    scheduler = Scheduler(config, Recorder(), [LogProbabilities()])
    sampling = SamplingParams(max_new_tokens=new, ignore_eos=True, **params)
    scheduler.receive([Request(f"r{i}", [i], sampling) for i in range(decodes)])
    while len(scheduler.running_batch) < decodes:
        turn(scheduler)
    return scheduler


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize(
    ("prompt", "chunk", "page", "decodes", "rounds", "first", "last"),
    [
        (10_000, 2048, 1, 0, 5, 2048, 1808),
        (150_000, 2048, 1, 0, 74, 2048, 496),  # the guide: about 73
        (100_000, 2048, 1, 20, 50, 2028, 628),  # the guide: 49 of 2048
        (150_000, 2048, 1, 10, 74, 2038, 1226),  # the guide: 73, the last of 1500
        (10_000, 2048, 1, 2, 5, 2046, 1816),  # the guide: 2048 + 1 + 1 = 2050
        (10_000, 2048, 4, 10, 5, 2036, 1850),  # the first ends with a page (``trunc_len``)
        (2000, 2048, 1, 20, 1, 2000, 2000),
    ],
)
def test_those_who_decode_are_paid_from_the_chunk(
    prompt: int, chunk: int, page: int, decodes: int, rounds: int, first: int, last: int,
    run_ahead: bool,
) -> None:  # fmt: skip
    """The SGLang chunked-prefill guide; where it is off, its figure stands beside the right one.

    A decode row begins where the published delta says: at known - 1, or, run ahead, at known.
    """
    config = SchedulerConfig(
        chunked_prefill_size=chunk, enable_mixed_chunk=True, context_len=200_000, page_size=page,
        kv_tokens=400_000, max_running_requests=32, run_ahead=run_ahead,
    )  # fmt: skip
    scheduler = with_running(decodes, config, new=300)
    scheduler.receive([Request("long", [99] * prompt, ONE)])
    lengths: list[int] = []
    ahead = scheduler.next_batch() if run_ahead else None
    while "long" in scheduler.live:
        batch = ahead or scheduler.next_batch()
        assert batch
        ahead = scheduler.next_batch() if run_ahead and sum(lengths) < prompt else None
        if batch.num_extend_reqs:
            assert batch.rids == ("long", *(f"r{i}" for i in range(decodes)))
            assert batch.mode is (ForwardMode.MIXED if decodes else ForwardMode.EXTEND)
            lengths.append(len(batch.rows[0].ids))
        for row in (ahead or batch).rows[(ahead or batch).num_extend_reqs :]:
            delta = 0 if row.ids == (None,) else -1  # SGLang: 0 if enable_overlap else -1
            assert row.start == row.req.known_len + delta
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert lengths == [first, *[chunk - decodes] * (rounds - 2), last][:rounds]


@pytest.mark.parametrize("who", ["prompt", "running"])
def test_a_batch_that_returns_logprobs_is_never_mixed(who: str) -> None:
    config = SchedulerConfig(chunked_prefill_size=8, enable_mixed_chunk=True)
    scheduler = with_running(2, config, return_logprob=who == "running")
    params = SamplingParams(max_new_tokens=1, return_logprob=who == "prompt")
    scheduler.receive([Request("new", [1] * 4, params)])
    batch = turn(scheduler)
    assert (batch.mode, batch.rids) == (ForwardMode.EXTEND, ("new",))


def test_without_memory_for_those_who_decode_the_prompt_runs_alone() -> None:
    """Three who need a page each, and three pages of four tokens: the rules see twelve tokens."""
    config = SchedulerConfig(
        kv_tokens=24, page_size=4, chunked_prefill_size=16, enable_mixed_chunk=True,
        schedule_conservativeness=0.0, disable_radix_cache=True,
    )  # fmt: skip
    scheduler, params = Scheduler(config), SamplingParams(max_new_tokens=6)
    for i in range(4):  # one after the other, each a token longer than the one before
        scheduler.receive([Request(f"r{i}", [i] * (i + 1), params)] if i < 3 else [])
        turn(scheduler)
    assert [req.computed_len for req in scheduler.running_batch] == [4, 4, 4]
    assert len(scheduler.allocator.free_pages) == 3
    scheduler.receive([Request("new", [1] * 3, ONE)])
    batch = turn(scheduler)
    assert (batch.mode, batch.rids) == (ForwardMode.EXTEND, ("new",))
