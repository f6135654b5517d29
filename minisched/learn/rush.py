"""One server through the course: the same requests, and the mean time of an answer per lesson.

A team has one server. 25 people ask within half a second: 24 questions begin with the same
instructions, every fourth of them wants an answer by a grammar, and one request is a document. The
time of an answer is the time from its question to its last token. The device is simulated, so the
figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core import NoBatch, Request, SamplingParams, ScheduleBatch
from ..devices.cost import MILLISECOND, of_milliseconds
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..loops.design import find_loop, registered
from ..loops.run import Run, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from .outputs import Table

COST = of_milliseconds(host=6, device=10, copy=1, token=0.05)
VOCAB = 128  # the letters of the grammar are tokens
ENDS = frozenset({7, 31, 90})  # end-of-text tokens: most answers end before their limit
INSTRUCTIONS = [at % 97 for at in range(200)]  # tokens that each question begins with
QUESTIONS = 24
RULE = "(a1|b2|c3){9}"
BARS = 24  # characters of the longest bar


class ServerStage(NamedTuple):
    """The server after a lesson: the change in words, its loop, and its new settings."""

    change: str
    loop: str = ""
    settings: Mapping[str, Any] = MappingProxyType({})
    waits_first: bool = True  # for a grammar, the loop processes a result before it launches


FIRST = ServerStage(
    "one request at a time, host and device take turns",
    "serial",
    {
        "max_running_requests": 1, "kv_tokens": 1800, "page_size": 4, "context_len": 1300,
        "disable_radix_cache": True, "chunked_prefill_size": -1,
    },
)  # fmt: skip
STAGES = {  # lesson -> the server after it; a lesson without a loop keeps the one before
    0: ServerStage("four requests in each step", "serial", {"max_running_requests": 4}),
    1: ServerStage("the host works while the device does", "overlap"),
    2: ServerStage("kept: no token comes from a wrong slot"),
    3: ServerStage("kept: on a Mac, lazy arrays replace streams"),
    4: ServerStage("admission counts tokens instead of four places", "overlap",
             {"max_running_requests": 16}),
    5: ServerStage("the instructions are computed once", "overlap", {"disable_radix_cache": False}),
    6: ServerStage("admission bets that answers end early", "overlap",
             {"schedule_conservativeness": 0.3}),
    7: ServerStage("answers go on in the steps of the document", "mixed",
             {"chunked_prefill_size": 512}),
    8: ServerStage("kept: a queue of four batches is for four GPUs"),
    9: ServerStage("kept: one layer is enough"),
    10: ServerStage("only the sampling waits for a grammar", "mixed", waits_first=False),
    11: ServerStage("kept: each wait that prevents a race"),
    12: ServerStage("kept: a trace finds the calls that block"),
    13: ServerStage("kept: you have written these rules"),
    14: ServerStage("kept: the change works in other engines"),
}  # fmt: skip


def requests_of_rush() -> list[Request]:
    """Return the questions, one every 20 ms, and a document of 1,200 tokens after 150 ms."""
    found = []
    for at in range(QUESTIONS):
        own = [(at * 31 + place * place) % 97 for place in range(10 + at * 7 % 20)]
        params = SamplingParams(max_new_tokens=90, regex=RULE if at % 4 == 3 else None)
        found.append(Request(f"q{at}", INSTRUCTIONS + own, params, 20 * at * MILLISECOND))
    text = [(at * at + at) % 97 for at in range(1200)]
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    return [*found, Request("document", text, params, 150 * MILLISECOND)]


def waiting_first(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """Overlap as lesson 10 begins with it: a grammar's step is launched after the last result."""
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if last and batch and engine.must_delay_sample(batch):
            engine.process_batch_result(last)
            last = None
        pending = engine.run_batch(batch) if batch else None
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        last = pending
        yield batch


def run_after(lesson: int) -> Run:
    """Run the requests on the server as it is after a lesson; -1: before the first."""
    return _run(tuple(at for at in STAGES if at <= lesson and STAGES[at].loop))


@cache
def _run(changed_by: tuple[int, ...]) -> Run:
    """Run the requests on the server with the changes of these lessons."""
    stages = [FIRST, *(STAGES[at] for at in changed_by)]
    config = SchedulerConfig(**{key: it for one in stages for key, it in one.settings.items()})
    spec = find_loop(stages[-1].loop)
    if stages[-1].loop != "serial" and stages[-1].waits_first:
        spec = replace(spec, run=waiting_first)
    with registered("server", spec):
        model = HashModel(VOCAB, eos_ids=ENDS)
        return run_loop("server", open_device("sim"), model, requests_of_rush(), config, COST)


def answer_ms(lesson: int) -> float:
    """Return the mean time from a question to the last token of its answer, in ms."""
    ended = run_after(lesson).metrics.ended
    return fmean((one.ttft_ns or 0) + sum(one.itls) for one in ended) / MILLISECOND


def rush(lesson: int) -> Table:
    """Return the time of an answer before the course and after each lesson up to ``lesson``.

    Raises:
        ValueError: there is no such lesson.
    """
    if lesson not in STAGES:
        raise ValueError(f"lesson is {lesson}, but it must be a number from 0 to {max(STAGES)}.")
    first, rows = answer_ms(-1), []
    for at in range(-1, lesson + 1):
        time, stage = answer_ms(at), STAGES.get(at, FIRST)
        bar = "█" * max(1, round(BARS * time / first))
        rows.append((str(at) if at in STAGES else "none", stage.change, f"{time:,.0f} ms", bar))
    return Table(("after lesson", "the change", "an answer takes", ""), tuple(rows))
