"""Make a scheduler's memory and policies from its settings and rules.

A rule is a word to users and an object to the scheduler. This module alone turns the words of
``policy/rules.py`` into objects; each object is defined in the file of its system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..core import Request
from ..memory import (
    BlockPool,
    LeasePool,
    PageAllocator,
    PageCache,
    PrefixCache,
    RadixCache,
    ReqToTokenPool,
)
from ..memory.free_rules import FreeRule, at_once, deferred, steps_returned
from ..memory.prefix_cache import SETTLED, Settled, SharingRule
from ..policy import (
    DecodeManager,
    NewTokenRatio,
    PrefillManager,
    Retraction,
    SchedulePolicy,
    UnifiedBudget,
    WaitingQueue,
)
from ..policy.mini_sglang import EvictLacking, Known, QuietSplits, Rest
from ..policy.nano_vllm import OneLine, Prompt, newest
from ..policy.prefill_adder import ChunkRule, Reserve
from ..policy.rules import Rules, rules_of_admission
from ..policy.sglang import EvictAhead, Launched, Ratio, fewest_outputs
from ..policy.systems import find_rules
from ..policy.vllm import Planned, PlannedRest
from ..trace import Recorder
from .config import SchedulerConfig

# -- From words to objects -------------------------------------------------------------------------

RESERVES: Mapping[str, Reserve] = {"ratio": Ratio(), "rest": Rest(), "prompt": Prompt()}
ONE_BUDGET_RESERVES: Mapping[str, Reserve] = {"rest": PlannedRest(), "prompt": Planned()}
VICTIMS: Mapping[str, Callable[[Iterable[Request]], Request]] = {
    "fewest_outputs": fewest_outputs,
    "newest": newest,
}
EVICTIONS: Mapping[str, EvictAhead] = {"ahead": EvictAhead(), "lacking": EvictLacking()}
FREE_RULES: Mapping[str, FreeRule] = {
    "lease": steps_returned,
    "deferred": deferred,
    "at_once": at_once,
}
ENTRIES: Mapping[str, Settled] = {"settled": SETTLED, "launched": Launched(), "known": Known()}
TREES: Mapping[str, type[RadixCache]] = {"both": RadixCache, "neither": QuietSplits}
BLOCK_POOLS: Mapping[str, type[BlockPool]] = {"hashed_last": BlockPool, "one_line": OneLine}
OBJECTS: Mapping[str, Mapping[str, object]] = {
    "reserves": RESERVES,
    "victim": VICTIMS,
    "evicts": EVICTIONS,
    "free_rule": FREE_RULES,
    "enters_cache": ENTRIES,
    "split_counts": TREES,
    "block_line": BLOCK_POOLS,
}
"""By rule and answer, for the page of rules; the other answers are conditions below."""


def chunk_rule(rules: Rules) -> ChunkRule:
    """Return how prompts share the tokens of a step."""
    return ChunkRule(
        counts_pages=rules.budget_counts == "pages",
        ends_with_page=rules.chunk_ends == "page",
        cuts_first_only=rules.who_is_cut == "first",
        admits_alone=rules.run_first != "unified",
        asks_every_step=rules.ask_again == "every_step",
    )


def sharing_rule(rules: Rules) -> SharingRule:
    """Return what enters the prefix cache, and when."""
    return SharingRule(
        ENTRIES[rules.enters_cache],
        each_chunk=rules.chunks_enter == "each",
        splits_at_prompt=rules.edges_end == "prompt",
        planned_prompts=rules.prompt_pages == "scheduled",
        running_outputs=rules.output_pages == "running",
    )


# -- What settings and rules make ------------------------------------------------------------------


def make_memory(config: SchedulerConfig, recorder: Recorder) -> LeasePool:
    """Make rows, pages and a prefix cache, with leases on all three."""
    rules = config.in_force
    recorder.mark(
        "kv pool", pages=config.num_pages, page_size=config.page_size,
        rows=config.max_running_requests,
    )  # fmt: skip
    allocator = PageAllocator(config.num_pages, config.page_size, recorder)
    table = ReqToTokenPool(config.max_running_requests, recorder)
    cache: PageCache
    if config.disable_radix_cache:
        cache = BlockPool(config.page_size)  # which stays empty
    elif rules.prefix_cache == "blocks":
        cache = BLOCK_POOLS[rules.block_line](config.page_size, recorder)
    else:
        tree = TREES[rules.split_counts]
        cache = tree(config.page_size, config.radix_eviction_policy, recorder)
    return LeasePool(allocator, table, cache, FREE_RULES[rules.free_rule])


class Policies(NamedTuple):
    """The policies of one scheduler."""

    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    new_token_ratio: NewTokenRatio
    unified: UnifiedBudget | None  # None: prompts and decodes have budgets of their own
    decodes_first: bool  # prompts wait while any request can decode
    lets_go_early: bool  # a request that ends by length is released a step before its last result


def make_policies(config: SchedulerConfig, leases: LeasePool, recorder: Recorder) -> Policies:
    """Make the policies over a scheduler's memory."""
    rules, chunk = rules_of_admission(config.in_force), config.chunked_prefill_size
    is_unified = rules.run_first == "unified"
    tree = leases.cache if isinstance(leases.cache, RadixCache) else None
    policy = SchedulePolicy(
        config.schedule_policy, tree, config.random_seed, config.enable_priority_scheduling,
        refreshes=rules.waiting_prefixes == "refreshed",
    )  # fmt: skip
    sharing = sharing_rule(rules)
    prefix_cache = PrefixCache(leases, recorder, config.disable_radix_cache, sharing)
    threshold = config.priority_scheduling_preemption_threshold
    ratio = NewTokenRatio(config.schedule_conservativeness, recorder)
    decode = DecodeManager(config.run_ahead, config.overrun)
    prefill = PrefillManager(
        WaitingQueue(policy, recorder, rules.retracted_waits == "old_place"),
        leases, prefix_cache, recorder,
        chunk_size=None if chunk == -1 else chunk,
        max_prefill_tokens=config.max_prefill_tokens,
        preemption_threshold=threshold if policy.by_priority and not is_unified else None,
        reserve=(ONE_BUDGET_RESERVES if is_unified else RESERVES)[rules.reserves],
        chunks=chunk_rule(rules),
    )  # fmt: skip
    retraction = Retraction(
        decode.running_reqs, decode.is_ending, ratio.on_retraction, prefill, leases, recorder,
        VICTIMS[rules.victim], EVICTIONS[rules.evicts if tree is not None else "lacking"],
    )  # fmt: skip
    budget = UnifiedBudget(config.prefill_budget, decode, prefill, retraction, leases, recorder)
    return Policies(
        decode, prefill, retraction, ratio, budget if is_unified else None,
        decodes_first=rules.run_first == "decode",
        lets_go_early=rules.length_frees == "last_launch" and rules.free_rule == "at_once",
    )  # fmt: skip


# -- What the rules mean for a loop ----------------------------------------------------------------


def check_run_ahead(loop: str, config: SchedulerConfig) -> None:
    """Refuse a loop that runs ahead under rules that reserve nothing.

    Raises:
        ValueError: it does.
    """
    if config.run_ahead and config.in_force.reserves == "prompt":
        raise ValueError(
            f"loop {loop!r} runs ahead, but rules that keep memory for a prompt alone "
            "(reserves is 'prompt', as in nano-vllm) need a loop that waits for each step, "
            "such as 'serial'."
        )


def mixes_chunks(config: SchedulerConfig, system: str) -> bool:
    """Return whether a loop with the rules of ``system`` adds decodes to prefill batches.

    If these rules have one budget for all, its steps mix without that setting.
    """
    first = config.run_first or find_rules(config.rules or system).run_first
    return config.enable_mixed_chunk and (first == "prefill" or bool(config.rules))
