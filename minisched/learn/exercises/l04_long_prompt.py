"""Lesson 4, a long prompt: where a chunk ends, who may start, and who starts first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from random import Random
from types import FunctionType
from typing import Any, NamedTuple

from ...checks.case import Case
from ...checks.history import many
from ...core import Request
from ...memory import Match, RadixCache
from ...museum.exhibit import case
from ...policy import Plan, PrefillAdder
from ...policy.sglang import Ratio
from ...scheduler import Scheduler
from ..exercise import COST, Attempt, Exercise, Function, Scored, Workloads, is_large, of_any_size
from ..guard import Mistake

# -- Cases by chance, here and in lessons 5 to 7 ---------------------------------------------------

Range = tuple[int, int]


def crowd(
    seed: int, on: str = "overlap", *, count: Range, turns: Range, prompt: Range, new: Range,
    room: tuple[float, float], begins: Sequence[str] = ("",), pages: Sequence[int] = (1, 2, 4),
    **settings: Any,
) -> Case:  # fmt: skip
    """Some requests in a memory for the share ``room`` of what they need, enough for the longest.

    A prompt is one of ``begins`` and some more tokens. A setting with several values has one of
    them.
    """
    random = Random(seed)
    page, requests, sizes = random.choice(pages), list[str](), list[int]()
    for rid in "abcdefg"[: random.randint(*count)]:
        own = [str(random.randrange(19)) for _ in range(random.randint(*prompt))]
        tokens = [*random.choice(begins).split(), *own]
        requests.append(
            f"{rid} at {random.randint(*turns)}: {' '.join(tokens)} -> {random.randint(*new)}"
        )
        sizes.append(len(tokens) + new[1])
    share = int(sum(sizes) * random.uniform(*room)) // page
    chosen = {
        name: random.choice(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
    }
    return case(
        "; ".join(requests), on, kv=max(share, max(sizes) // page + 2) * page,
        **{"rows": len(requests), "page_size": page, "cost": COST, **chosen},
    )  # fmt: skip


# -- cut: a chunk is a number of whole pages -------------------------------------------------------


def cut_to(lines: Callable[..., Any], adder: PrefillAdder, extend_len: int) -> int:
    """Call the learner's ``cut`` as the method.

    Raises:
        Mistake: it leaves a whole page of the chunk, or cuts a prompt that fits.
    """
    rem = adder.rem_chunk_tokens
    if rem is not None and extend_len <= rem < adder.ceil_paged_tokens(extend_len):
        return rem // adder.page_size * adder.page_size  # the budget counts whole pages
    length = int(lines(rem, adder.page_size, extend_len))
    if rem is not None and length < extend_len and rem - length >= adder.page_size:
        raise Mistake(
            f"`cut` gave {length} of a prompt's {many(extend_len, 'token')} and left "
            f"{rem - length} of the chunk's {rem}: the next prompt would take those, and two "
            "prompts would be half computed. Take every whole page that is left"
        )
    return length


def prompt_to_cut(random: Random) -> tuple[int | None, int, int]:
    """A prompt, and what is left of a chunk."""
    most, pages = 20, 4
    if is_large(random):
        most, pages = of_any_size(random, 20, 100_000), 128
    left = random.randint(0, most) if random.random() < 0.8 else None
    return left, random.randint(1, pages), random.randint(1, most)


def whole_pages(attempt: Attempt) -> str:
    """Where a prompt is cut when it starts, a page ends."""
    size, started = attempt.case.workload.config.page_size, set[str]()
    for mark in attempt.verdict.trace.marks:
        if mark.name != "admit":
            continue
        rid, length = str(mark.attrs["rid"]), int(mark.attrs["extend_len"])
        if mark.attrs["is_chunked"] and rid not in started and length % size:
            return (
                f"the first chunk of {rid}'s prompt has {many(length, 'token')} and ends in the "
                f"middle of a page of {size}, but only whole pages can be shared"
            )
        started.add(rid)
    return ""


def long_prompts(seed: int) -> Case:
    """Prompts longer and shorter than a chunk; in every fifth case there is no limit."""
    chunks: dict[str, Any] = {
        "chunked_prefill_size": (4, 8, 12),
        "enable_mixed_chunk": (False, True),
    }
    return crowd(
        seed, count=(3, 3), turns=(0, 3), prompt=(1, 20), new=(1, 6), room=(1.0, 2.0), pages=(2, 4),
        **({"chunked_prefill_size": -1} if seed % 5 == 4 else chunks),
    )  # fmt: skip


# -- fits: memory for the tokens that a request may still generate --------------------------------


def asked_to_fit(
    lines: Callable[..., Any],
    reserve: Ratio,
    adder: PrefillAdder,
    req: Request,
    extend_len: int,
    to_lock: int,
) -> bool:
    """Call the learner's ``fits`` as the method."""
    left = ceil(adder.rem_total_tokens - to_lock)  # which is a fraction, for a share is
    return bool(lines(extend_len, reserve.new_tokens(req), adder.page_size, left))


