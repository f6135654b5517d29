"""The golden runs, by topic: small workloads on the simulated device, each of which shows one idea.

Golden traces and diagrams are drawn from them, and the same code gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..core import Request, SamplingParams
from ..devices.base import Device
from ..devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ..devices.registry import open_device
from ..loops.run import Run, fresh, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace


@dataclass(frozen=True)
class Recipe:
    """One run with a hash model; ``options`` go to the loop."""

    loop: str
    requests: Sequence[Request]
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    relay: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    cost: CostModel = SIM_COST
    model: HashModel = field(default_factory=HashModel)

    def play(self, device: Device | None = None) -> Run:
        """The run, the same every time; on ``sim`` unless a device is given."""
        requests = [fresh(request) for request in self.requests]
        return run_loop(
            self.loop, device or open_device("sim"), self.model, requests, self.config, self.cost,
            self.relay, **self.options,
        )  # fmt: skip

    def run(self) -> Trace:
        """The run's trace."""
        return self.play().trace


def tokens(count: int, ignore_eos: bool = True) -> SamplingParams:
    """Exactly so many, greedily; or, where EOS may come, at most so many."""
    return SamplingParams(max_new_tokens=count, ignore_eos=ignore_eos)


def one_by_one(rids: str, prompt_len: int, count: int, ignore_eos: bool = True) -> list[Request]:
    """Requests that come 10 ms apart and share nothing."""
    return [
        Request(rid, range(20 * at, 20 * at + prompt_len), tokens(count, ignore_eos),
                arrival_time=10 * at * MILLISECOND)
        for at, rid in enumerate(rids)
    ]  # fmt: skip


def a_bit_of_everything(loop: str, relay: str = "", **options: Any) -> Recipe:
    """Five requests for comparing loops.

    Prompts that have to be chunked, greedy and sampled tokens, one request that stops early (c),
    and one that comes while the others run (e).
    """
    greedy = tokens(28)
    sampled = SamplingParams(0.8, max_new_tokens=28, ignore_eos=True)
    requests = [
        Request("a", range(10, 22), greedy),
        Request("b", range(30, 60), sampled),
        Request("c", range(40, 70), SamplingParams(max_new_tokens=28)),
        Request("d", range(70, 85), sampled),
        Request("e", range(90, 110), greedy, arrival_time=20 * MILLISECOND),
    ]
    return Recipe(loop, requests, SchedulerConfig(chunked_prefill_size=48), relay, options)


@cache
def run_of(loop: str) -> Trace:
    """One loop on the common workload of five requests."""
    return a_bit_of_everything(loop).run()


# -- Other costs than the usual ones ---------------------------------------------------------------

SPLIT = replace(  # vLLM's halves: execute_model, sample_tokens
    SIM_COST,
    host={**SIM_COST.host, "launch": 300 * MICROSECOND, "launch sample": 200 * MICROSECOND},
)
FAST = replace(  # short steps while nobody sends a prompt: the host is the slower one
    SIM_COST, forward_base=2 * MILLISECOND, forward_per_token=120 * MICROSECOND,
    sample=MILLISECOND, copy=3 * MILLISECOND // 2,
)  # fmt: skip
STAGES = 4


# -- The golden runs -------------------------------------------------------------------------------


def asks(rid: str, prompt: Sequence[int], params: SamplingParams | int, at: float = 0) -> Request:
    """A request that comes ``at`` milliseconds; a number is how many tokens it gets."""
    params = tokens(params) if isinstance(params, int) else params
    return Request(rid, prompt, params, arrival_time=round(at * MILLISECOND))


def stops(most: int, token: int) -> SamplingParams:
    """At most so many tokens, and one that stops."""
    return SamplingParams(max_new_tokens=most, stop_token_ids=frozenset({token}))


def follows(rule: str) -> SamplingParams:
    """Ten tokens at most, that follow a rule."""
    return SamplingParams(max_new_tokens=10, regex=rule)


