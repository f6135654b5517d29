"""The runs of mini-sglang's two loops and of the token pool."""

from __future__ import annotations

from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND
from ...scheduler import SchedulerConfig
from .recipe import Recipe, a_bit_of_everything, tokens

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


RECIPES = {
    "token_pool": token_pool(),
    **{loop: a_bit_of_everything(loop) for loop in ("mini_normal", "mini_overlap")},
}
