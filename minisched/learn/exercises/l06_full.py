"""Lesson 6, memory is full: the missing pages, the victim, and when memory is free again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from ...checks.case import Case
from ...core import Lease, Request
from ...memory.pool import LeasePool
from ...museum.exhibit import case
from ...policy import PrefillAdder
from ...policy.sglang import Ratio
from ..exercise import COST, Exercise, Function, Scored, Workloads, is_large, of_any_size
from .l04_long_prompt import crowd

# -- What all three are held against: more is let in than will fit ---------------------------------


def too_many(seed: int) -> Case:
    """Two to four requests that grow in a memory for one and a half."""
    return crowd(
        seed, count=(2, 4), turns=(0, 4), prompt=(2, 9), new=(6, 14), room=(0.35, 0.6),
        disable_radix_cache=(False, True), chunked_prefill_size=16, schedule_conservativeness=0.0,
    )  # fmt: skip


SHOWN = case(
    "a: 1 2 3 4 -> 14; b: 5 6 7 8 -> 14; c at 2: 9 10 11 12 13 14 -> 8", "overlap", kv=30, rows=3,
    chunked_prefill_size=16, schedule_conservativeness=0.0, disable_radix_cache=True, cost=COST,
)  # fmt: skip

CASES = (SHOWN, *map(too_many, (*range(24), 28)))


def reused(seed: int) -> Case:
    """Three to six requests that take turns on one or two rows, and may end by EOS.

    A second stream copies their prompts to the token pool, and waits for no step in flight.
    """
    return crowd(
        seed, "overlap:token_pool", count=(3, 6), turns=(0, 3), prompt=(1, 5), new=(4, 9),
        room=(0.5, 1.0), rows=(1, 2), eos=frozenset({3, 8, 10}),
    )  # fmt: skip


TWO_STREAMS = (
    case("a: 18 -> 2; b: 7 3 5 -> 1", "overlap:token_pool", kv=4, eos={10}, cost=COST),
    *map(reused, range(24)),
)

# -- pages_short, choose_victim, may_free: in the package's places ---------------------------------


class Grown(NamedTuple):
    """One who runs: tokens that must have room in the next step, and the pages that it has."""

    length: int
    num_pages: int


def of_next_step(lines: Callable[..., Any], pool: LeasePool, reqs: Sequence[Request]) -> int:
    """Call the learner's ``pages_short`` as the method."""
    running = [
        Grown(pool.reach(req), len(req.lease.pages)) for req in reqs if req.lease is not None
    ]
    return int(lines(running, pool.available_pages, pool.allocator.page_size))


