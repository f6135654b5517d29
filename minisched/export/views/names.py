"""The names under which a view is found: topics, loops, and the words that people try first."""

from __future__ import annotations

import re
from difflib import get_close_matches

from ...loops.design import LOOPS
from ...topics import TOPICS

NEAR = {  # a word -> the topic that is about it
    "copy": "generation_batch_result",
    "copies": "generation_batch_result",
    "grammar": "grammar_manager",
    "pages": "page_allocator",
    "memory": "page_allocator",
    "kv": "page_allocator",
    "radix": "radix_cache",
    "prefix": "radix_cache",
    "tree": "radix_cache",
    "queue": "schedule_policy",
    "admission": "prefill",
    "budget": "prefill",
    "running": "decode",
    "chunked": "mixed_chunk",
    "ring": "future_map",
    "future": "future_map",
    "chain": "lazy_chain",
    "placeholder": "placeholder_fill",
    "thread": "overlap_thread",
}


def kind_of_loop(name: str) -> str:
    """The loop, or the topic, as which a trace of that name is drawn; empty: there is no such loop.

    A trace's name may have a relay behind it, ``overlap-pool``; pipelines are a topic together.
    """
    loop = name.partition("-")[0].partition(":")[0]
    if loop not in LOOPS:
        return ""
    return re.sub(r"^vllm_pp\d+$", "vllm_pp", loop)


def unknown(topic: str) -> str:
    """What to say where there is no such topic: the nearest, and all of them."""
    near = [NEAR[topic]] if topic in NEAR else get_close_matches(topic, [*TOPICS, *LOOPS], 1)
    hint = f"perhaps {near[0]} is meant; the" if near else "the"
    return f"unknown topic {topic!r}; {hint} topics are {', '.join(TOPICS)}."
