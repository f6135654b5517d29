"""The workload that a scheduler is measured with, ours or another: requests that decode.

There is no device: results are there immediately. Python's garbage collector stays on while steps
are timed, as in a server. It runs once before, so that no step pays for the setup.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Protocol

from ..core import NoBatch, Request, Result, SamplingParams, ScheduleBatch
from ..scheduler import Scheduler, SchedulerConfig
from .peers.peer import Answer, serve

PAGE = 256  # tokens; nano-vllm allows no other
NEW_TOKENS = 250  # of each request that runs: none ends while it is timed
PREFILL_TOKENS = 16384  # prompt tokens of one step: the default of nano-vllm and of SGLang
ANY_TOKEN = 7
VOCABULARY = 1 << 20  # a prompt's first token is its number, so that no two share a prefix


@dataclass(frozen=True)
class HostWorkload:
    """Requests of one prompt length that decode, after a history and before a queue."""

    running: int = 256
    waiting: int = 0
    prompt_len: int = 384  # 384 + 128 fill a page: every request begins one while it is timed
    head_len: int = 384  # the prompt of the first waiting request, which the others wait for
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

    @property
    def config(self) -> SchedulerConfig:
        """The sizes that every scheduler has for it; prompts are not cut."""
        return SchedulerConfig(
            kv_tokens=self.num_pages * self.page_size, page_size=self.page_size,
            max_running_requests=self.running + self.spare_rows,
            chunked_prefill_size=-1, max_prefill_tokens=PREFILL_TOKENS,
            context_len=self.num_pages * self.page_size, vocab_size=VOCABULARY,
        )  # fmt: skip


class HostEngine(Protocol):
    """A scheduler with a workload set up, and a device that answers immediately."""

    def step(self) -> int:
        """Schedule and process once; return the number of requests that took part."""


def settle(admit: Callable[[], int], load: HostWorkload, add: Callable[[list[int]], None]) -> None:
    """Admit the running requests with ``admit``, step by step; then queue the waiting ones."""
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
    """Return the tokens of a device that answers immediately."""
    return Result([ANY_TOKEN] * num_reqs)


def timed(engine: HostEngine, warm_up: int, steps: int) -> tuple[float, int]:
    """Return the microseconds of ``steps`` steps, and their rows in all."""
    for _ in range(warm_up):
        engine.step()
    gc.collect()
    rows = 0
    start = time.perf_counter_ns()
    for _ in range(steps):
        rows += engine.step()
    return (time.perf_counter_ns() - start) / 1000, rows


def answer_with(engine_of: Callable[[HostWorkload], HostEngine], question: Answer) -> Answer:
    """Answer ``{"load", "warm_up", "steps"}`` with microseconds and rows of all steps."""
    engine = engine_of(HostWorkload(**question["load"]))
    taken, rows = timed(engine, question["warm_up"], question["steps"])
    return {"us": taken, "rows": rows}


class Minisched:
    """``next_batch`` and ``process`` in turn, as the loop ``serial`` calls them.

    With ``run_ahead`` as ``overlap`` does: a step is scheduled before the one before is processed.
    """

    def __init__(self, run_ahead: bool, load: HostWorkload) -> None:
        self.run_ahead = run_ahead
        self.scheduler = Scheduler(replace(load.config, run_ahead=run_ahead))
        self.numbers = count()
        self.last: ScheduleBatch | NoBatch = NoBatch.IDLE
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
        arrived = batch = self.scheduler.next_batch()
        if self.run_ahead:
            arrived, self.last = self.last, batch
        if arrived:
            self.scheduler.process(arrived, result_of(len(arrived.reqs)))
        return len(batch.reqs) if batch else 0


def answer(question: Answer) -> Answer:
    """Measure our scheduler as the peers measure theirs."""
    return answer_with(partial(Minisched, question["ahead"]), question)


if __name__ == "__main__":
    serve(lambda settings: answer)
