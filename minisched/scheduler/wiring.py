"""What a scheduler is made of: memory, and the policies over it, as settings and rules say."""

from __future__ import annotations

from typing import NamedTuple

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
    SchedulePolicy,
    UnifiedBudget,
    WaitingQueue,
)
from ..policy.unified import rules_of_admission
from ..trace import Recorder
from .config import SchedulerConfig


def make_memory(config: SchedulerConfig, recorder: Recorder) -> LeasePool:
    """Rows, pages and a cache of prefixes, with leases on all three."""
    rules = config.in_force
    recorder.mark(
        "kv pool", pages=config.num_pages, page_size=config.page_size,
        rows=config.max_running_requests,
    )  # fmt: skip
    allocator = PageAllocator(config.num_pages, config.page_size, recorder)
    table = ReqToTokenPool(config.max_running_requests, recorder)
    cache: PageCache
    if config.disable_radix_cache:
        cache = BlockPool(config.page_size)  # into which nobody puts anything
    elif rules.prefix_cache == "blocks":
        cache = BlockPool(config.page_size, recorder, rules.block_line == "one_line")
    else:
        cache = RadixCache(
            config.page_size, config.radix_eviction_policy, recorder, rules.split_counts
        )
    return LeasePool(allocator, table, cache, rules.free_rule)


class Policies(NamedTuple):
    """Who decodes, who waits, who gives way, what is kept back, and vLLM's budget for all."""

    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    new_token_ratio: NewTokenRatio
    unified: UnifiedBudget


def make_policies(config: SchedulerConfig, leases: LeasePool, recorder: Recorder) -> Policies:
    """The policies over a scheduler's memory, as settings and rules say."""
    rules, chunk = rules_of_admission(config.in_force), config.chunked_prefill_size
    is_unified = rules.run_first == "unified"
    tree = leases.cache if isinstance(leases.cache, RadixCache) else None
    policy = SchedulePolicy(
        config.schedule_policy, tree, config.random_seed, config.enable_priority_scheduling,
        refreshes=rules.waiting_prefixes == "refreshed",
    )  # fmt: skip
    prefix_cache = PrefixCache(
        leases, recorder, config.disable_radix_cache,
        enters_cache=rules.enters_cache, edges_end=rules.edges_end,
        prompt_pages=rules.prompt_pages, output_pages=rules.output_pages,
    )  # fmt: skip
    threshold = config.priority_scheduling_preemption_threshold
    ratio = NewTokenRatio(config.schedule_conservativeness, recorder)
    decode = DecodeManager(config.run_ahead, config.overrun)
    prefill = PrefillManager(
        WaitingQueue(policy, recorder, rules.retracted_waits == "old_place"),
        leases, prefix_cache, recorder,
        chunk_size=None if chunk == -1 else chunk,
        max_prefill_tokens=config.max_prefill_tokens,
        preemption_threshold=threshold if policy.by_priority and not is_unified else None,
        rules=rules,
    )  # fmt: skip
    retraction = Retraction(
        decode.running_reqs, decode.is_ending, ratio.on_retraction, prefill, leases, recorder,
        evicts_ahead=rules.evicts == "ahead" and tree is not None,
    )  # fmt: skip
    unified = UnifiedBudget(config.prefill_budget, decode, prefill, retraction, leases, recorder)
    return Policies(decode, prefill, retraction, ratio, unified)
