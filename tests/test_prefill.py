"""Admission: the budget against its rules written down, chunks, and refusals with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisched.core import ChunkedReq, ForwardMode, Lease, Request, Result, SamplingParams
from minisched.memory import LeasePool, PageAllocator, PrefixCache, RadixCache, ReqToTokenPool
from minisched.policy import AddReqResult, DecodeManager, PrefillAdder, PrefillBudget
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder, Recorder

NUM_PAGES = 40
token_lists = st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=24)


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

    def add_one_req(self, prompt: list[int], max_new: int, out: int) -> str:
        prefixes = [
            tuple(prompt[:end]) for end in range(self.page, len(prompt), self.page)
        ]  # never the last token
        hit = [prefix for prefix in prefixes if prefix in self.cached]
        extend = len(prompt) - len(hit) * self.page
        new = min(max_new - out, 4096)
        if extend + new + self.page >= self.memory() - self.total_offset:
            return "NO_TOKEN"
        were_locked = set(self.locked)
        self.locked |= set(hit)
        if extend + new + self.page >= self.memory() - self.total_offset:
            self.locked = were_locked
            return "NO_TOKEN"
        ceiled = -(-extend // self.page) * self.page
        if ceiled >= self.rem_input and self.added:
            self.locked = were_locked
            return "OTHER"
        if self.rem_chunk is not None and extend > self.rem_chunk:
            extend, new = self.rem_chunk // self.page * self.page, 0
            if extend <= 0:
                self.locked = were_locked
                return "OTHER"
        return self.charge(extend, new)

    def charge(self, extend: int, new: int) -> str:
        ceiled = -(-extend // self.page) * self.page
        self.total_offset += ceiled + new + self.page
        self.cur_offset += ceiled + self.page
        self.rem_input -= ceiled
        if self.rem_chunk is not None:
            self.rem_chunk -= ceiled
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
        if count > allocator.available_pages:
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
    waiting=st.lists(st.tuples(token_lists, st.integers(1, 20)), min_size=1, max_size=6),
    running=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5)), max_size=3),
    ratio=st.sampled_from([0.0, 0.001, 0.3]),
    rem_input=st.integers(1, 40),
    chunk_pages=st.one_of(st.none(), st.integers(1, 12)),
    mixed=st.integers(0, 3),
)
def test_the_adder_follows_the_published_rules(
    page: int,
    cached: list[list[int]],
    waiting: list[tuple[list[int], int]],
    running: list[tuple[int, int]],
    ratio: float,
    rem_input: int,
    chunk_pages: int | None,
    mixed: int,
) -> None:
    """Same results, same extend lengths, same remainders after every step."""
    leases, prefixes = filled_pool(page, cached)
    chunk = None if chunk_pages is None else chunk_pages * page
    runs = [Request(f"x{i}", [1], SamplingParams(max_new_tokens=new)) for i, (new, _) in
            enumerate(running)]  # fmt: skip
    for req, (new, out) in zip(runs, running, strict=True):
        req.output_ids = [1] * min(new, out)
    budget = PrefillBudget(leases, runs, ratio, rem_input, chunk, mixed)
    adder = PrefillAdder(budget, leases, PrefixCache(leases, NullRecorder()), NullRecorder())
    reserve = sum(min(new - min(new, out), 4096) * ratio for new, out in running)
    rules = Rules(
        page, NUM_PAGES - len(prefixes), prefixes, mixed + reserve, mixed, rem_input - mixed,
        None if chunk is None else chunk - mixed,
    )  # fmt: skip
    for index, (prompt, new) in enumerate(waiting):
        req = Request(f"r{index}", prompt, SamplingParams(max_new_tokens=new))
        result = adder.add_one_req(req)
        assert result.name == rules.add_one_req(prompt, new, 0)
        assert [length for _, length in adder.can_run_list] == rules.added
        assert budget.rem_total_tokens == pytest.approx(rules.memory() - rules.total_offset)
        assert budget.cur_rem_tokens == rules.memory() - rules.cur_offset
        assert (budget.rem_input_tokens, budget.rem_chunk_tokens) == (
            rules.rem_input, rules.rem_chunk
        )  # fmt: skip
        if result is not AddReqResult.CONTINUE:
            break


@given(
    prompt=st.integers(1, 60),
    page=st.sampled_from([1, 2, 4]),
    chunk_pages=st.integers(1, 6),
)
def test_chunks_are_whole_pages_and_only_the_last_is_delivered(
    prompt: int, page: int, chunk_pages: int
) -> None:
    chunk = page * chunk_pages
    scheduler = Scheduler(SchedulerConfig(chunked_prefill_size=chunk, page_size=page, vocab_size=9))
    req = Request("r", [1] * prompt, SamplingParams(max_new_tokens=1))
    scheduler.receive([req])
    lengths, delivered = [], []
    while not req.finished:
        batch = scheduler.next_batch()
        assert batch
        lengths.append(batch.rows[0].extend_len)
        delivered += scheduler.process(batch, Result([5]))
    assert lengths == [chunk] * (prompt // chunk) + [prompt % chunk] * (prompt % chunk > 0)
    assert [output.token for output in delivered] == [5]


@given(prompts=st.lists(st.integers(1, 20), min_size=1, max_size=6), chunk=st.integers(1, 30))
def test_prompts_start_in_order_and_fill_the_budget(prompts: list[int], chunk: int) -> None:
    """First come, first served: a batch takes prompts until its budget is spent, never more."""
    scheduler = Scheduler(
        SchedulerConfig(chunked_prefill_size=chunk, vocab_size=9, disable_radix_cache=True)
    )
    params = SamplingParams(max_new_tokens=1)
    requests = [Request(f"r{i}", [1] * length, params) for i, length in enumerate(prompts)]
    scheduler.receive(requests)
    order = []
    while scheduler.live:
        left = sum(len(req.prompt) - req.computed_len for req in scheduler.live.values())
        batch = scheduler.next_batch()
        assert batch and batch.mode is ForwardMode.EXTEND
        assert batch.num_tokens == min(chunk, left)
        order += [row.req.order for row in batch.rows if row.deliver]
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert order == list(range(len(prompts)))


def test_a_chunked_request_never_decodes() -> None:
    chunked = ChunkedReq(Request("r", [1, 2, 3]))
    decode = DecodeManager()
    decode.add_reqs([chunked])
    assert not chunked.can_decode and not decode.running_reqs
    with pytest.raises(RuntimeError, match="token 7 is not r's"):
        chunked.append_host(7)


def test_without_chunks_a_prompt_runs_whole_and_others_wait_for_the_next_batch() -> None:
    config = SchedulerConfig(chunked_prefill_size=-1, max_prefill_tokens=10, vocab_size=9)
    scheduler = Scheduler(config)
    params = SamplingParams(max_new_tokens=1)
    scheduler.receive([Request("long", [1] * 100, params), Request("short", [2] * 5, params)])
    batches = [scheduler.next_batch() for _ in range(2)]
    assert [batch.rids for batch in batches if batch] == [("long",), ("short",)]


def test_every_refusal_says_why() -> None:
    """Memory, rows, the batch's tokens, a page of a chunk: each with need and left."""

    def reasons(config: SchedulerConfig, lengths: list[int], new: int) -> set[str]:
        scheduler = Scheduler(config, Recorder())
        params = SamplingParams(max_new_tokens=new)
        scheduler.receive([Request(f"r{i}", [i] * n, params) for i, n in enumerate(lengths)])
        scheduler.next_batch()
        marks = scheduler.recorder.trace("", "", "", "").marks
        return {str(mark.attrs["reason"]) for mark in marks if mark.name == "refuse"}

    small = SchedulerConfig(kv_tokens=30, context_len=64, vocab_size=9)
    assert reasons(small, [10, 10], 9) == {"KV memory: needs 20 tokens, 10 left"}
    rows = SchedulerConfig(max_running_requests=1)
    assert reasons(rows, [4, 4], 4) == {"max_running_requests: needs 1 row, 0 left"}
    chunked = SchedulerConfig(chunked_prefill_size=16)
    assert reasons(chunked, [16, 16, 16], 4) == {"chunked_prefill_size: needs 1 token, 0 left"}
    assert reasons(chunked, [40, 16], 4) == {"chunked_prefill_size: needs 1 token, 0 left"}
    unified = SchedulerConfig(chunked_prefill_size=16, run_first="unified")
    assert reasons(unified, [16, 16], 4) == {"the token budget: needs 1 token, 0 left"}
    wide = SchedulerConfig(chunked_prefill_size=-1, max_prefill_tokens=12)
    assert reasons(wide, [8, 8], 4) == {"max_prefill_tokens: needs 8 tokens, 4 left"}
    both = SchedulerConfig(chunked_prefill_size=17, max_prefill_tokens=16)
    assert reasons(both, [16, 9], 4) == {"max_prefill_tokens: needs 1 token, 0 left"}


