"""The exercises of the lessons, solved; and mistakes that learners make, with what is said."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from math import ceil
from typing import Any

from minisched import learn

Rows = dict[Callable[[Any], Any], list[tuple[Any, ...]]]
"""Of each check: lines that are wrong, a part of what is said, and False if nothing is drawn."""


def lines(text: str) -> Any:
    """The function that a learner wrote, whose lines a traceback can quote."""
    place, names = f"<lines {hash(text)}>", dict[str, Any]()
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    exec(compile(text, place, "exec"), names)
    return names[text.split("(")[0].split()[-1]]


def but(text: str, *changes: str) -> Any:
    """The same lines, in which some words are others: old, new, old, new, ..."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return lines(text)


# -- lesson 1: a loop, and how long its step takes -------------------------------------------------

LOOP = """def my_loop(engine):
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        pending = engine.run_batch(batch) if batch else None
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        last = pending
        yield
"""
TURNS = ("last = pending", "last = None", "if last:", "if pending:", "(last)", "(pending)")
NO_IDLE = ("        elif not batch:\n            engine.on_idle()\n", "")
RUNS_NOTHING = ("engine.run_batch(batch) if batch else None", "engine.run_batch(batch)")

LESSON_1: Rows = {
    learn.check_loop: [
        (but(LOOP, *TURNS), "takes 17 ms a step, on average; 10"),
        (
            but(LOOP, "last = pending", "last = pending or last"),
            "Step 1 has already been processed",
        ),
        (but(LOOP, *NO_IDLE), "did not call on_idle()"),
        (but(LOOP, *RUNS_NOTHING), "nothing to run; test `batch` first"),
        (but(LOOP, "        yield\n", ""), "has no `yield`", False),
        (but(LOOP, "recv_requests", "recv_request"), "at your line `engine.recv_req", False),
        (None, "of type NoneType, but it must be a function", False),
    ],
    learn.check_step_time: [
        (lambda h, d, c, n: h + d + c if n == 1 else max(h, d), "6 ms; the run took 6.5 ms"),
        (lambda h, d, c, n: None, "not a number", False),
        (lambda h, d, c, n: h / (n - 1), "ZeroDivisionError at your line", False),
    ],
}

# -- lesson 2: a ring of future slots --------------------------------------------------------------


def resolve(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] if token < 0 else token for token in ids]


def alloc(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs), (future_ct + num_reqs) % limit


def alloc_that_never_wraps(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs), future_ct + num_reqs


def alloc_for_ever(future_ct: int, num_reqs: int, limit: int) -> Any:
    while future_ct > -1:
        pass


def limit(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (3 + ceil(context_len / chunk))


def after(ct: int, n: int) -> range:
    """The slots behind a counter."""
    return range(ct + 1, ct + 1 + n)


LAPPED = "The slot was lapped"
LESSON_2: Rows = {
    learn.check_resolve: [
        (lambda ids, m: [m[t] if t < 0 else t for t in ids], "Your lines made"),
        (lambda ids, m: [m[-t] for t in ids] if ids[0] < 0 else ids, "should give [5, 47]", False),
        (lambda ids, m: [m[abs(t)] for t in ids], "IndexError at your line"),
        (lambda ids, m: [m[-t] if t <= 0 else t for t in ids], "was sent the id 0; your"),
    ],
    learn.check_alloc: [
        (alloc_that_never_wraps, "but slots begin at 1 again once"),
        (lambda ct, n, most: (range(1, 1 + n), ct), LAPPED),
        (lambda ct, n, most: (after(ct - 1, n), (ct + n) % most), "0 would be a token", False),
        (lambda ct, n, most: ([ct + 1] * n, (ct + 1) % most), "two rows with one slot"),
        (lambda ct, n, most: after(ct, n), "must give two things", False),
        (alloc_for_ever, "never end", False),
    ],
    learn.check_limit: [
        (lambda m, n, c: 10 * m, "(19: the longest", False),
        (lambda m, n, c: 10**9, "memory is dear", False),
        (lambda m, n, c: m * (1 + min(5000, n) // c), "prompts may stand in front", False),
        (lambda m, n, c: 3 * m + ceil(n / c), LAPPED),
    ],
}

# -- lesson 3: lazy graphs -------------------------------------------------------------------------

GENERATE = """def generate(step, first, count, async_eval, host_work):
    tokens, y = [], step(first)
    async_eval(y)
    for _ in range(count):
        following = step(y)
        async_eval(following)
        tokens.append(y.item())
        host_work(tokens[-1])
        y = following
    return tokens
"""
START, HAND_OVER = "    async_eval(y)\n", "        async_eval(following)\n"
WORK, READ = "        host_work(tokens[-1])\n", "        tokens.append(y.item())\n"
BUILD = "        following = step(y)\n"
TURN = """def turn(engine, pending):
    batch = engine.chain(pending.batch)
    following = engine.run_batch(batch, pending) if batch else None
    engine.process_batch_result(pending)
    return following
"""
SKETCH = """def turn_of_the_sketch(engine, pending):
    engine.process_batch_result(pending)
    batch = engine.chain(pending.batch)
    return engine.run_batch(batch) if batch else None
"""
PROCESS = "    engine.process_batch_result(pending)\n"

LESSON_3: Rows = {
    learn.check_generate: [
        (
            but(GENERATE, START, "", HAND_OVER, "", WORK, WORK + HAND_OVER),
            "takes 16 ms from one token",
        ),
        (
            but(GENERATE, BUILD + HAND_OVER + READ, READ + BUILD + HAND_OVER),
            "takes 11 ms from one token",
        ),
        (but(GENERATE, "y.item()", "following.item()"), "The 1st token is"),
        (but(GENERATE, WORK, ""), "host_work was called 0 times"),
        (but(GENERATE, "step(y)", "step(y.item())"), "the first token, or a lazy one"),
    ],
    learn.check_turn: [
        (lines(SKETCH), "takes 17 ms a step, on average; 10"),
        (but(TURN, ", pending) if", ") if"), "run_batch was not told which step"),
        (but(TURN, PROCESS, ""), "`turn` never processed `pending`"),
        (but(TURN, "return following", "return"), "step 3 but gave back None"),
    ],
    learn.check_may_chain: [
        (lambda b, w, e: True, "has ended: its place"),
        (lambda b, w, e: not w and not e and len(b) <= 2, "With 4 requests, host 6 ms"),
        (lambda b, w, e: False, "it takes 17 ms a step"),
    ],
}

MISTAKES = [
    (check, *row, True)[:4]
    for check, rows in {**LESSON_1, **LESSON_2, **LESSON_3}.items()
    for row in rows
]
SOLUTIONS: list[tuple[Callable[[Any], Any], Any]] = [
    (learn.check_loop, lines(LOOP)),
    (
        learn.check_step_time,
        lambda h, d, c, n: h + d + c if n == 1 else max(h, d, c, (h + d + c) / 2),
    ),
    (learn.check_resolve, resolve),
    (learn.check_alloc, alloc),
    (learn.check_limit, limit),
    (learn.check_generate, lines(GENERATE)),
    (learn.check_turn, lines(TURN)),
    (learn.check_may_chain, lambda b, w, e: not w and not e),
]
