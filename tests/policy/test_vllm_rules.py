"""vLLM's rules: the smallest cases in which each of them decides, as vLLM 0.33.0 schedules them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from minisched.core import FinishReason, Output, Request, Result, SamplingParams, ScheduleBatch
from minisched.features.stale import StaleOutputs
from minisched.memory import self_check
from minisched.policy.rules import Rules
from minisched.policy.systems import RULES, find_rules
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import check_memory

EOS = 1


class Item(NamedTuple):
    """A request, when it comes, and what it says."""

    rid: str
    turn: int
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    max_new_tokens: int


def item(rid: str, turn: int, prompt: Any, outputs: Any, length: int = 0) -> Item:
    return Item(rid, turn, tuple(prompt), tuple(outputs), length or len(outputs))


class Told(NamedTuple):
    """Sizes, requests, and what the steps of vLLM are, turn by turn."""

    items: list[Item]
    steps: str  # who computes [from:to]; -b: b is preempted; a - alone: nothing
    pages: int
    page_size: int = 1
    rows: int = 4
    budget: int = 64
    caching: bool = False
    is_async: bool = False


P9, P17 = range(100, 109), range(10, 27)
CASES = {
    "a newcomer has to fit whole": Told(
        [item("a", 0, range(10, 13), range(50, 54)), item("b", 1, range(30, 38), [60])],
        "a[0:3]; a[3:4]; a[4:5]; a[5:6]; b[0:4]; b[4:8]", pages=10, budget=4,
    ),
    "a chunk that finds no memory gives way": Told(
        [item("a", 0, range(10, 12), range(50, 58)), item("b", 1, range(30, 39), [60, 61])],
        "a[0:2]; a[2:3] b[0:3]; a[3:4] b[3:6]; a[4:5] -b; a[5:6]; a[6:7]; a[7:8]; a[8:9]; b[0:4]; "
        "b[4:8]; b[8:9]; b[9:10]", pages=12, budget=4,
    ),
    "free_rule": Told(
        [item("a", 0, [10, 11], [50, EOS], 10), item("b", 0, [30, 31], [60, 61])],
        "a[0:2]; a[2:3]; a[3:4]; b[0:2]; b[2:3]", pages=40, rows=1, budget=16, is_async=True,
    ),
    "nobody comes in a step that preempts": Told(
        [item("a", 0, range(10, 13), range(50, 53)), item("b", 0, [30, 31], range(60, 65)),
         item("c", 0, [80], [90, 91])],
        "a[0:3] b[0:2]; a[3:4] b[2:3]; a[4:5] b[3:4]; -b; b[0:5] c[0:1]; b[5:6] c[1:2]",
        pages=9, rows=2, budget=16, is_async=True,
    ),
    "prompt_pages": Told(
        [item("a", 0, P9, [50, 51]), item("b", 0, P9, [60, 61])],
        "a[0:9] b[8:9]; a[9:10] b[9:10]", pages=20, page_size=4, caching=True,
    ),
    "output_pages": Told(
        [item("a", 0, range(10, 14), range(50, 64)),
         item("b", 10, [*range(10, 14), *range(50, 58), 3], [60])],
        "a[0:4]; a[4:5]; a[5:6]; a[6:7]; a[7:8]; a[8:9]; a[9:10]; a[10:11]; a[11:12]; a[12:13]; "
        "a[13:14] b[12:13]; a[14:15]; a[15:16]; a[16:17]", pages=40, page_size=4, caching=True,
    ),
    "output_pages, after a preemption": Told(
        [item("a", 0, range(10, 14), range(50, 56)), item("b", 0, [30, 31], range(60, 66))],
        "a[0:4] b[0:2]; a[4:5] b[2:3]; a[5:6] b[3:4]; a[6:7] b[4:5]; a[7:8] -b; a[8:9]; b[3:6]; "
        "b[6:7]", pages=12, budget=16, caching=True,
    ),
    "prefix_cache": Told(
        [item("a", 0, range(10, 23), [50]), item("b", 2, range(30, 35), [60]),
         item("c", 4, range(10, 23), [70])],
        "a[0:13]; -; b[0:5]; -; c[8:13]", pages=4, page_size=4, caching=True,
    ),
    "ask_again": Told(
        [item("a", 0, P17, range(50, 54)), item("b", 0, [*range(10, 26), 3], [60])],
        "a[0:17] b[16:17]; a[17:18]; a[18:19]; a[19:20]", pages=6, page_size=4, caching=True,
    ),
}  # fmt: skip


def run(told: Told, rules: str = "vllm") -> str:
    """The steps of the same case here; as deep as vLLM's queue is, and as it is told there."""
    config = SchedulerConfig(
        rules=rules, kv_tokens=told.pages * told.page_size, page_size=told.page_size,
        max_running_requests=told.rows, max_prefill_tokens=told.budget, chunked_prefill_size=-1,
        disable_radix_cache=not told.caching, eos_ids=frozenset({EOS}), run_ahead=told.is_async,
        keep_stale_outputs=True,
    )  # fmt: skip
    scheduler = Scheduler(config, features=[StaleOutputs()])
    says = {item.rid: item for item in told.items}
    gone: list[str] = []
    retract = scheduler.retraction.retract

    def retracted(req: Request, reason: str) -> None:
        gone.append(f"-{req.rid}")
        retract(req, reason)

    scheduler.retraction.retract = retracted  # type: ignore[method-assign]
    steps, queue = list[str](), deque[ScheduleBatch]()
    while len(steps) < 60 and (len(steps) <= told.items[-1].turn or scheduler.live or queue):
        for it in told.items:
            if it.turn == len(steps):
                params = SamplingParams(max_new_tokens=it.max_new_tokens)
                scheduler.receive([Request(it.rid, it.prompt, params)])
                assert not scheduler.outputs
        gone.clear()
        batch = scheduler.next_batch()
        rows = sorted(batch.rows, key=lambda row: row.req.rid) if batch else []
        words = [f"{row.req.rid}[{row.start}:{row.end}]" for row in rows]
        steps.append(" ".join([*words, *gone]) or "-")
        if batch:
            queue.append(batch)
        if queue and (not batch or len(queue) == 1 + told.is_async):
            back = queue.popleft()
            ends = [row.end - len(row.req.prompt) for row in back.rows]
            outs = [says[rid].outputs for rid in back.rids]
            at = zip(outs, ends, strict=True)
            scheduler.process(back, Result([out[max(0, min(n, len(out) - 1))] for out, n in at]))
        check_memory(scheduler)
    self_check(scheduler.leases)
    while steps[-1] == "-":
        steps.pop()
    return "; ".join(steps)