def test_who_is_refused_is_not_asked_again_before_something_has_changed() -> None:
    """``batch_is_full``: a step costs nothing for those who wait."""
    scheduler = Scheduler(SchedulerConfig(max_running_requests=1), Recorder())
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    scheduler.receive([Request(f"r{i}", [i], params) for i in range(5)])

    def refusals() -> int:
        marks = scheduler.recorder.trace("", "", "", "").marks
        return sum(mark.name == "refuse" for mark in marks)

    for expected in (1, 2, 2, 2):  # the second time, because somebody has been admitted since
        batch = scheduler.next_batch()
        assert batch and refusals() == expected
        scheduler.process(batch, Result([5]))
    assert scheduler.next_batch().rids == ("r1",), "the first one has ended"  # type: ignore[union-attr]


def test_who_waits_behind_an_aborted_request_is_asked_at_once() -> None:
    scheduler = Scheduler(SchedulerConfig(kv_tokens=40, context_len=40))
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    scheduler.receive([Request("runs", [1], params), Request("large", [2] * 20, params)])
    scheduler.receive([Request("small", [3], SamplingParams(max_new_tokens=2))])
    for _ in range(2):
        batch = scheduler.next_batch()
        assert batch and batch.rids == ("runs",)
        scheduler.process(batch, Result([5]))
    scheduler.abort("large")
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("small",)


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
    leases = LeasePool(PageAllocator(NUM_PAGES, 1), ReqToTokenPool(9), None)
    req = Request("r", [1] * prompt, SamplingParams(max_new_tokens=new))
    req.start(leases.open())
    assert req.lease is not None
    leases.extend(req.lease, 1)
    req.computed_len = 1
    leases.extend(leases.open(), held)
    running = [Request("x", [1], SamplingParams(max_new_tokens=reserve))] if reserve else []
    budget = PrefillBudget(leases, running, 1.0, 999, chunk, mixed)
    recorder = Recorder()
    adder = PrefillAdder(budget, leases, PrefixCache(leases, NullRecorder()), recorder)
    memory = NUM_PAGES - 1 - held
    total = memory - mixed - reserve
    wanted = min(chunk - mixed, total) if total >= 1 else chunk - mixed
    expected = max(0, min(wanted, prompt - 1, memory))
    is_chunked = adder.add_chunked_req(req)
    assert adder.can_run_list == ([(req, expected)] if expected else [])
    assert is_chunked == (expected < prompt - 1)
    if expected:
        future = 0 if is_chunked else new
        assert budget.rem_total_tokens == total - expected - future - 1
    else:
        mark = recorder.trace("", "", "", "").marks[-1]
        reason = f"the next chunk: needs 1 token, {min(wanted, 0)} left"
        assert (mark.name, mark.attrs["rid"], mark.attrs["reason"]) == ("refuse", "r", reason)