def tight(seed: int) -> Case:
    """Return a case with memory for some of the requests at a time, not for all."""
    return crowd(
        seed, count=(4, 4), turns=(0, 2), prompt=(1, 8), new=(4, 12), room=(0.4, 0.9),
        chunked_prefill_size=16, schedule_conservativeness=(1.0, 2.0),
    )  # fmt: skip


EXACT = case(  # what c needs and what is left are equal: one slot too few
    "b: 15 14 9 15 -> 6; c: 8 5 10 9 -> 6; d: 17 11 -> 6; a at 2: 9 0 14 14 3 0 16 -> 6", "overlap",
    kv=28, rows=4, page_size=4, chunked_prefill_size=16, cost=COST,
)  # fmt: skip


def request_to_fit(random: Random) -> tuple[int, int, int, int]:
    """A request, and memory for nearly as much, as much, or more."""
    most, pages = 9, 4
    if is_large(random):
        most, pages = of_any_size(random, 9, 100_000), 128
    extend_len, new_tokens = random.randint(1, most), random.randint(0, most)
    page = random.randint(1, pages)
    return extend_len, new_tokens, page, extend_len + new_tokens + page + random.randint(-9, 9)


# -- order: who finds the most in the cache, before it is gone -------------------------------------


class Waiting(NamedTuple):
    """A waiting request: the tokens of its prompt, and how many of them are cached now."""

    rid: str
    prompt_len: int
    cached_len: int


def in_their_order(
    lines: Callable[..., Any], matches: Sequence[tuple[Request, Match]], tree: RadixCache
) -> list[Request]:
    """Call the learner's ``order`` as ``lpm``.

    Raises:
        ValueError: a request is missing from the answer, or in it twice.
    """
    size, reqs = tree.page_size, {req.rid: req for req, _ in matches}
    waiting = [
        Waiting(req.rid, req.known_len, min(len(match.pages) * size, req.known_len - 1))
        for req, match in matches
    ]
    said = list(lines(list(waiting)))
    if sorted(said) != sorted(waiting):
        names = " ".join(one.rid for one in said if isinstance(one, Waiting))
        raise ValueError(
            f"your order has [{names}], but [{' '.join(reqs)}] wait: each of them, once"
        )
    return [reqs[one.rid] for one in said]


def some_waiting(random: Random) -> tuple[list[Waiting]]:
    """Some requests, each with at least a token of its prompt to compute."""
    rids, most = list("cadb"[: random.randint(1, 4)]), 12
    if is_large(random):
        rids = [f"r{at}" for at in range(of_any_size(random, 5, 300))]
        most = of_any_size(random, 12, 100_000)
        random.shuffle(rids)
    sizes = {rid: random.randint(1, most) for rid in rids}
    return ([Waiting(rid, size, random.randrange(size)) for rid, size in sizes.items()],)


DOCUMENT = "7 3 1 18 4 11 2 9 16 5 0 13 8 6 1 2"


def questions(seed: int) -> Case:
    """Questions on a document among prompts about something else."""
    return crowd(
        seed, count=(5, 6), turns=(0, 4), prompt=(2, 12), new=(2, 3), room=(0.35, 0.5),
        begins=(DOCUMENT, ""), pages=(1,), rows=2, schedule_policy="lpm", chunked_prefill_size=16,
    )  # fmt: skip


SHOWN = case(
    "doc: 1 2 3 4 5 6 7 8 -> 2; new1 at 2: 10 11 12 13 14 15 16 17 -> 3; "
    "new2 at 2: 11 12 13 14 15 16 17 18 -> 3; question at 2: 1 2 3 4 5 6 7 9 9 -> 3",
    "overlap", kv=16, rows=1, schedule_policy="lpm", chunked_prefill_size=16, cost=COST,
)  # fmt: skip

# -- decodes_first: an open problem, on the workload "document" of the score -----------------------

_plan = FunctionType(Scheduler.plan.__code__, Scheduler.plan.__globals__)  # it is swapped meanwhile


def planned(lines: Callable[..., Any], scheduler: Scheduler) -> Plan:
    """Let a learner decide before each step whether decodes go first; count steps with prompts."""
    chunks = vars(scheduler).get("chunks_in_a_row", 0)
    running = len(scheduler.decode.running_reqs)
    scheduler.decodes_first = bool(lines(chunks, running))
    plan: Plan = _plan(scheduler)
    prompts, decodes = plan
    vars(scheduler)["chunks_in_a_row"] = 0 if decodes else chunks + bool(prompts)
    return plan