RECIPES = {
    # ABC, then AFG, which splits it at A; X, which pushes a part out; and ABC's question again
    "radix_cache": Recipe(
        "overlap",
        [
            asks("abc", range(1, 10), 6),
            asks("afg", [1, 2, 3, 4, 20, 21, 22, 30, 31], 6, at=20),
            asks("x", range(100, 112), 5, at=150),
            asks("abd", [*range(1, 8), 40, 41], 4, at=230),
        ],
        SchedulerConfig(kv_tokens=36),
    ),
    # 16 pages for four requests: c gives way to a and b, and d gets pages of all three
    "page_allocator": Recipe(
        "overlap",
        [
            asks("a", range(10, 22), tokens(16, False)),
            asks("b", range(30, 42), tokens(24, False), at=10),
            asks("c", [*range(10, 22), 50, 51, 52], tokens(12, False), at=60),
            asks("d", range(60, 80), tokens(8, False), at=180),
        ],
        SchedulerConfig(
            kv_tokens=64, page_size=4, max_running_requests=3, schedule_conservativeness=0.0
        ),
    ),
    # longest prefix match: questions on a cached document overtake those that came first
    "schedule_policy": Recipe(
        "overlap",
        [
            asks("doc", range(1, 40), 3),
            asks("other", range(100, 120), 3, at=5),
            asks("doc-q1", [*range(1, 38), 90, 91], 3, at=6),
            asks("new", range(200, 230), 3, at=7),
            asks("doc-q2", [*range(1, 38), 92, 93], 3, at=8),
        ],
        SchedulerConfig(
            schedule_policy="lpm", max_running_requests=2, chunked_prefill_size=40, kv_tokens=256
        ),
    ),
    # a long prompt in chunks, two short ones that wait for it, and one that finds it cached
    "prefill": Recipe(
        "overlap",
        [
            asks("long", range(100), 4),
            asks("short", range(200, 208), 4),
            asks("late", range(20, 40), 4),
            asks("again", range(104), 4, at=60),
        ],
        SchedulerConfig(chunked_prefill_size=32, kv_tokens=132),
    ),
    # three requests in a pool for two: one is retracted, waits, and starts again
    "decode": Recipe(
        "overlap",
        one_by_one("abc", 8, 12, ignore_eos=False),
        SchedulerConfig(kv_tokens=44, schedule_conservativeness=0.0),
    ),
    # three requests in a pool for one and a half: memory runs out more than once
    "retraction": Recipe(
        "overlap",
        [*one_by_one("ab", 12, 40, False), *one_by_one("abc", 12, 16, False)[2:]],
        SchedulerConfig(kv_tokens=70, schedule_conservativeness=0.1),
    ),
    # a long prompt in chunks, beside two requests that decode
    "mixed_chunk": Recipe(
        "overlap",
        [
            asks("a", range(10), 14),
            asks("b", range(20, 34), 12),
            asks("long", range(50, 150), 6, at=30),
            asks("c", range(160, 170), 6, at=60),
        ],
        SchedulerConfig(chunked_prefill_size=24, enable_mixed_chunk=True),
    ),
    # one budget for two that decode, a long prompt and a late one, until memory runs out
    "unified": Recipe(
        "vllm_async",
        [
            asks("a", range(10), 12),
            asks("b", range(20, 34), 12),
            asks("long", range(50, 100), 6, at=20),
            asks("c", range(160, 170), 8, at=50),
        ],
        SchedulerConfig(chunked_prefill_size=24, kv_tokens=100),
    ),
    # a ring for two requests, lapped every third step
    "future_map": Recipe(
        "overlap",
        [asks(rid, range(at, at + 5), 10) for at, rid in enumerate("abc")],
        SchedulerConfig(max_running_requests=2),
        relay="ring",
    ),
    # long prompts, for which the host waits, and short decodes, which lie ready for it
    "generation_batch_result": Recipe(
        "mini_overlap",
        [asks("a", range(10, 80), 7), asks("b", range(100, 140), 4, at=30)],
        SchedulerConfig(kv_tokens=256),
        cost=FAST,
    ),
    # two that follow a rule and one that is free; masks take as long as a short step. a ends with
    # the only token that its rule allows in the end, b with an end-of-text token
    "grammar_manager": Recipe(
        "overlap",
        [
            asks("a", range(10, 16), follows(r"(yes|no), [a-z]{2}[.]")),
            asks("b", range(11, 17), follows("[0-9]+")),
            asks("c", range(40, 46), 9),
        ],
        cost=replace(
            SIM_COST, host={**SIM_COST.host, "mask": 3 * MILLISECOND}, forward_base=4 * MILLISECOND
        ),
    ),
    # three that decode and one that comes later (d): its prompt has no hits, and breaks theirs.
    # Rows move up where somebody ends: a at its length, b at a stop token (its sixth). An end
    # leaves a surplus row, but not b's: the step that is on its way is d's prompt
    "placeholder_fill": Recipe(
        "mindie_plugin",
        [
            asks("a", range(10, 16), 4),
            asks("b", range(30, 36), stops(9, 53)),
            asks("c", range(50, 56), 10),
            asks("d", range(70, 78), 6, at=60),
        ],
        SchedulerConfig(kv_tokens=128),
    ),
    # two rows: a prompt in chunks (a), a stop token (b, its fourth), and who gets b's row (c). It
    # begins as b did, so that a part of its prompt is copied and never gathered
    "token_pool": Recipe(
        "mini_overlap",
        [
            asks("a", range(10, 24), 9),
            asks("b", range(50, 56), stops(12, 99)),
            asks("c", [*range(50, 56), *range(90, 100)], 4, at=1),
        ],
        SchedulerConfig(max_running_requests=2, chunked_prefill_size=10, context_len=64),
    ),
    # a chain of three that a finish breaks (a), then an arrival (d), then the ends of all
    "lazy_chain": Recipe(
        "mlx_async",
        [
            asks("a", range(6), 5),
            asks("b", range(10, 18), 12),
            asks("c", range(20, 24), 12),
            asks("d", range(30, 35), 4, at=98),
        ],
    ),
    # every path: prompts from the CPU, slices while nothing changes, a scatter where rows move: b
    # ends first, so that c moves up; d comes when the others run
    "prev_sampled": Recipe(
        "vllm_async",
        [
            asks("a", range(10, 16), 9),
            asks("b", range(30, 36), 4),
            asks("c", range(50, 56), 7),
            asks("d", range(70, 74), 4, at=55),
        ],
        SchedulerConfig(kv_tokens=128),
        "prev_sampled",
        cost=SPLIT,
    ),
    **{
        loop: a_bit_of_everything(loop)
        for loop in (
            "serial", "overlap", "mlx_async", "mini_normal", "mini_overlap", "mindie_plugin",
            "mindie_dual", "mindie_single", "multi_step",
        )
    },
    # three of different lengths; a prompt in chunks has no placeholder before its last one (a)
    "mindie_placeholder": Recipe(
        "mindie_placeholder",
        [
            asks("a", range(10, 30), 14),
            asks("b", range(40, 46), 9),
            asks("c", range(60, 64), 12, at=45),
        ],
        SchedulerConfig(chunked_prefill_size=12, kv_tokens=256),
    ),
    "overlap_thread": replace(
        a_bit_of_everything("overlap_thread"), cost=SPLIT
    ),
    "vllm_step": replace(a_bit_of_everything("vllm_step"), cost=SPLIT),
    # async scheduling off: two prompts that fill a step each, so that two batches take turns; a
    # third request (c) comes later and joins one of them
    "vllm_batch_queue": Recipe(
        "vllm_batch_queue",
        [
            asks("a", range(10, 26), 14),
            asks("b", range(40, 56), 14),
            asks("c", range(70, 78), 8, at=90),
        ],
        SchedulerConfig(chunked_prefill_size=16),
        cost=SPLIT,
    ),
    # four stages. One request goes round alone; from 90 ms on there is one for every stage
    "vllm_pp": Recipe(
        f"vllm_pp{STAGES}",
        [
            asks("a", range(12), 7),
            *(asks(rid, range(20 * at, 20 * at + 12), 4, at=90 + at)
              for at, rid in enumerate("bcd", 1)),
        ],
        SchedulerConfig(chunked_prefill_size=12),
        cost=replace(SPLIT, forward_base=STAGES * SIM_COST.forward_base),
    ),
    # streams that decode while long prompts come
    "pd": Recipe(
        "pd",
        [
            *(asks(rid, range(at, at + 12), 20) for at, rid in enumerate("abc")),
            asks("long", range(20, 220), 6, at=45),
            asks("long too", range(40, 240), 6, at=105),
        ],
    ),
}  # fmt: skip


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic, made once: several pictures may show it."""
    return RECIPES[topic].run()
