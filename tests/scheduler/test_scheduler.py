"""The scheduler alone, without any device, driven by a rule-based machine.

The machine submits, commits, lets steps come back or fail, aborts, retracts, evicts and flushes in
any order, with several steps in flight. It keeps a page table and KV memory of its own, filled
from the rows alone in the order of commits, as a stream would. So it sees at once if a row reads a
position that is not the request's, or that somebody has written over.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minisched.checks.draw import PLAIN
from minisched.core import ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.memory import flush_cache, self_check
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.repeat import can_chain
from minisched.trace import Recorder
from tests.support import VOCAB, check_books, configs, leases_of, many, nodes_of, prompts

happened: Counter[str] = Counter()
short_prompts = st.lists(st.integers(0, 2), min_size=1, max_size=4)
requests = st.tuples(  # prompt, max_new_tokens, priority
    st.one_of(prompts, short_prompts), st.sampled_from([1, 4, 9, 9]), st.integers(0, 3)
)


def next_token(tokens: tuple[int, ...]) -> int:
    """A model: any function of the tokens before."""
    return hash(tokens) % VOCAB


class SchedulerMachine(RuleBasedStateMachine):
    overrides: ClassVar[dict[str, Any]] = {}

    @initialize(
        config=configs(32),
        depth=st.integers(1, 4),
        overrun=st.integers(0, 1),
        eos_ids=st.sampled_from(PLAIN.eos),
        first=st.lists(requests, min_size=3, max_size=8),
    )
    def start(
        self, config: SchedulerConfig, depth: int, overrun: int, eos_ids: frozenset[int],
        first: list[tuple[list[int], int, int]],
    ) -> None:  # fmt: skip
        changed = {"run_ahead": depth > 1, "overrun": overrun, "eos_ids": eos_ids}
        changed["free_rule"] = "lease"  # what it promises is checked at every step
        self.config = replace(config, vocab_size=VOCAB, **{**changed, **self.overrides})
        self.recorder = Recorder()
        self.scheduler = Scheduler(self.config, self.recorder)
        self.depth = depth
        self.in_flight: deque[tuple[ScheduleBatch, list[int], list[list[int]]]] = deque()
        self.page_table: dict[tuple[int, int], int] = {}  # (row, index of page) -> page
        self.kv: dict[int, tuple[int, ...]] = {}  # KV slot -> the tokens up to there
        self.count = 0
        for request in first:
            self.submit(request=request)

    # -- rules ---------------------------------------------------------------------------------

    @rule(request=requests)
    def submit(self, request: tuple[list[int], int, int]) -> None:
        prompt, new, priority = request
        params = SamplingParams(max_new_tokens=new)
        req = Request(f"r{self.count}", prompt, params, priority=priority)
        self.count += 1
        self.scheduler.receive([req])
        assert not self.scheduler.take_outputs()

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule(chain=st.booleans())
    def commit(self, chain: bool) -> None:
        last = self.in_flight[-1][0] if self.in_flight else None
        chains = chain and last and can_chain(self.scheduler, last)
        if chains and last:
            assert not last.num_extend_reqs and not last.has_departed_reqs
            assert not self.scheduler.waiting_queue and not self.scheduler.prefill.chunked_req
        batch = self.scheduler.chain(last) if chains else self.scheduler.next_batch()
        if batch:
            self.check_batch(batch)
            tokens = [self.compute(batch, at) for at in range(len(batch.rows))]
            pages = [list(row.lease.pages) for row in batch.rows]
            self.in_flight.append((batch, tokens, pages))

    @precondition(lambda self: self.in_flight)
    @rule()
    def come_back(self) -> None:
        batch, tokens, _ = self.in_flight.popleft()
        outputs = self.scheduler.process(batch, Result(tokens))
        happened["late finish"] += any(output.finish_reason for output in outputs)

    @rule(turns=st.integers(2, 8))
    def some_turns(self, turns: int) -> None:
        for _ in range(turns):
            if len(self.in_flight) < self.depth:
                self.commit(chain=False)
            if self.in_flight:
                self.come_back()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self) -> None:
        batch, *_ = self.in_flight.popleft()
        self.scheduler.process(batch, Result([], "it failed"))

    @precondition(lambda self: self.scheduler.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.scheduler.live)))
        self.scheduler.abort(rid)
        self.scheduler.abort(rid)
        assert len(self.scheduler.take_outputs()) == 1, "a request ends once"

    @precondition(lambda self: self.scheduler.running_batch)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        req = data.draw(st.sampled_from(self.scheduler.running_batch))
        self.scheduler.retraction.retract(req, "forced")

    @precondition(lambda self: self.scheduler.tree)
    @rule(pages=st.integers(1, 5))
    def evict(self, pages: int) -> None:
        assert self.scheduler.tree is not None
        self.scheduler.allocator.free(self.scheduler.tree.evict(pages))

    @rule()
    def flush(self) -> None:
        assert flush_cache(self.scheduler.leases) == (not leases_of(self.scheduler))

    # -- a device of one stream ----------------------------------------------------------------

    def compute(self, batch: ScheduleBatch, at: int) -> int:
        """Fill the page table, read what came before, write what is computed, sample."""
        row, (pages_at, new_pages) = batch.rows[at], batch.new_pages.get(at, (0, ()))
        size, table_row = self.config.page_size, row.lease.row
        for index, page in enumerate(new_pages, pages_at):
            self.page_table[table_row, index] = page
        truth = list(row.req.prompt)
        while len(truth) < row.end:
            truth.append(next_token(tuple(truth)))
        for position in range(row.end):
            slot = self.page_table[table_row, position // size] * size + position % size
            before = tuple(truth[: position + 1])
            if position >= row.start:
                known = row.ids[position - row.start]
                assert known is None or known == truth[position], "an input token is wrong"
                self.kv[slot] = before
            assert self.kv[slot] == before, f"position {position} of {row.req.rid} is not its own"
        return next_token(tuple(truth))

    def check_batch(self, batch: ScheduleBatch) -> None:
        """What every committed batch promises."""
        rows = [row.lease.row for row in batch.rows]
        assert len(set(rows)) == len(rows), "no request table row twice in a batch"
        prompts, decodes = batch.rows[: batch.num_extend_reqs], batch.rows[batch.num_extend_reqs :]
        modes = {(True, False): ForwardMode.EXTEND, (False, True): ForwardMode.DECODE}
        assert batch.mode is modes.get((bool(prompts), bool(decodes)), ForwardMode.MIXED)
        assert all(len(row.ids) == 1 and row.deliver for row in decodes)
        assert sum(not row.deliver for row in prompts) <= 1, "one chunked request at a time"
        chunk = self.config.chunked_prefill_size
        assert chunk == -1 or not prompts or batch.num_tokens <= chunk, "over the chunk size"

    # -- what is always true -------------------------------------------------------------------

    @invariant()
    def books(self) -> None:
        if hasattr(self, "scheduler"):
            check_books(self.scheduler)

    @invariant()
    def pages_in_flight_are_handed_to_nobody(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        free = set(self.scheduler.allocator.free_pages)
        cached = {page for node in nodes_of(self.scheduler) for page in node.pages}
        for batch, _, snapshots in self.in_flight:
            for row, pages in zip(batch.rows, snapshots, strict=True):
                retired = {
                    page for _, _, pages in self.scheduler.leases.retired.entries for page in pages
                }
                assert not free & set(pages), "a page of a launched step is free"
                assert set(pages) <= cached | set(row.lease.pages) | retired, "it has a new owner"

    def teardown(self) -> None:
        """Whatever happened: everything that is left can be finished, and nothing is lost."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(100):
            if self.scheduler.live or self.in_flight:
                self.some_turns(turns=10)
        assert not self.scheduler.live, "it can't be finished"
        self_check(self.scheduler.leases)
        happened.update(mark.name for mark in self.recorder.marks)


@pytest.mark.parametrize(
    "overrides",
    [
        {"run_first": "prefill", "schedule_policy": "fcfs"},
        {"run_first": "prefill", "schedule_policy": "priority", "max_running_requests": 2,
         "priority_scheduling_preemption_threshold": 0},
        {"run_first": "unified", "enable_mixed_chunk": False},
        {"run_first": "prefill", "chunked_prefill_size": 8, "enable_mixed_chunk": True},
        {"run_first": "decode", "enable_mixed_chunk": False},
    ],
    ids=str,
)  # fmt: skip
def test_the_scheduler_machine(overrides: dict[str, Any]) -> None:
    happened.clear()
    eager = {"schedule_conservativeness": 0.0, "max_running_requests": 5, "eos_ids": frozenset()}
    machine = type("Machine", (SchedulerMachine,), {"overrides": {**eager, **overrides}})
    steps = settings(max_examples=many(40, 100), stateful_step_count=50)
    run_state_machine_as_test(machine, settings=steps)
    for name in ("late finish", "radix split", "radix evict", "wasted row", "retraction"):
        assert happened[name], f"{name} never happened: {happened}"