def some_grown(random: Random) -> tuple[list[Grown], int, int]:
    """Requests that have pages for all tokens but the newest few, or for more; some are free."""
    size, count, most, newest, free = random.choice((1, 2, 4)), random.randint(0, 5), 20, 5, 4
    if is_large(random):
        size, count = random.choice((1, 2, 4, 16, 64)), of_any_size(random, 1, 200)
        most, newest = of_any_size(random, 200, 100_000), random.choice((5, 200))
        free = of_any_size(random, 4, 2000)
    lengths = [random.randint(newest + 1, most) for _ in range(count)]
    running = [
        Grown(length, -(-(length - random.randint(-newest, newest)) // size)) for length in lengths
    ]
    return running, random.randint(0, free), size


class Candidate(NamedTuple):
    """A request that may be retracted: its generated tokens, and those of its prompt."""

    rid: str
    num_outputs: int
    prompt_len: int


def some_candidates(random: Random) -> tuple[list[Candidate]]:
    """Requests that decode; some have as many outputs, and prompts of the same length."""
    names, fewest, spread = random.sample("abcd", random.randint(1, 4)), 1, 3
    if is_large(random):
        names = [f"r{at}" for at in range(random.choice((2, of_any_size(random, 5, 300))))]
        fewest, spread = of_any_size(random, 1, 100_000), random.choice((3, 3000))
    longest = of_any_size(random, 4, 10**7)
    lengths = random.choice(((1, 2, 3), (1, 3, longest, longest + 1)))
    sizes = [(random.randint(fewest, fewest + spread), random.choice(lengths)) for _ in names]
    return ([Candidate(rid, *size) for rid, size in zip(names, sizes, strict=True)],)


def one_of_them(lines: Callable[..., Any], candidates: Iterable[Request]) -> Request:
    """Call the learner's ``choose_victim`` as the function.

    Raises:
        ValueError: it names none of them.
    """
    reqs = list(candidates)
    running = [Candidate(req.rid, len(req.output_ids), len(req.prompt)) for req in reqs]
    chosen = lines(list(running))
    if chosen not in running:
        raise ValueError(f"choose_victim gave {chosen!r}, which is not one of those who run")
    return reqs[running.index(chosen)]


def of_steps(lines: Callable[..., Any], lease: Lease, pool: LeasePool) -> bool:
    """Call the learner's ``may_free`` as the free rule ``lease``."""
    return bool(lines(lease.last_step, pool.launched_step, pool.returned_step))


def steps_in_flight(random: Random) -> tuple[int, int, int]:
    """A request's last step, and up to three steps in flight, or twenty."""
    launched, most = random.randint(0, 20), 3
    if is_large(random):
        launched, most = of_any_size(random, 20, 10**6), of_any_size(random, 3, 20)
    returned = max(0, launched - random.randint(0, most))
    return max(0, launched - random.randint(0, most + 1)), launched, returned


# -- kept: an open problem, on the workload "little memory" of the score --------------------------


def kept_as_asked(
    lines: Callable[..., Any], reserve: Ratio, adder: PrefillAdder, req: Request
) -> float:
    """Call the learner's ``kept`` as the method."""
    return float(lines(len(req.output_ids), req.params.max_new_tokens))


EXERCISES = (
    Exercise(
        name="pages_short",
        hole=Function(
            "memory.pool:LeasePool.pages_short", of_next_step, asked=some_grown,
            counts=lambda answer, *args: max(0, answer),
        ),
        solution="""
            def pages_short(running, free, page_size):
                lacking = 0
                for one in running:
                    lacking += max(0, -(-one.length // page_size) - one.num_pages)
                return lacking - free
        """,
        workloads=Workloads(seeds=0, cases=CASES, show=SHOWN),
        picture="retraction",
        beside="",
        hints=(
            "With pages of 4, a request of 8 tokens that grows to 9 needs a page. And one of 9?",
            "Pages for `length` tokens: rounded up. Less those it has, and never less than 0: a "
            "request that has a page too many lends it to no other one.",
            "`-(-length // page_size)` rounds up. In the end take off what is free.",
        ),
        why=(
            "Only a request that fills a page needs a new one, so most steps need none. With one "
            "page too few, the step has nowhere to write. With one too many, a request is "
            "retracted for nothing. Next: which one?"
        ),
    ),
    Exercise(
        name="choose_victim",
        hole=Function("policy.sglang:fewest_outputs", one_of_them, asked=some_candidates),
        solution="""
            def choose_victim(running):
                latest = reversed(running)
                return min(latest, key=lambda one: (one.num_outputs, -one.prompt_len))
        """,
        workloads=Workloads(seeds=0, cases=CASES, show=SHOWN),
        picture="retraction",
        beside="",
        hints=(
            "A retracted request computes everything again. Which has least to lose?",
            "Fewest outputs first; among equals the longest prompt, as it gives back most.",
            "`min` with a pair as its key: `(one.num_outputs, -one.prompt_len)`. Among equals it "
            "is the one that began last, so look at them in reverse order.",
        ),
        why=(
            "The victim keeps its tokens and loses its KV, so its tokens are computed again. As in "
            "SGLang, the rule counts the outputs alone: the request with the fewest loses least. "
            "Its client only sees a pause: every token stays what it was."
        ),
    ),
    Exercise(
        name="may_free",
        hole=Function(
            "memory.free_rules:steps_returned", of_steps, asked=steps_in_flight,
            counts=lambda answer, *args: bool(answer),
        ),
        solution="""
            def may_free(last_step, launched, returned):
                return last_step <= returned
        """,
        workloads=Workloads(seeds=0, cases=TWO_STREAMS, show=TWO_STREAMS[0]),
        picture="page_allocator",
        beside="",
        hints=(
            "Two steps are in flight. Which of them may still write to what this request held?",
            "The last one that names it. Has that one come back?",
            "Steps come back in order, so compare two numbers.",
        ),
        why=(
            "A launched step cannot be taken back: it writes where its page table points. A second "
            "stream does not wait for it. So memory is free when the last step that names it has "
            "come back, and not when its request has ended. That holds for any number of steps in "
            "flight, and of streams."
        ),
    ),
    Exercise(
        name="kept",
        hole=Scored(
            "policy.sglang:Ratio.kept_for", kept_as_asked,
            workload="little memory", second="short answers", loop="mixed", enough=240,
        ),
        solution="""
            def kept(num_outputs, max_new_tokens):
                return (max_new_tokens - num_outputs) / 3
        """,
        hints=(
            "The answers of this workload end after 25 tokens on average, and 60 are allowed.",
            "Keep a share of the remaining tokens. With 0 for all, one request is retracted. A "
            "fixed number is too much where answers are short.",
        ),
        why=(
            "You keep less than the worst case, and still no request is retracted: the answers end "
            "early, and not all at the same time. SGLang adapts the share while it runs, because "
            "it does not know when answers end."
        ),
    ),
)  # fmt: skip
