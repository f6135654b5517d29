"""What a scheduler is measured with, ours or another: requests that decode, and a tree of prompts.

There is no device: it answers at once. Python's garbage collector stays on while steps are timed,
as it does in a server; it runs once before, so that nobody pays for what the setting up has left.
"""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Protocol

from ..core import Request, Result, SamplingParams, ScheduleBatch
from ..memory.radix_cache import RadixCache
from ..scheduler import Scheduler, SchedulerConfig
from .peers.peer import Answer, serve

# -- Requests that decode, on any scheduler --------------------------------------------------------

PAGE = 256  # tokens; nano-vllm allows no other
NEW_TOKENS = 250  # of each request that runs: none ends while it is timed
PREFILL_TOKENS = 16384  # prompt tokens of one step: the default of nano-vllm and of SGLang
ANY_TOKEN = 7
VOCABULARY = 1 << 20  # a prompt's first token is its number, so that no two share a prefix


@dataclass(frozen=True)
class HostWorkload:
    """Requests of one prompt length that decode, behind a history and before a queue."""

    running: int = 256
    waiting: int = 0
    prompt_len: int = 384  # 384 + 128 fill a page: every request begins one while it is timed
    head_len: int = 384  # the prompt of the first that waits; those behind it wait for it
    spare_pages: int = 0  # beyond what the running requests will need
    spare_rows: int = 0  # requests that could run beside them, as far as rows go
    finished: int = 0  # requests that came and went before
    distinct: int = 1  # prompts of those, before they begin again
    page_size: int = PAGE

    @property
    def num_pages(self) -> int:
        """The pool: what running requests will hold, and the page more that admission asks for."""
        pages = -(-(self.prompt_len + NEW_TOKENS) // self.page_size)
        return self.running * (pages + 1) + self.spare_pages


class HostEngine(Protocol):
    """A scheduler with a workload set up, whose device answers at once."""

    def step(self) -> int:
        """Schedule and process once; how many requests took part."""


def settle(admit: Callable[[], int], load: HostWorkload, add: Callable[[list[int]], None]) -> None:
    """Admit the requests that run, as ``admit`` does step by step; then queue those that wait."""
    numbers: Iterator[int] = count()
    for _ in range(load.running):
        add(prompt(next(numbers), load.prompt_len))
    admitted = 0
    while admitted < load.running:
        admitted += admit()
    for place in range(load.waiting):
        add(prompt(next(numbers), load.prompt_len if place else load.head_len))


def prompt(number: int, length: int) -> list[int]:
    """A prompt that differs from all others in its first token."""
    return [number % VOCABULARY] + [ANY_TOKEN] * (length - 1)


@cache
def result_of(num_reqs: int) -> Result:
    """What a device that answers at once would sample."""
    return Result([ANY_TOKEN] * num_reqs)


def timed(engine: HostEngine, warm_up: int, steps: int) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together."""
    for _ in range(warm_up):
        engine.step()
    gc.collect()
    rows = 0
    start = time.perf_counter_ns()
    for _ in range(steps):
        rows += engine.step()
    return (time.perf_counter_ns() - start) / 1000, rows


def answer_with(engine_of: Callable[[HostWorkload], HostEngine], question: Answer) -> Answer:
    """To ``{"load", "warm_up", "steps"}`` the microseconds and rows of all steps, for a peer."""
    engine = engine_of(HostWorkload(**question["load"]))
    taken, rows = timed(engine, question["warm_up"], question["steps"])
    return {"us": taken, "rows": rows}


class Minisched:
    """``next_batch`` and ``process`` in turn, as the loop ``serial`` calls them."""

    def __init__(self, load: HostWorkload, run_ahead: bool = False) -> None:
        config = SchedulerConfig(
            kv_tokens=load.num_pages * load.page_size, page_size=load.page_size,
            max_running_requests=load.running + load.spare_rows,
            chunked_prefill_size=-1, max_prefill_tokens=PREFILL_TOKENS,
            context_len=load.num_pages * load.page_size, vocab_size=VOCABULARY, run_ahead=run_ahead,
        )  # fmt: skip
        self.scheduler = Scheduler(config)
        self.numbers = count()
        for number in range(load.finished):
            self.add(prompt(-1 - number % load.distinct, PAGE + 1), 1)
        while self.scheduler.live:
            self.step()
        settle(self.step, load, partial(self.add, max_new_tokens=NEW_TOKENS))

    def add(self, tokens: list[int], max_new_tokens: int) -> None:
        """Receive one request."""
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        self.scheduler.receive([Request(f"r{next(self.numbers)}", tokens, params)])

    def step(self) -> int:
        """One turn of a loop."""
        batch = self.scheduler.next_batch()
        assert batch, "somebody can always run"
        self.scheduler.process(batch, result_of(len(batch.reqs)))
        return len(batch.reqs)


class RunAhead(Minisched):
    """The order of the loop ``overlap``: a step is scheduled before the one before is processed."""

    def __init__(self, load: HostWorkload) -> None:
        self.last: ScheduleBatch | None = None
        super().__init__(load, run_ahead=True)

    def step(self) -> int:
        """One turn of a loop."""
        batch, last = self.scheduler.next_batch(), self.last
        if last:
            self.scheduler.process(last, result_of(len(last.reqs)))
        self.last = batch or None
        return len(batch.reqs) if batch else 0


# -- The prompts that a tree is filled with, and those that are then looked for in it --------------

SHARED, OWN = 256, 768  # tokens of a prompt: one of a few beginnings, and what is its own
BEGINNINGS = 8
MATCHES, INSERTIONS = 32, 8  # timed calls; the tree grows by that many prompts meanwhile
VOCAB_SIZE = 50_000


@cache
def prompts(num_tokens: int) -> list[list[int]]:
    """Prompts that together make a tree of about so many tokens.

    There are two at least, which share their beginning: so a match passes two nodes in any tree.
    """
    draw = random.Random(num_tokens)
    return [
        beginnings()[number // 2 % BEGINNINGS] + draw.choices(range(VOCAB_SIZE), k=OWN)
        for number in range(max(2, num_tokens // OWN))
    ]


@cache
def beginnings() -> list[list[int]]:
    """What prompts share, as system prompts are shared."""
    draw = random.Random(0)
    return [draw.choices(range(VOCAB_SIZE), k=SHARED) for _ in range(BEGINNINGS)]


def cached_prompts(num_tokens: int, spread: bool) -> list[list[int]]:
    """One prompt of the tree again and again, or ``spread`` prompts from all over it.

    They are new integers: those of a client are never the tree's.
    """
    known = prompts(num_tokens)
    picked = (known[spread * number * len(known) // MATCHES] for number in range(MATCHES))
    return [array("i", tokens).tolist() for tokens in picked]


def new_prompts() -> list[list[int]]:
    """Prompts of which the tree has the beginning only."""
    draw = random.Random(1)
    own = (draw.choices(range(VOCAB_SIZE), k=OWN) for _ in range(INSERTIONS))
    return [array("i", [*beginnings()[0], *tokens]).tolist() for tokens in own]


def microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """The mean time of a call; the garbage collector stays on, as it does in a server."""
    gc.collect()
    start = time.perf_counter_ns()
    for argument in arguments:
        call(argument)
    return (time.perf_counter_ns() - start) / len(arguments) / 1000


def match_us(page_size: int, num_tokens: int, spread: bool) -> float:
    """Find the pages of a cached prompt, lock them and let them go."""
    tree = our_tree(page_size, num_tokens)

    def find(tokens: list[int]) -> None:
        node = tree.match_prefix(tokens).node
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(node)

    return microseconds(find, cached_prompts(num_tokens, spread))


def insert_us(page_size: int, num_tokens: int) -> float:
    """Give the tree the pages of a prompt whose beginning it has."""
    tree = our_tree(page_size, num_tokens)
    first, each = tree.total_size, (SHARED + OWN) // page_size
    offers = [
        (tokens, range(first + number * each, first + (number + 1) * each))
        for number, tokens in enumerate(new_prompts())
    ]
    return microseconds(lambda offer: tree.insert(*offer), offers)


def our_tree(page_size: int, num_tokens: int) -> RadixCache:
    """A tree of about so many tokens."""
    tree = RadixCache(page_size)
    for tokens in prompts(num_tokens):
        first = tree.total_size
        tree.insert(tokens, range(first, first + len(tokens) // page_size))
    return tree


def answer(question: Answer) -> Answer:
    """As one of those that are measured: the time of a match, of an insertion, or of steps."""
    if "match" in question:
        return {"us": match_us(question["page"], question["match"], question["spread"])}
    if "insert" in question:
        return {"us": insert_us(question["page"], question["insert"])}
    return answer_with(RunAhead if question["ahead"] else Minisched, question)


if __name__ == "__main__":
    serve(lambda settings: answer)
