"""The runs of policy, memory and the ring of future tokens."""

from __future__ import annotations

from ...core import Request
from ...devices.cost import MILLISECOND
from ...scheduler import SchedulerConfig
from .recipe import Recipe, one_by_one, tokens


def radix_cache() -> Recipe:
    """ABC, then AFG, which splits it at A; X, which pushes a part out; and ABC's question again."""
    a, b, c, f, g = [1, 2, 3, 4], [5, 6, 7], [8, 9], [20, 21, 22], [30, 31]
    requests = [
        Request("abc", a + b + c, tokens(6)),
        Request("afg", a + f + g, tokens(6), arrival_time=20 * MILLISECOND),
        Request("x", range(100, 112), tokens(5), arrival_time=150 * MILLISECOND),
        Request("abd", [*a, *b, 40, 41], tokens(4), arrival_time=230 * MILLISECOND),
    ]
    return Recipe("overlap", requests, SchedulerConfig(kv_tokens=36))


def page_allocator() -> Recipe:
    """16 pages for four requests: c gives way to a and b, and d gets pages of all three."""
    times = {"a": 0, "b": 10, "c": 60, "d": 180}
    prompts = {"a": range(10, 22), "b": range(30, 42), "c": [*range(10, 22), 50, 51, 52],
               "d": range(60, 80)}  # fmt: skip
    lengths = {"a": 16, "b": 24, "c": 12, "d": 8}
    requests = [
        Request(rid, prompt, tokens(lengths[rid], False), arrival_time=times[rid] * MILLISECOND)
        for rid, prompt in prompts.items()
    ]
    config = SchedulerConfig(
        kv_tokens=64, page_size=4, max_running_requests=3, schedule_conservativeness=0.0
    )
    return Recipe("overlap", requests, config)


def schedule_policy() -> Recipe:
    """Longest prefix match: questions on a cached document overtake those that came first."""
    document = list(range(1, 40))
    prompts = {
        "doc": document,
        "other": list(range(100, 120)),
        "doc-q1": [*document[:37], 90, 91],
        "new": list(range(200, 230)),
        "doc-q2": [*document[:37], 92, 93],
    }
    requests = [
        Request(rid, prompt, tokens(3), arrival_time=(at and at + 4) * MILLISECOND)
        for at, (rid, prompt) in enumerate(prompts.items())
    ]
    config = SchedulerConfig(
        schedule_policy="lpm", max_running_requests=2, chunked_prefill_size=40, kv_tokens=256
    )
    return Recipe("overlap", requests, config)


def prefill() -> Recipe:
    """A long prompt in chunks, two short ones that wait for it, and one that finds it cached."""
    prompts = {"long": range(100), "short": range(200, 208), "late": range(20, 40)}
    requests = [Request(rid, prompt, tokens(4)) for rid, prompt in prompts.items()]
    requests.append(Request("again", range(104), tokens(4), arrival_time=60 * MILLISECOND))
    return Recipe("overlap", requests, SchedulerConfig(chunked_prefill_size=32, kv_tokens=132))


def decode() -> Recipe:
    """Three requests in a pool for two: one is retracted, waits, and starts again."""
    config = SchedulerConfig(kv_tokens=44, schedule_conservativeness=0.0)
    return Recipe("overlap", one_by_one("abc", 8, 12, ignore_eos=False), config)


def retraction() -> Recipe:
    """Three requests in a pool for one and a half: memory runs out more than once."""
    requests = [*one_by_one("ab", 12, 40, False), *one_by_one("abc", 12, 16, False)[2:]]
    config = SchedulerConfig(kv_tokens=70, schedule_conservativeness=0.1)
    return Recipe("overlap", requests, config)


def mixed_chunk() -> Recipe:
    """A long prompt in chunks, beside two requests that decode."""
    requests = [
        Request("a", range(10), tokens(14)),
        Request("b", range(20, 34), tokens(12)),
        Request("long", range(50, 150), tokens(6), arrival_time=30 * MILLISECOND),
        Request("c", range(160, 170), tokens(6), arrival_time=60 * MILLISECOND),
    ]
    config = SchedulerConfig(chunked_prefill_size=24, enable_mixed_chunk=True)
    return Recipe("overlap", requests, config)


def unified() -> Recipe:
    """One budget for two that decode, a long prompt and a late one, until memory runs out."""
    requests = [
        Request("a", range(10), tokens(12)),
        Request("b", range(20, 34), tokens(12)),
        Request("long", range(50, 100), tokens(6), arrival_time=20 * MILLISECOND),
        Request("c", range(160, 170), tokens(8), arrival_time=50 * MILLISECOND),
    ]
    config = SchedulerConfig(chunked_prefill_size=24, kv_tokens=100)
    return Recipe("vllm_async", requests, config)


def future_map() -> Recipe:
    """A ring for two requests, lapped every third step."""
    requests = [Request(rid, range(at, at + 5), tokens(10)) for at, rid in enumerate("abc")]
    return Recipe("overlap", requests, SchedulerConfig(max_running_requests=2), relay="ring")


RECIPES = {
    "radix_cache": radix_cache(),
    "page_allocator": page_allocator(),
    "schedule_policy": schedule_policy(),
    "prefill": prefill(),
    "decode": decode(),
    "retraction": retraction(),
    "mixed_chunk": mixed_chunk(),
    "unified": unified(),
    "future_map": future_map(),
}
