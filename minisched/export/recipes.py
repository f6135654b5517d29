"""The golden runs, by topic: small workloads on the simulated device, each of which shows one idea.

Golden traces and diagrams are drawn from them, and the same code gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..core import Request, SamplingParams
from ..devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ..devices.registry import open_device
from ..loops.run import fresh, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace


@dataclass(frozen=True)
class Recipe:
    """One run on sim with the hash model; ``options`` go to the loop."""

    loop: str
    requests: Sequence[Request]
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    relay: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    cost: CostModel = SIM_COST

    def run(self) -> Trace:
        """The run's trace, the same every time."""
        requests = [fresh(request) for request in self.requests]
        run = run_loop(
            self.loop, open_device("sim"), HashModel(), requests, self.config, self.cost,
            self.relay, **self.options,
        )  # fmt: skip
        return run.trace


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


# -- Policy, memory, and the ring of future tokens ------------------------------------------------


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


# -- What goes to and fro, and the relays ----------------------------------------------------------

FAST = replace(  # short steps while nobody sends a prompt: the host is the slower one
    SIM_COST, forward_base=2 * MILLISECOND, forward_per_token=120 * MICROSECOND,
    sample=MILLISECOND, copy=3 * MILLISECOND // 2,
)  # fmt: skip


def generation_batch_result() -> Recipe:
    """Long prompts, for which the host waits, and short decodes, which lie ready for it."""
    requests = [
        Request("a", range(10, 80), tokens(7)),
        Request("b", range(100, 140), tokens(4), arrival_time=30 * MILLISECOND),
    ]
    return Recipe("mini_overlap", requests, SchedulerConfig(kv_tokens=256), cost=FAST)


def grammar_manager() -> Recipe:
    """Two that follow a rule and one that is free; masks take as long as a short step.

    ``a`` ends with the only token that its rule allows in the end, ``b`` with an end-of-text token.
    """
    rules = {"a": r"(yes|no), [a-z]{2}[.]", "b": "[0-9]+"}
    requests = [
        Request(rid, range(at, at + 6), SamplingParams(max_new_tokens=10, regex=rule))
        for at, (rid, rule) in enumerate(rules.items(), 10)
    ]
    cost = replace(
        SIM_COST, host={**SIM_COST.host, "mask": 3 * MILLISECOND}, forward_base=4 * MILLISECOND
    )
    return Recipe("overlap", [*requests, Request("c", range(40, 46), tokens(9))], cost=cost)


SEQUENCE_B_STOPS_AT = 53  # the sixth token that the hash model gives it


def placeholder_fill() -> Recipe:
    """Three that decode and one that comes later (d): its prompt has no hits, and breaks theirs.

    Rows move up where somebody ends: ``a`` at its length, ``b`` at a stop token. An end leaves a
    surplus row, but not ``b``'s: the step that is on its way is d's prompt.
    """
    stops = SamplingParams(max_new_tokens=9, stop_token_ids=frozenset({SEQUENCE_B_STOPS_AT}))
    requests = [
        Request("a", range(10, 16), tokens(4)),
        Request("b", range(30, 36), stops),
        Request("c", range(50, 56), tokens(10)),
        Request("d", range(70, 78), tokens(6), arrival_time=60 * MILLISECOND),
    ]
    return Recipe("mindie_plugin", requests, SchedulerConfig(kv_tokens=128))


def mindie_placeholder() -> Recipe:
    """Three of different lengths; a prompt in chunks has no placeholder before its last one (a)."""
    requests = [
        Request("a", range(10, 30), tokens(14)),
        Request("b", range(40, 46), tokens(9)),
        Request("c", range(60, 64), tokens(12), arrival_time=45 * MILLISECOND),
    ]
    return Recipe(
        "mindie_placeholder", requests, SchedulerConfig(chunked_prefill_size=12, kv_tokens=256)
    )


B_STOPS_AT = 99  # the fourth token that the hash model gives it


def token_pool() -> Recipe:
    """Two rows: a prompt in chunks (a), a stop token (b), and who gets b's row, partly cached (c).

    ``c`` begins as ``b`` did, so that a part of its prompt is copied and never gathered.
    """
    stops = SamplingParams(max_new_tokens=12, stop_token_ids=frozenset({B_STOPS_AT}))
    shared = range(50, 56)
    requests = [
        Request("a", range(10, 24), tokens(9)),
        Request("b", shared, stops),
        Request("c", [*shared, *range(90, 100)], tokens(4), arrival_time=1 * MILLISECOND),
    ]
    config = SchedulerConfig(max_running_requests=2, chunked_prefill_size=10, context_len=64)
    return Recipe("mini_overlap", requests, config)


