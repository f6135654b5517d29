"""The runs of MindIE's layers, alone and together, and of placeholder fill."""

from __future__ import annotations

from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND
from ...scheduler import SchedulerConfig
from .recipe import Recipe, a_bit_of_everything, tokens

B_STOPS_AT = 53  # the sixth token that the hash model gives it


def placeholder_fill() -> Recipe:
    """Three that decode and one that comes later (d): its prompt has no hits, and breaks theirs.

    Rows move up where somebody ends: ``a`` at its length, ``b`` at a stop token. An end leaves a
    surplus row, but not ``b``'s: the step that is on its way is d's prompt.
    """
    stops = SamplingParams(max_new_tokens=9, stop_token_ids=frozenset({B_STOPS_AT}))
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


TITLES = {
    "mindie_plugin": "mindie_plugin: a thread launches, and answers come one call late",
    "mindie_placeholder": "mindie_placeholder: one call at a time, a placeholder for its token",
    "mindie_dual": "mindie_dual: a C++ scheduler that waits over a plugin that runs ahead",
    "mindie_single": "mindie_single: both layers as one pipeline",
}
RECIPES = {
    "placeholder_fill": placeholder_fill(),
    "mindie_placeholder": mindie_placeholder(),
    **{loop: a_bit_of_everything(loop) for loop in TITLES if loop != "mindie_placeholder"},
}
