"""The cases of the lockstep: random workloads of ``checks/draw.py``, on the scale of an original.

``PARTS`` contains the parts of each original's cases. They are drawn here, in our process, and
handed to the original as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from random import Random
from typing import Any

from ..checks.case import Workload
from ..checks.draw import Letters, Scale, at_level, draw
from ..checks.oracle import tokens_alone
from ..core import Request
from ..scheduler import SchedulerConfig
from . import mini_sglang, vllm
from .case import EOS, Arrival, FidelityCase

FIRST = EOS + 1  # a case has our tokens, raised by this: no other token is ``EOS``
LETTERS = Letters(48, (frozenset(),), (frozenset({0}), frozenset(range(3)), frozenset(range(6))))
OFTEN_LONG = replace(LETTERS, eos=(frozenset(), frozenset({0})))
LONGEST = {1: 8, 4: 8, 16: 8, 64: 3}  # by size of a page, pages of a part of a prompt
CONTEXT_LEN = 4096  # positions of mini-sglang's page table
DRAWN = (
    "page_size", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "kv_tokens",
    "random_seed",
)  # fmt: skip
NOT_DRAWN = {
    item.name: getattr(SchedulerConfig(), item.name)
    for item in fields(SchedulerConfig)
    if item.name not in DRAWN
}
"""The settings that every case has by default: an original may have no other value of them."""

TURNS = (0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 6, 6, 6, 7, 12, 12, 12, 20)  # requests often come together
SPARE_PAGES = {
    "roomy": (600,),
    "tight": (2, 6, 8, 12, 16, 24, 32),
    "exact": (0, 0, 1, 2, 3, 4, 6, 8, 12),
    "short": (2, 3, 4, 8, 12, 20),
}
"""By the name of a memory, its pages besides those of the longest request: enough for all together,
not for all, perhaps for one alone, and so few that running requests are retracted."""


@dataclass(frozen=True)
class Shape:
    """The common properties of a part's cases; all other properties are drawn."""

    loop: str = "serial"
    pages: tuple[int, ...] = (1,)  # sizes, of which one is drawn
    memory: str = "roomy"  # of ``SPARE_PAGES``
    chunks: bool = True
    unified: bool = False  # a drawn number of tokens for each step; there is no other limit
    shared: bool = True  # prompts have common beginnings
    conversations: bool = False  # many prompts continue another request's answer
    priorities: bool = False
    queue: int = 0  # requests that come in the first turn, besides a few; 0: only a few
    ignore_eos: float = 0.3  # share of the requests
    more: Mapping[str, Any] = field(default_factory=dict)  # settings as they are

    def draw(self, seed: str) -> FidelityCase:
        """Return the case of a seed. Its tokens are those of the hash model."""
        rng = Random(seed)
        drawn = draw(0, odd=False, rng=rng, scale=self.scale(rng.choice(self.pages)))
        workload = at_level(drawn.workload, "tight")
        config = workload.config
        if self.unified:  # a step has a token for each running request
            most = max(config.max_prefill_tokens, config.max_running_requests)
            config = replace(config, max_prefill_tokens=most)
        come = zip(workload.requests, workload.arrivals, strict=True)
        arrivals = [arrival_of(workload, req, turn) for req, turn in come]
        return FidelityCase(self.loop, config, tuple(sorted(arrivals, key=lambda it: it.turn)))

    def scale(self, page: int) -> Scale:
        """Return the values to draw from, with pages of one size."""
        is_short = self.memory == "short"
        whole = LONGEST[page]  # pages
        answers = range(20, 60) if is_short else range(1, 4) if self.queue else range(1, 31)
        budgets = (
            3,
            5,
            9,
            17,
            23,
            4 * page,
            10 * page + 3,
            200,
            4096,
            4096,
        )  # of tokens for a step
        ratio = {"schedule_conservativeness": 0.05} if is_short else {}
        return Scale(
            themes=("any", "conversation") if self.conversations else ("any",),
            letters=OFTEN_LONG if is_short else LETTERS,
            wishes=("none",),
            num_requests=range(self.queue + (4 if is_short else 2), self.queue + 10),
            arrivals=(*[0] * self.queue, *TURNS),
            beginnings=beginnings(whole * page) if self.shared else ((),),
            prompt_lens=range(1, whole * page),
            answer_lens=answers,
            ignore_eos_share=0 if is_short else self.ignore_eos,  # all their memory is reserved
            priorities=(0, 5, 20, 40) if self.priorities else (0,),
            page_sizes=(page,),
            chunks=(-1,) if self.unified or not self.chunks else (whole // 2, whole, 2 * whole),
            max_running_requests=(2, 4, 16),
            max_prefill_tokens=budgets if self.unified else (16384, 16384, 24 * page),
            spare_pages=(4000,) if self.queue else SPARE_PAGES[self.memory],
            refused_share=0,
            search_share=0,
            context_len=CONTEXT_LEN,
            settings={**NOT_DRAWN, **ratio, **self.more},
        )


def beginnings(most: int) -> list[tuple[int, ...]]:
    """Return none, one or two of four texts, equally often; two of them begin alike."""
    text = [(7 * at + at * at // 3) % 48 for at in range(most)]
    parts = [text[: most // 4], text[: most // 2 + 1], text[5:][: most // 3], text[1:]]
    one, two = [tuple(part) for part in parts], [(*a, *b) for a, b in product(parts, parts)]
    return [*[()] * len(two), *one * (len(two) // len(one)), *two]


def arrival_of(workload: Workload, req: Request, turn: int) -> Arrival:
    """Return a request of a workload with the tokens that the hash model gives it."""
    tokens, most = tokens_alone(workload, req), req.params.max_new_tokens
    outputs = [token + FIRST for token in tokens]
    if len(outputs) < most:
        outputs[-1] = EOS
    prompt, ignores = tuple(token + FIRST for token in req.prompt), req.params.ignore_eos
    return Arrival(req.rid, turn, prompt, tuple(outputs), most, ignores, req.priority)


# -- The parts of each original --------------------------------------------------------------------

SIZES = [(n,) for n in (4, 16, 64)]
MIXED, NO_CACHE = {"enable_mixed_chunk": True}, {"disable_radix_cache": True}
ORDER = {
    name: {"schedule_policy": name} for name in ("lpm", "dfs-weight", "lof", "random", "priority")
}
SGLANG = {
    "serial": Shape(),
    "serial, tight": Shape(memory="tight"),
    **{f"serial, page {n[0]}": Shape(pages=n) for n in SIZES},
    **{f"serial, tight, page {n[0]}": Shape(pages=n, memory="tight") for n in SIZES},
    "serial, exact": Shape(memory="exact"),
    "serial, exact, page 4": Shape(pages=(4,), memory="exact"),
    "serial, no chunks": Shape(chunks=False),
    "serial, ignore_eos": Shape(memory="tight", ignore_eos=1.0),
    "serial, no ignore_eos": Shape(memory="tight", ignore_eos=0.0),
    "conversations": Shape(memory="tight", conversations=True),
    "conversations, page 4": Shape(pages=(4,), memory="tight", conversations=True),
    "overlap": Shape("overlap"),
    "overlap, tight": Shape("overlap", memory="tight"),
    "overlap, tight, page 16": Shape("overlap", (16,), memory="tight"),
    "overlap, no chunks": Shape("overlap", chunks=False),
    "overlap, conversations": Shape("overlap", memory="tight", conversations=True),
    "mixed": Shape(more=MIXED),
    "mixed, tight, page 4": Shape(pages=(4,), memory="tight", more=MIXED),
    "mixed, overlap": Shape("mixed", more=MIXED),
    "priorities": Shape(priorities=True, more=ORDER["priority"]),
    "priorities, tight": Shape(memory="tight", priorities=True, more=ORDER["priority"]),
    **{f"order {name}": Shape(more=ORDER[name]) for name in ORDER if name != "priority"},
    "order lpm, long queue": Shape(pages=(4,), queue=125, more=ORDER["lpm"]),
    "order dfs-weight, long queue": Shape(pages=(4,), queue=125, more=ORDER["dfs-weight"]),
    "order lpm, tight, page 64": Shape(pages=(64,), memory="tight", more=ORDER["lpm"]),
    "no radix cache, tight": Shape(memory="tight", ignore_eos=0.0, more=NO_CACHE),
    "no radix cache, overlap": Shape("overlap", ignore_eos=0.0, more=NO_CACHE),
    "evict lfu, tight": Shape(memory="tight", more={"radix_eviction_policy": "lfu"}),
    "evict fifo, tight": Shape(memory="tight", more={"radix_eviction_policy": "fifo"}),
    "retraction": Shape(memory="short"),
    "retraction, page 4": Shape(pages=(4,), memory="short"),
    "retraction, mixed": Shape(memory="short", more=MIXED),
    "retraction, lpm": Shape(memory="short", more=ORDER["lpm"]),
    "retraction, no radix cache": Shape(memory="short", more=NO_CACHE),
    "retraction, overlap": Shape("overlap", memory="short"),
}
LARGE = {"max_prefill_tokens": 16384}
MINI_SGLANG = {
    f"{loop}, {cache}, {memory}{f', page {page}' if page > 1 else ''}": Shape(
        name, (page,), "exact" if memory == "tight" else memory,
        more={**LARGE, "disable_radix_cache": cache == "naive"},
    )
    for loop, name in mini_sglang.LOOPS.items()
    for cache in ("radix", "naive")
    for memory in ("roomy", "tight")
    for page in (1, 4, 16)
} | {
    "normal, no chunks": Shape("mini_normal", chunks=False, more=LARGE),
    "normal, conversations": Shape("mini_normal", memory="exact", conversations=True, more=LARGE),
}  # fmt: skip
VLLM = {
    f"{loop}, {cache}, {memory}": Shape(
        name, (1, 4, 16), "exact" if memory == "tight" else memory, unified=True,
        more={"disable_radix_cache": cache == "plain"},
    )
    for loop, name in vllm.LOOPS.items()
    for cache in ("plain", "cache")
    for memory in ("roomy", "tight")
} | {
    f"{loop}, conversations": Shape(
        name, (1, 4, 16), "exact", unified=True, conversations=True
    )
    for loop, name in vllm.LOOPS.items()
}  # fmt: skip
ROWS = {**LARGE, "max_running_requests": 16}
NANO_VLLM = {
    f"{what}, {memory}, page {n[0]}": Shape(
        pages=n, memory="exact" if memory == "tight" else memory, shared=what != "no prefixes",
        chunks=what == "chunks", conversations=what == "conversations", more=ROWS,
    )
    for what in ("prefixes", "no prefixes", "chunks", "conversations")
    for memory in ("roomy", "tight")
    for n in SIZES  # with pages of 1 it never appends one
}  # fmt: skip
PARTS: Mapping[str, Mapping[str, Shape]] = {
    "sglang": SGLANG, "mini-sglang": MINI_SGLANG, "vllm": VLLM, "nano-vllm": NANO_VLLM,
}  # fmt: skip
