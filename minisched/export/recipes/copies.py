"""The runs of what goes to and fro: tokens to the host, and masks of grammars to the device."""

from __future__ import annotations

from dataclasses import replace

from ...core import Request, SamplingParams
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST
from ...scheduler import SchedulerConfig
from .recipe import Recipe, tokens

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


RECIPES = {
    "generation_batch_result": generation_batch_result(),
    "grammar_manager": grammar_manager(),
}
