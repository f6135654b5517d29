"""Random settings of a scheduler: every policy, and pools near the smallest that can work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ...core import Request
from ...memory.eviction import POLICIES as EVICTION_POLICIES
from ...policy.schedule_policy import POLICIES as SCHEDULE_POLICIES
from ...scheduler import SchedulerConfig
from ...scheduler.config import RUN_FIRST

PAGE_SIZES = (1, 1, 2, 4)
CHUNKS = (-1, 1, 1, 2, 3, 5)  # pages; -1: no limit
DRAFT_MODELS = {"NGRAM": ("",), "NGRAM_GPU": ("",), "STANDALONE": ("hash:10", "hash:7", "hash:0")}


def draw_config(rng: Random, requests: Sequence[Request]) -> SchedulerConfig:
    """Settings under which the longest of the requests just fits, or a little more does.

    One in ten has a page less, so that the longest one is refused. Memory goes back by the rule
    ``lease``: each of the others is healthy on some loops only.
    """
    page_size = rng.choice(PAGE_SIZES)
    longest = -(-max(req.max_device_len for req in requests) // page_size)
    num_pages = longest - 1 if rng.random() < 0.1 else longest + rng.choice((0, 0, 1, 2, 4, 8, 12))
    chunk = rng.choice(CHUNKS)
    run_first = rng.choice(RUN_FIRST)
    return SchedulerConfig(
        kv_tokens=max(1, num_pages) * page_size,
        page_size=page_size,
        max_running_requests=rng.randint(1, 5),
        disable_radix_cache=rng.random() < 0.25,
        radix_eviction_policy=rng.choice(sorted(EVICTION_POLICIES)),
        chunked_prefill_size=chunk if chunk == -1 else chunk * page_size,
        max_prefill_tokens=rng.choice((3, 8, 99)),
        schedule_policy=rng.choice(sorted(SCHEDULE_POLICIES)),
        priority_scheduling_preemption_threshold=rng.randrange(3),
        schedule_conservativeness=rng.choice((0.0, 0.0, 0.4, 2.0)),
        random_seed=rng.randrange(10),
        run_first=run_first,
        enable_mixed_chunk=run_first == "prefill" and chunk != -1 and rng.random() < 0.5,
        cuda_graph_max_bs=rng.choice((None, None, 0, 2)),
        late_penalties=rng.random() < 0.25,
        late_stop_strings=rng.random() < 0.25,
        context_len=32,
    )


def with_drafts(rng: Random, config: SchedulerConfig, algorithm: str) -> SchedulerConfig:
    """The settings with speculation; ``with_slack`` adds the room for drafts in flight."""
    count = rng.randint(1, 4)
    changes: dict[str, Any] = {
        "speculative_algorithm": algorithm,
        "speculative_num_draft_tokens": count,
        "speculative_draft_model_path": rng.choice(DRAFT_MODELS[algorithm]),
        "enable_mixed_chunk": False,
        "late_penalties": False,
    }
    return replace(config, **changes)


def with_slack(config: SchedulerConfig, in_flight: int) -> SchedulerConfig:
    """The settings with just the room that drafts take, where so many steps are in flight."""
    pages = -(-config.num_draft_tokens * (in_flight - 1) // config.page_size)
    return replace(config, kv_tokens=config.kv_tokens + pages * config.page_size)


def for_deep(rng: Random, config: SchedulerConfig) -> SchedulerConfig:
    """Settings in which tokens stay unread for long: chunk upon chunk goes before who decodes.

    There are few rows and there is memory for all of them. Without this few workloads ever leave a
    row out while steps are in flight, and a relay that forgets its token is not found out.
    """
    return replace(
        config,
        run_first="prefill",
        enable_mixed_chunk=False,
        page_size=1,
        chunked_prefill_size=rng.choice((1, 2)),
        max_running_requests=rng.randint(2, 3),
        kv_tokens=config.kv_tokens + 40,
    )