EXERCISES = (
    Exercise(
        name="cut",
        hole=Function("policy.prefill_adder:PrefillAdder.cut", cut_to, asked=prompt_to_cut),
        solution="""
            def cut(rem_chunk, page_size, extend_len):
                if rem_chunk is None or extend_len <= rem_chunk:
                    return extend_len
                return rem_chunk // page_size * page_size
        """,
        workloads=Workloads(
            seeds=0, cases=tuple(map(long_prompts, range(30))),
            show=case("a: 1 2 3 -> 8; doc at 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 -> 3",
                      "overlap", kv=64, rows=2, page_size=4, chunked_prefill_size=8, cost=COST),
        ),
        extra=(whole_pages,),
        reach=10,
        picture="prefill",
        hints=(
            "Three cases: no limit at all, a rest that fits, and a rest that does not.",
            "A prompt that fits is taken whole. A longer one is cut, at the end of a page: "
            "`rem_chunk` tokens are left, but how many whole pages?",
            "`rem_chunk // page_size` are the pages; times `page_size` gives tokens again.",
        ),
        why=(
            "A chunk bounds the work of one step, whatever clients send. It ends with a page, as "
            "only a whole page can be shared with the next prompt that begins the same. Exercise 2 "
            "is about memory, which a prompt holds for much longer than a step."
        ),
    ),
    Exercise(
        name="fits",
        hole=Function(
            "policy.sglang:Ratio.fits", asked_to_fit, asked=request_to_fit,
            counts=lambda answer, *args: bool(answer),
        ),
        solution="""
            def fits(extend_len, new_tokens, page_size, left):
                return extend_len + new_tokens + page_size < left
        """,
        workloads=Workloads(
            seeds=0, cases=(*map(tight, range(16)), EXACT),
            show=case("a: 1 2 3 4 -> 12; b: 5 6 7 8 -> 12; c: 9 10 11 12 -> 6", "overlap", kv=28,
                      rows=3, chunked_prefill_size=16, cost=COST),
        ),
        no_worse=(("retractions", 1.0), ("makespan", 1.02)),
        reach=30,
        picture="prefill",
        beside="",
        hints=(
            "The prompt is not all that will lie in memory. What follows it?",
            "Each of its `new_tokens` takes a slot, too. And a page is taken as a whole.",
            "So it needs `extend_len + new_tokens`, and a page: the last one is never quite full. "
            "That must be less than `left`, so that something stays over.",
        ),
        why=(
            "A request that starts will grow, so room for its answer is counted before it starts. "
            "A scheduler that counts the prompt alone starts more requests, and retracts some of "
            "them: their work is done twice. Lesson 6 is about that."
        ),
    ),
    Exercise(
        name="order",
        hole=Function(
            "policy.waiting:lpm", in_their_order, asked=some_waiting,
            counts=lambda answer, waiting: list(answer),
        ),
        solution="""
            def order(waiting):
                return sorted(waiting, key=lambda one: -one.cached_len)
        """,
        workloads=Workloads(
            seeds=0, cases=(SHOWN, *map(questions, range(20))), show=SHOWN,
        ),
        laws=("identity", "ends", "livelock", "deadlock", "leak", "race", "crash"),
        no_worse=(("prompt tokens computed", 1.0),),
        reach=20,
        picture="schedule_policy",
        beside="",
        hints=(
            "Memory is small here: what the next prompt needs may push the document out.",
            "Which request should run while the document is still in the cache?",
            "`sorted` with a `key`: the largest `cached_len` first.",
        ),
        why=(
            "The request with the longest cached prefix goes first, before another prompt evicts "
            "it. So fewer tokens are computed, and every answer stays the same. The price is "
            "fairness: a request without a cached prefix may wait long, and SGLang uses first "
            "come, first served when more than 128 wait."
        ),
    ),
    Exercise(
        name="decodes_first",
        hole=Scored(
            "scheduler.scheduler:Scheduler.plan", planned,
            workload="document", loop="overlap", enough=400,
        ),
        solution="""
            def decodes_first(chunks, running):
                return chunks >= 1
        """,
        hints=(
            "With True in every step the document waits until every chat has ended. With False the "
            "chats wait until the document is read. What lies between?",
            "Let the chats decode after some steps with prompts. After how many?",
        ),
        why=(
            "You wrote a policy that SGLang does not have: chunks and decode steps in turn. Each "
            "chunk costs the chats one step, and each decode step costs the document one. Lesson 7 "
            "puts both into the same step."
        ),
    ),
)  # fmt: skip
