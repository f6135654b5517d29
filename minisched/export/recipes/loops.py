"""The runs of the three loops that the others are measured against."""

from __future__ import annotations

from dataclasses import replace

from ...core import Request, SamplingParams
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ...scheduler import SchedulerConfig
from .recipe import Recipe, a_bit_of_everything, tokens

# -- The runs of what goes to and fro: tokens to the host, and masks of grammars to the device -----

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


RECIPES: dict[str, Recipe] = {
    "generation_batch_result": generation_batch_result(),
    "grammar_manager": grammar_manager(),
}


COMMON = ("serial", "overlap", "mlx_async")
RECIPES |= {loop: a_bit_of_everything(loop) for loop in COMMON}


# -- The runs of MindIE's layers, alone and together, and of placeholder fill ----------------------

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


def mindie_placeholder(loop: str = "mindie_placeholder") -> Recipe:
    """Three of different lengths; a prompt in chunks has no placeholder before its last one (a)."""
    requests = [
        Request("a", range(10, 30), tokens(14)),
        Request("b", range(40, 46), tokens(9)),
        Request("c", range(60, 64), tokens(12), arrival_time=45 * MILLISECOND),
    ]
    return Recipe(loop, requests, SchedulerConfig(chunked_prefill_size=12, kv_tokens=256))


MINDIE = ("mindie_plugin", "mindie_dual", "mindie_single")
RECIPES |= {
    "placeholder_fill": placeholder_fill(),
    "mindie_placeholder": mindie_placeholder(),
    **{loop: a_bit_of_everything(loop) for loop in MINDIE},
}


# -- The runs of mini-sglang's two loops and of the token pool -------------------------------------

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


RECIPES |= {
    "token_pool": token_pool(),
    **{loop: a_bit_of_everything(loop) for loop in ("mini_normal", "mini_overlap")},
}


# -- The runs of the lazy chain: who feeds whom, and when the chain breaks -------------------------


def lazy_chain() -> Recipe:
    """A chain of three that a finish breaks (a), then an arrival (d), then the ends of all."""
    requests = [
        Request("a", range(6), tokens(5)),
        Request("b", range(10, 18), tokens(12)),
        Request("c", range(20, 24), tokens(12)),
        Request("d", range(30, 35), tokens(4), arrival_time=98 * MILLISECOND),
    ]
    return Recipe("mlx_async", requests)


RECIPES |= {"lazy_chain": lazy_chain()}


# -- The run of multi-step scheduling --------------------------------------------------------------

RECIPES |= {"multi_step": a_bit_of_everything("multi_step")}


# -- PD separation and what stands against it: streams that decode while long prompts come ---------

STREAMS = [Request(rid, range(at, at + 12), tokens(20)) for at, rid in enumerate("abc")]
LONG = [
    Request("long", range(20, 220), tokens(6), arrival_time=45 * MILLISECOND),
    Request("long too", range(40, 240), tokens(6), arrival_time=105 * MILLISECOND),
]
RECIPES |= {"pd": Recipe("pd", STREAMS + LONG)}


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


RECIPES |= {
    "overlap_thread": replace(a_bit_of_everything("overlap_thread"), cost=cost_of("overlap_thread"))
}


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


RECIPES |= {
    "vllm_step": replace(a_bit_of_everything("vllm_step"), cost=COST),
    "vllm_batch_queue": vllm_batch_queue(),
    "vllm_pp": vllm_pp(),
    "prev_sampled": prev_sampled(),
}
