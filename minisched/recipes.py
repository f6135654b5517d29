"""The golden runs, by topic: small workloads on the simulated device, one idea each.

Golden traces and diagrams are drawn from them, and the same code gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from .core import Request, SamplingParams
from .devices.base import Device
from .devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from .devices.registry import open_device
from .loops.run import Run, fresh, run_loop
from .models.hash import HashModel
from .scheduler import SchedulerConfig
from .trace import Trace
from .trace.cells import spans_of


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
        """Run the recipe on ``device``, by default ``sim``; the result is the same every time."""
        requests = [fresh(request) for request in self.requests]
        return run_loop(
            self.loop, device or open_device("sim"), self.model, requests, self.config, self.cost,
            self.relay, **self.options,
        )  # fmt: skip

    def run(self) -> Trace:
        """Return the run's trace."""
        return self.play().trace


def tokens(count: int) -> SamplingParams:
    """Return the parameters of exactly ``count`` greedy tokens."""
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


NO_RULES: Mapping[str, str] = {}
ASKED = re.compile(r"(.+?)(?: at (\d+))?: ([\d -]+) -> (up to )?(\d+)(?:, stops at (\d+))?")


def asked(line: str, rules: Mapping[str, str] = NO_RULES) -> list[Request]:
    """Make requests from a line: ``"a: 10-21 -> 16; b at 10: 1-4 20 -> up to 9, stops at 53"``.

    Request ``a`` has the tokens 10 to 21 as its prompt, and gets 16 tokens. ``b`` arrives after 10
    ms. It may end sooner, by end of text or by its stop token. ``rules`` are regexes that tokens
    follow.
    """
    requests = []
    for part in line.split("; "):
        found = ASKED.fullmatch(part)
        assert found, f"{part!r} is no request"
        rid, at, prompt, may_end, count, stop = found.groups()
        params = SamplingParams(
            max_new_tokens=int(count), ignore_eos=not (may_end or stop), regex=rules.get(rid),
            stop_token_ids=frozenset({int(stop)} if stop else ()),
        )  # fmt: skip
        ids = [token for first, last in spans_of(prompt) for token in range(first, last + 1)]
        requests.append(Request(rid, ids, params, arrival_time=int(at or 0) * MILLISECOND))
    return requests


def a_bit_of_everything(loop: str, relay: str = "", **options: Any) -> Recipe:
    """Return five requests that compare loops.

    They have prompts in chunks, greedy and sampled tokens (b, d), one request that stops early (c),
    and one that arrives while the others run (e).
    """
    requests = asked(
        "a: 10-21 -> 28; b: 30-59 -> 28; c: 40-69 -> up to 28; d: 70-84 -> 28; "
        "e at 20: 90-109 -> 28"
    )
    for request in (requests[1], requests[3]):
        request.params = replace(request.params, temperature=0.8)
    return Recipe(loop, requests, SchedulerConfig(chunked_prefill_size=48), relay, options)


@cache
def run_of(loop: str) -> Trace:
    """Run one loop on the common workload of five requests."""
    return a_bit_of_everything(loop).run()


# -- Other costs than the usual ones ---------------------------------------------------------------

SPLIT = replace(  # vLLM's halves: execute_model, sample_tokens
    SIM_COST,
    host={**SIM_COST.host, "launch": 300 * MICROSECOND, "launch sample": 200 * MICROSECOND},
)
FAST = replace(  # short steps while no prompt arrives: the host is the slower one
    SIM_COST, forward_base=2 * MILLISECOND, forward_per_token=120 * MICROSECOND,
    sample=MILLISECOND, copy=3 * MILLISECOND // 2,
)  # fmt: skip
STAGES = 4


# -- The golden runs -------------------------------------------------------------------------------


def recipe(
    loop: str, line: str, cost: CostModel = SIM_COST, rules: Mapping[str, str] = NO_RULES,
    **settings: Any,
) -> Recipe:  # fmt: skip
    """Return a line of requests on ``LOOP`` or ``LOOP:RELAY``, with the scheduler's settings."""
    name, _, relay = loop.partition(":")
    return Recipe(name, asked(line, rules), SchedulerConfig(**settings), relay, cost=cost)


