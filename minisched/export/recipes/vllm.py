"""The runs of vLLM's step functions, its pipelines and its relay."""

from __future__ import annotations

from dataclasses import replace

from ...core import Request
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST
from ...scheduler import SchedulerConfig
from .recipe import Recipe, a_bit_of_everything, tokens

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


TITLES = {"vllm_step": "vllm_step: one step at a time, its sampling launched by itself"}
RECIPES = {
    "vllm_step": replace(a_bit_of_everything("vllm_step"), cost=COST),
    "vllm_batch_queue": vllm_batch_queue(),
    "vllm_pp": vllm_pp(),
    "prev_sampled": prev_sampled(),
}