def lazy_chain() -> Recipe:
    """A chain of three that a finish breaks (a), then an arrival (d), then the ends of all."""
    requests = [
        Request("a", range(6), tokens(5)),
        Request("b", range(10, 18), tokens(12)),
        Request("c", range(20, 24), tokens(12)),
        Request("d", range(30, 35), tokens(4), arrival_time=98 * MILLISECOND),
    ]
    return Recipe("mlx_async", requests)


# -- PD separation and what stands against it: streams that decode while long prompts come ---------

STREAMS = [Request(rid, range(at, at + 12), tokens(20)) for at, rid in enumerate("abc")]
LONG = [
    Request("long", range(20, 220), tokens(6), arrival_time=45 * MILLISECOND),
    Request("long too", range(40, 240), tokens(6), arrival_time=105 * MILLISECOND),
]


# -- The run of SGLang's worker thread, and what launching and a mask cost it ----------------------

LAUNCH, SAMPLING, MASK = (us * MICROSECOND for us in (500, 200, 1500))  # sampling is part of launch


def cost_of(loop: str, has_masks: bool = False, fast: int = 1) -> CostModel:
    """The usual costs, the device's divided by ``fast``.

    Where sampling is launched by itself, it takes its part of the launch.
    """
    is_split = has_masks or loop == "overlap_thread"
    launch = LAUNCH - SAMPLING if is_split else LAUNCH
    host = {**SIM_COST.host, "launch": launch, "launch sample": SAMPLING, "mask": MASK}
    forward, per_token = SIM_COST.forward_base // fast, SIM_COST.forward_per_token // fast
    return CostModel(host, forward, per_token, SIM_COST.sample // fast, SIM_COST.copy)


# -- The runs of vLLM's step functions, its pipelines and its relay --------------------------------

STAGES = 4
SPLIT = {**SIM_COST.host, "launch": 300 * MICROSECOND, "launch sample": 200 * MICROSECOND}
COST = replace(SIM_COST, host=SPLIT)  # a launch in its two halves: execute_model, sample_tokens


def vllm_batch_queue() -> Recipe:
    """Async scheduling off: two prompts that fill a step each, so that two batches take turns.

    A third request (c) comes later and joins one of them.
    """
    requests = [
        Request("a", range(10, 26), tokens(14)),
        Request("b", range(40, 56), tokens(14)),
        Request("c", range(70, 78), tokens(8), arrival_time=90 * MILLISECOND),
    ]
    config = SchedulerConfig(chunked_prefill_size=16)
    return Recipe("vllm_batch_queue", requests, config, cost=COST)


def vllm_pp() -> Recipe:
    """Four stages. One request goes round alone; from 90 ms on there is one for every stage."""
    alone = Request("a", range(12), tokens(7))
    others = [
        Request(rid, range(20 * at, 20 * at + 12), tokens(4), arrival_time=(90 + at) * MILLISECOND)
        for at, rid in enumerate("bcd", 1)
    ]
    config = SchedulerConfig(chunked_prefill_size=12)
    large = replace(COST, forward_base=STAGES * SIM_COST.forward_base)
    return Recipe(f"vllm_pp{STAGES}", [alone, *others], config, cost=large)


def prev_sampled() -> Recipe:
    """Every path: prompts from the CPU, slices while nothing changes, a scatter where rows move.

    ``b`` ends first, so that ``c`` moves up; ``d`` comes when the others run.
    """
    requests = [
        Request("a", range(10, 16), tokens(9)),
        Request("b", range(30, 36), tokens(4)),
        Request("c", range(50, 56), tokens(7)),
        Request("d", range(70, 74), tokens(4), arrival_time=55 * MILLISECOND),
    ]
    return Recipe("vllm_async", requests, SchedulerConfig(kv_tokens=128), "prev_sampled", cost=COST)


# -- All of them -----------------------------------------------------------------------------------

USUAL = ("serial", "overlap", "mlx_async", "mini_normal", "mini_overlap", "mindie_plugin",
         "mindie_dual", "mindie_single", "multi_step")  # fmt: skip

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
    "generation_batch_result": generation_batch_result(),
    "grammar_manager": grammar_manager(),
    "placeholder_fill": placeholder_fill(),
    "token_pool": token_pool(),
    "lazy_chain": lazy_chain(),
    "prev_sampled": prev_sampled(),
    **{loop: a_bit_of_everything(loop) for loop in USUAL},
    "mindie_placeholder": mindie_placeholder(),
    "overlap_thread": replace(
        a_bit_of_everything("overlap_thread"), cost=cost_of("overlap_thread")
    ),
    "vllm_step": replace(a_bit_of_everything("vllm_step"), cost=COST),
    "vllm_batch_queue": vllm_batch_queue(),
    "vllm_pp": vllm_pp(),
    "pd": Recipe("pd", STREAMS + LONG),
}


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic, made once: several pictures may show it."""
    return RECIPES[topic].run()