@pytest.mark.parametrize("name", CASES)
def test_a_smallest_case_is_scheduled_as_vllm_does(name: str) -> None:
    assert run(CASES[name]) == CASES[name].steps


OTHERWISE = {"prompt_pages": "settled", "output_pages": "end", "ask_again": "left",
             "free_rule": "lease", "prefix_cache": "radix,prompt_pages=settled"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name.split(",")[0] in OTHERWISE])
def test_and_not_with_the_other_answer(name: str) -> None:
    rule = name.split(",")[0]
    more = ",prompt_pages=settled" if rule == "ask_again" else ""
    told = CASES[name]
    assert run(told, f"vllm,{rule}={OTHERWISE[rule]}{more}") != told.steps


def test_what_cannot_be_taken_back_is_not_shared_early() -> None:
    with pytest.raises(ValueError, match="prefix_cache must be 'blocks'"):
        find_rules("sglang,prompt_pages=scheduled")
    with pytest.raises(ValueError, match="prompt_pages is 'scheduled'"):
        replace(RULES["vllm"], prefix_cache="radix")
    assert Rules().prompt_pages == "settled"


# -- a step fails whose pages others have begun with -----------------------------------------------


def ahead(**settings: Any) -> Scheduler:
    config = SchedulerConfig(
        rules="vllm", kv_tokens=64, page_size=2, run_ahead=True, keep_stale_outputs=True, **settings
    )
    return Scheduler(config, features=[StaleOutputs()])


def commit(scheduler: Scheduler, *reqs: Request) -> ScheduleBatch:
    scheduler.receive(reqs)
    assert not scheduler.outputs
    batch = scheduler.next_batch()
    assert batch
    return batch


def spans(batch: ScheduleBatch) -> dict[str, tuple[int, int]]:
    return {row.req.rid: (row.start, row.end) for row in batch.rows}


def asks(rid: str, *more: int) -> Request:
    return Request(rid, [5, 6, 7, 8, 9, *more], SamplingParams(max_new_tokens=2))


@pytest.mark.parametrize("bad", [Result((), "it failed."), Result([3], nan_samples=frozenset({0}))])
def test_who_reads_what_a_failed_step_was_to_write_computes_again(bad: Result) -> None:
    scheduler = ahead()
    first = commit(scheduler, asks("a"))
    second = commit(scheduler, asks("b", 1, 2), asks("c", 1, 2, 3))  # c begins with b's pages
    assert spans(second) == {"b": (4, 7), "c": (6, 8), "a": (5, 6)}
    outputs = scheduler.process(first, bad)
    assert [(output.rid, output.finish_reason) for output in outputs] == [("a", FinishReason.ERROR)]
    check_memory(scheduler)
    assert not scheduler.process(second, Result([3, 3, 3])), "computed from what is not there"
    check_memory(scheduler)
    third = scheduler.next_batch()
    assert third and spans(third) == {"b": (0, 7), "c": (6, 8)}
    outputs = scheduler.process(third, Result([4, 4]))
    assert list(outputs) == [Output("b", 4), Output("c", 4)]
    last = scheduler.next_batch()
    assert last
    scheduler.process(last, Result([4, 4]))
    self_check(scheduler.leases)


def test_who_was_in_the_failed_step_ends_with_it_and_others_keep_what_is_written() -> None:
    scheduler = ahead()
    first = commit(scheduler, asks("a"))
    second = commit(scheduler, asks("b", 1, 2))
    scheduler.process(first, Result([3]))
    third = commit(scheduler, asks("c", 1, 2, 3))
    assert spans(third)["c"] == (6, 8)
    outputs = scheduler.process(second, Result((), "it failed."))
    assert {output.rid for output in outputs} == {"a", "b"}
    assert not scheduler.process(third, Result([3] * len(third.reqs)))
    again = scheduler.next_batch()
    assert again and spans(again) == {"c": (4, 8)}, "a's two pages were written before"