RECIPES = {
    # ABC, then AFG, which splits it at A; X, which evicts a part; and ABC's question again
    "radix_cache": recipe(
        "overlap",
        "abc: 1-9 -> 6; afg at 20: 1-4 20-22 30-31 -> 6; x at 150: 100-111 -> 5; "
        "abd at 230: 1-7 40-41 -> 4",
        kv_tokens=36,
    ),
    # 16 pages for four requests: c is retracted for a and b, and d gets pages of all three
    "page_allocator": recipe(
        "overlap",
        "a: 10-21 -> up to 16; b at 10: 30-41 -> up to 24; c at 60: 10-21 50-52 -> up to 12; "
        "d at 180: 60-79 -> up to 8",
        kv_tokens=64, page_size=4, max_running_requests=3, schedule_conservativeness=0.0,
    ),
    # longest prefix match: questions on a cached document overtake earlier ones
    "schedule_policy": recipe(
        "overlap",
        "doc: 1-39 -> 3; other at 5: 100-119 -> 3; doc-q1 at 6: 1-37 90-91 -> 3; "
        "new at 7: 200-229 -> 3; doc-q2 at 8: 1-37 92-93 -> 3",
        schedule_policy="lpm", max_running_requests=2, chunked_prefill_size=40, kv_tokens=256,
    ),
    # a long prompt in chunks, two short ones that wait for it, and one that hits its cache
    "prefill": recipe(
        "overlap",
        "long: 0-99 -> 4; short: 200-207 -> 4; late: 20-39 -> 4; again at 60: 0-103 -> 4",
        chunked_prefill_size=32, kv_tokens=132,
    ),
    # three requests in a pool for two: one is retracted, waits, and starts again
    "decode": recipe(
        "overlap",
        "a: 0-7 -> up to 12; b at 10: 20-27 -> up to 12; c at 20: 40-47 -> up to 12",
        kv_tokens=44, schedule_conservativeness=0.0,
    ),
    # three requests in a pool for one and a half: memory runs out more than once
    "retraction": recipe(
        "overlap",
        "a: 0-11 -> up to 40; b at 10: 20-31 -> up to 40; c at 20: 40-51 -> up to 16",
        kv_tokens=70, schedule_conservativeness=0.1,
    ),
    # a long prompt in chunks, and two requests that decode
    "mixed_chunk": recipe(
        "overlap",
        "a: 0-9 -> 14; b: 20-33 -> 12; long at 30: 50-149 -> 6; c at 60: 160-169 -> 6",
        chunked_prefill_size=24, enable_mixed_chunk=True,
    ),
    # one budget for two that decode, a long prompt and a late one, until memory runs out
    "unified": recipe(
        "vllm_async",
        "a: 0-9 -> 12; b: 20-33 -> 12; long at 20: 50-99 -> 6; c at 50: 160-169 -> 8",
        chunked_prefill_size=24, kv_tokens=100,
    ),
    # a ring for two requests, lapped every third step
    "future_map": recipe(
        "overlap:ring", "a: 0-4 -> 10; b: 1-5 -> 10; c: 2-6 -> 10", max_running_requests=2
    ),
    # long prompts, for which the host waits, and short decodes with results that are ready
    "generation_batch_result": recipe(
        "mini_overlap", "a: 10-79 -> 7; b at 30: 100-139 -> 4", FAST, kv_tokens=256
    ),
    # two that follow a rule and one that is free; masks take as long as a short step. a ends with
    # the only token that its rule allows in the end, b with an end-of-text token
    "grammar_manager": recipe(
        "overlap",
        "a: 10-15 -> up to 10; b: 11-16 -> up to 10; c: 40-45 -> 9",
        replace(
            SIM_COST, host={**SIM_COST.host, "mask": 3 * MILLISECOND}, forward_base=4 * MILLISECOND
        ),
        {"a": r"(yes|no), [a-z]{2}[.]", "b": "[0-9]+"},
    ),
    # two requests of three beams each; both prompts begin with the same page
    "beam_search": recipe(
        "overlap", "a: 10-17 -> 7; b at 20: 10-13 30-33 -> 6",
        page_size=4, max_running_requests=2, kv_tokens=64, beam_width=3,
    ),
    # three that decode and one that comes later (d): its prompt has no hits, and breaks theirs.
    # Rows move up at each end: a at its length, b at a stop token (its sixth). An end
    # leaves a surplus row, but not b's: the step in flight is d's prompt
    "placeholder_fill": recipe(
        "mindie_plugin",
        "a: 10-15 -> 4; b: 30-35 -> 9, stops at 53; c: 50-55 -> 10; d at 60: 70-77 -> 6",
        kv_tokens=128,
    ),
    # two rows: a prompt in chunks (a), a stop token (b, its fourth), and the next owner of b's row
    # (c). It begins as b did, so a part of its prompt is copied and never gathered
    "token_pool": recipe(
        "mini_overlap",
        "a: 10-23 -> 9; b: 50-55 -> 12, stops at 99; c at 1: 50-55 90-99 -> 4",
        max_running_requests=2, chunked_prefill_size=10, context_len=64,
    ),
    # a chain of three that a finish breaks (a), then an arrival (d), then the ends of all
    "lazy_chain": recipe(
        "mlx_async", "a: 0-5 -> 5; b: 10-17 -> 12; c: 20-23 -> 12; d at 98: 30-34 -> 4"
    ),
    # every path: prompts from the CPU, slices while nothing changes, a scatter where rows move: b
    # ends first, so c moves up; d arrives while the others run
    "prev_sampled": recipe(
        "vllm_async:prev_sampled",
        "a: 10-15 -> 9; b: 30-35 -> 4; c: 50-55 -> 7; d at 55: 70-73 -> 4",
        SPLIT,
        kv_tokens=128,
    ),
    # a long prompt in chunks (a), a slot that is used again (b's by d), and rows that move up while
    # slots stay
    "request_state": recipe(
        "vllm_async:request_state",
        "a: 10-25 -> 9; b: 30-35 -> 4; c: 50-55 -> 7; d at 55: 70-73 -> 4",
        SPLIT,
        kv_tokens=128, chunked_prefill_size=12,
    ),
    **{
        loop: a_bit_of_everything(loop)
        for loop in (
            "serial", "overlap", "mlx_async", "mini_normal", "mini_overlap", "mindie_plugin",
            "mindie_dual", "mindie_single", "multi_step",
        )
    },
    # three of different lengths; a prompt in chunks has no placeholder before its last one (a)
    "mindie_placeholder": recipe(
        "mindie_placeholder",
        "a: 10-29 -> 14; b: 40-45 -> 9; c at 45: 60-63 -> 12",
        chunked_prefill_size=12, kv_tokens=256,
    ),
    "overlap_thread": replace(a_bit_of_everything("overlap_thread"), cost=SPLIT),
    # each step's sampling is launched by itself, once the tokens of the step before have come
    "trtllm_overlap": replace(a_bit_of_everything("trtllm_overlap"), cost=SPLIT),
    # four that decode; a token costs the device as much as the weights, so two halves are faster
    "two_batch": recipe(
        "two_batch", "a: 0-7 -> 8; b: 10-17 -> 8; c: 20-27 -> 8; d: 30-37 -> 8",
        replace(SIM_COST, forward_base=4 * MILLISECOND, forward_per_token=4 * MILLISECOND),
    ),
    "vllm_step": replace(a_bit_of_everything("vllm_step"), cost=SPLIT),
    # async scheduling off: two prompts that fill a step each, so that two batches take turns; a
    # third request (c) arrives later and joins one of them
    "vllm_batch_queue": recipe(
        "vllm_batch_queue",
        "a: 10-25 -> 14; b: 40-55 -> 14; c at 90: 70-77 -> 8",
        SPLIT,
        chunked_prefill_size=16,
    ),
    # four stages. One request goes round alone; from 90 ms on there is one for every stage
    "vllm_pp": recipe(
        f"vllm_pp{STAGES}",
        "a: 0-11 -> 7; b at 91: 20-31 -> 4; c at 92: 40-51 -> 4; d at 93: 60-71 -> 4",
        replace(SPLIT, forward_base=STAGES * SIM_COST.forward_base),
        chunked_prefill_size=12,
    ),
    # streams that decode while long prompts come
    "pd": recipe(
        "pd",
        "a: 0-11 -> 20; b: 1-12 -> 20; c: 2-13 -> 20; d at 45: 20-219 -> 6; "
        "e at 105: 40-239 -> 6",
    ),
}  # fmt: skip


@cache
def trace_of(topic: str) -> Trace:
    """Return the golden run of a topic, made once, because several pictures may show it."""
    return RECIPES[topic].run()
