"""What the scheduler is made of, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core import Output, Request, ScheduleBatch
from ..memory import (
    BlockPool,
    LeasePool,
    PageAllocator,
    PageCache,
    PrefixCache,
    RadixCache,
    ReqToTokenPool,
)
from ..policy import (
    DecodeManager,
    NewTokenRatio,
    PrefillManager,
    Retraction,
    RunFirst,
    SchedulePolicy,
    UnifiedBudget,
    WaitingQueue,
)
from ..trace import Recorder
from .config import SchedulerConfig
from .grammar_manager import CompileGrammar

Propose = Callable[[Sequence[int], int], list[int]]
Listen = Callable[[Sequence[str], bool], Callable[[int], bool]]


def unheard(batch: ScheduleBatch) -> None:
    """Nobody wants to know what is committed."""


class MemoryLeak(RuntimeError):
    """Nothing runs, yet memory is missing or still held."""


class SchedulerState:
    """Memory and policies, wired; and SGLang's four words for where requests are.

    ``waiting_queue``: those without memory. ``new_batch``: the prompts admitted last.
    ``running_batch``: those who decode. ``cur_batch``: what was committed last.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder) -> None:
        self.config = config
        self.recorder = recorder
        self._make_memory(config)
        self._make_policies(config)
        rules = config.in_force
        self.lets_go_early = rules.length_frees == "last_launch" and rules.free_rule == "at_once"
        self.live: dict[str, Request] = {}  # received and not ended
        self.wishing: set[str] = set()  # those of them with a grammar, penalties, and so on
        self.num_received = 0  # so far, without those that were refused
        self.outbox: list[Output] = []
        self.batches_in_flight = 0
        self.step = 0
        self.new_batch: ScheduleBatch | None = None
        self.cur_batch: ScheduleBatch | None = None
        self.propose: Propose | None = None  # drafts from known tokens, at most so many
        self.on_commit: Callable[[ScheduleBatch], None] = unheard  # hears of every step
        self.compile_grammar: CompileGrammar | None = None  # see grammar_manager.py
        self.listen: Listen | None = None  # hears stop strings in a request's tokens, maybe late

    def _make_memory(self, config: SchedulerConfig) -> None:
        self.recorder.mark(
            "kv pool", pages=config.num_pages, page_size=config.page_size,
            rows=config.max_running_requests,
        )  # fmt: skip
        self.allocator = PageAllocator(config.num_pages, config.page_size, self.recorder)
        self.table = ReqToTokenPool(config.max_running_requests, self.recorder)
        rules = config.in_force
        self.tree: RadixCache | None = None  # the page cache, where it is one
        self.page_cache: PageCache | None = None
        if not config.disable_radix_cache and rules.prefix_cache == "blocks":
            self.page_cache = BlockPool(
                config.page_size, self.recorder, rules.block_line == "one_line"
            )
        elif not config.disable_radix_cache:
            policy = config.radix_eviction_policy
            self.page_cache = self.tree = RadixCache(
                config.page_size, policy, self.recorder, rules.split_counts
            )
        self.leases = LeasePool(self.allocator, self.table, self.page_cache, rules.free_rule)
        self.prefix_cache = PrefixCache(
            self.leases, self.recorder, enters_cache=rules.enters_cache, edges_end=rules.edges_end,
            prompt_pages=rules.prompt_pages, output_pages=rules.output_pages,
        )  # fmt: skip

    def _make_policies(self, config: SchedulerConfig) -> None:
        recorder, leases, rules = self.recorder, self.leases, config.in_force
        chunk = config.chunked_prefill_size
        policy = SchedulePolicy(
            config.schedule_policy, self.tree, config.random_seed,
            config.enable_priority_scheduling, refreshes=rules.waiting_prefixes == "refreshed",
        )  # fmt: skip
        old_place = rules.retracted_waits == "old_place"
        self.waiting_queue = WaitingQueue(policy, recorder, old_place)
        self.new_token_ratio = NewTokenRatio(config.schedule_conservativeness, recorder)
        self.decode = DecodeManager(config.run_ahead, config.overrun)
        self.prefill = PrefillManager(
            self.waiting_queue, leases, self.prefix_cache, self.new_token_ratio, recorder,
            chunk_size=None if chunk == -1 else chunk,
            max_prefill_tokens=config.max_prefill_tokens,
            preemption_threshold=(
                config.priority_scheduling_preemption_threshold if policy.by_priority else None
            ),
            rules=rules,
        )  # fmt: skip
        evicts_ahead = rules.evicts == "ahead" and self.tree is not None
        self.evicts_by_page = evicts_ahead and config.page_size > 1
        self.retraction = Retraction(self.decode, self.prefill, leases, recorder, evicts_ahead)
        self.run_first = RunFirst(
            rules.run_first, config.enable_mixed_chunk,
            self.decode, self.prefill, self.retraction, leases,
            UnifiedBudget(
                config.prefill_budget, self.decode, self.prefill, self.retraction, leases,
                recorder, rules.newcomer_fits, rules.chunk_lacks_pages,
            ),
            rules.plans_again,
        )  # fmt: skip

    @property
    def running_batch(self) -> list[Request]:
        """The requests that decode, in the order in which their prompts were done."""
        return self.decode.running_reqs

    @property
    def awaits_others(self) -> bool:
        """Whether something from outside may help those who can't run (``scheduler/transfer.py``).

        Nothing can, where this is the only scheduler.
        """
        return False

    @property
    def num_retractions(self) -> int:
        """How often a request has lost its memory so far."""
        return self.retraction.num_retractions

    @property
    def num_used_tokens(self) -> int:
        """KV slots held by requests; what is cached and could be evicted is not counted."""
        used = self.allocator.num_pages - self.leases.available_pages
        return used * self.allocator.page_size

    @property
    def token_usage(self) -> float:
        """Share of the KV pool that requests hold."""
        return self.num_used_tokens / self.config.num_slots

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while anything holds memory."""
        if not self.leases.is_idle:
            return False
        if self.page_cache is not None:
            self.allocator.free(self.page_cache.evict(self.page_cache.total_size))
        return True

    def self_check(self) -> None:
        """At idle: every page is free or cached, every row free (``self_check_during_idle``).

        Raises:
            MemoryLeak: they are not.
        """
        protected = self.page_cache.protected_size if self.page_cache else 0
        available, total = self.leases.available_pages, self.allocator.num_pages
        if available != total:
            raise MemoryLeak(
                f"{available} pages are free or evictable and {protected} protected, "
                f"but there are {total} and nothing runs."
            )
        if not self.leases.is_idle:
            free, size = self.table.available_size, self.table.size
            raise MemoryLeak(f"{free} of {size} rows are free, but nothing runs.")
