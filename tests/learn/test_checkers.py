"""The checkers of the lessons: right lines pass, wrong ones are told why, and nothing hangs."""

from __future__ import annotations

import linecache
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from math import ceil
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched import learn
from minisched.learn import guard
from minisched.learn.guard import TooLong, bounded
from minisched.learn.ring_exercise import PLAIN, needed, play_ring
from minisched.learn.runs import TIE, VOCAB, ordinal
from minisched.learn.trial import broken
from minisched.learn.verdicts import attempt, draw_trial, shrink
from tests.support import Picture, check_picture, many

seeds = st.integers(0, 10**6)

# -- right lines, and mistakes that learners make, with what is said -------------------------------

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

MISTAKES_IN: Rows = {
    learn.check_loop: [
        (but(LOOP, *TURNS), "takes 17 ms a step, on average; 10"),
        (but(LOOP, "= pending", "= pending or last"), "Step 1 has already been processed"),
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


def resolve(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] if token < 0 else token for token in ids]


def after(ct: int, n: int) -> range:
    """The slots behind a counter."""
    return range(ct + 1, ct + 1 + n)


def step_time(h: float, d: float, c: float, n: int) -> float:
    return h + d + c if n == 1 else max(h, d, c, (h + d + c) / 2)


def limit(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (3 + ceil(context_len / chunk))


LAPPED = "The slot was lapped"
ENDLESS = lines("def endless(ct, n, most):\n    while True: pass")  # it gets to no other line
MISTAKES_IN |= {
    learn.check_resolve: [
        (lambda ids, m: [m[t] if t < 0 else t for t in ids], "Your lines made"),
        (lambda ids, m: [m[-t] for t in ids] if ids[0] < 0 else ids, "should give [5, 47]", False),
        (lambda ids, m: [m[abs(t)] for t in ids], "IndexError at your line"),
        (lambda ids, m: [m[-t] if t <= 0 else t for t in ids], "was sent the id 0; your"),
    ],
    learn.check_alloc: [
        (lambda ct, n, most: (after(ct, n), ct + n), "but slots begin at 1 again once"),
        (lambda ct, n, most: (range(1, 1 + n), ct), LAPPED),
        (lambda ct, n, most: (after(ct - 1, n), (ct + n) % most), "0 would be a token", False),
        (lambda ct, n, most: ([ct + 1] * n, (ct + 1) % most), "two rows with one slot"),
        (lambda ct, n, most: after(ct, n), "must give two things", False),
        (ENDLESS, "never end", False),
    ],
    learn.check_limit: [
        (lambda m, n, c: 10 * m, "(19: the longest", False),
        (lambda m, n, c: 10**9, "memory is dear", False),
        (lambda m, n, c: m * (1 + min(5000, n) // c), "prompts may stand in front", False),
        (lambda m, n, c: 3 * m + ceil(n / c), LAPPED),
    ],
}

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
PROCESS = "    engine.process_batch_result(pending)\n"
FIRST = (PROCESS, "", "    batch", PROCESS + "    batch", ", pending) if", ") if")

MISTAKES_IN |= {
    learn.check_generate: [
        (but(GENERATE, START, "", HAND_OVER, "", WORK, WORK + HAND_OVER), "takes 16 ms from one"),
        (but(GENERATE, BUILD + HAND_OVER + READ, READ + BUILD + HAND_OVER), "takes 11 ms from one"),
        (but(GENERATE, "y.item()", "following.item()"), "The 1st token is"),
        (but(GENERATE, WORK, ""), "host_work was called 0 times"),
        (but(GENERATE, "step(y)", "step(y.item())"), "the first token, or a lazy one"),
    ],
    learn.check_turn: [
        (but(TURN, *FIRST), "takes 17 ms a step, on average; 10"),
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

MISTAKES = [(check, *row, True)[:4] for check, rows in MISTAKES_IN.items() for row in rows]
SOLUTIONS: list[tuple[Callable[[Any], Any], Any]] = [
    (learn.check_loop, lines(LOOP)),
    (learn.check_step_time, step_time),
    (learn.check_resolve, resolve),
    (learn.check_alloc, lambda ct, n, most: (after(ct, n), (ct + n) % most)),
    (learn.check_limit, limit),
    (learn.check_generate, lines(GENERATE)),
    (learn.check_turn, lines(TURN)),
    (learn.check_may_chain, lambda b, w, e: not w and not e),
]


# -- what a checker says ---------------------------------------------------------------------------


def some(rows: list[Any]) -> list[Any]:
    """All of them; plain pytest tries the first one of each exercise."""
    names = [row[0].__name__ for row in rows]
    assert {*names} == {n for n in learn.__all__ if n[:6] == "check_"} - {"check_losing_case"}
    return [
        pytest.param(*row, marks=[pytest.mark.thorough] * (name in names[:at]), id=f"{name}-{at}")
        for at, (name, row) in enumerate(zip(names, rows, strict=True))
    ]


@pytest.mark.parametrize(("check", "solution"), some(SOLUTIONS))
def test_a_solution_passes(check: Any, solution: Any) -> None:
    verdict = check(solution)
    assert verdict.passed, repr(verdict)
    assert re.match("Checked (on|with|against) [0-9]+", verdict.sentences[0])


@pytest.mark.parametrize(("check", "lines", "says", "draws"), some(MISTAKES))
def test_a_mistake_is_told_and_drawn(check: Any, lines: Any, says: str, draws: bool) -> None:
    verdict = check(lines)
    assert not verdict.passed and says in " ".join(verdict.sentences), repr(verdict)
    assert bool(verdict.figures) == draws
    assert all(len(said) < 400 and "Traceback" not in said for said in verdict.sentences)
    for figure in verdict.figures:
        check_picture(Picture(figure.svg))
    ElementTree.fromstring(verdict._repr_html_().replace("&times;", "×"))


# -- the first wrong token -------------------------------------------------------------------------


@settings(max_examples=many(12, 150))
@given(seeds, st.integers(1, 6))
def test_the_first_wrong_token_is_found_at_its_step(seed: int, lost: int) -> None:
    """A ring that spoils one placeholder of one step: that step's token is the first wrong one."""
    steps, spoiled = count(1), list[int]()

    def spoil(ids: list[int], token_ids_map: list[int]) -> list[int]:
        step, found = next(steps), resolve(ids, token_ids_map)
        if step >= lost and not spoiled and min(ids) < 0:
            spoiled.append(step)
            at = next(at for at, token in enumerate(ids) if token < 0)
            found[at] = (found[at] + 1) % VOCAB
        return found

    trial = play_ring(PLAIN.draw(seed), resolve=spoil)
    what = broken(trial)
    assume(what is not None)  # else no placeholder came so late, or the row was wasted
    assert what.law == "identity" and what.step >= spoiled[0]
    token = next(one for one in trial.heard if (one.step, one.rid) == (what.step, what.rid))
    at = trial.tokens(what.rid).index(token)
    truth = next(one.truth for one in trial.workload.asked if one.rid == what.rid)
    assert truth[:at] == [one.token for one in trial.tokens(what.rid)][:at]
    if at < len(truth):
        said = f"{ordinal(at + 1)} token is {token.token}, should be {truth[at]}"
        assert said in what.sentence and token.token != truth[at]
    (figure,) = draw_trial(trial, what)  # which outlines that step's boxes on the device
    picture = Picture(figure.svg)
    outlined = picture.shapes("rect", "wrong", wrong=str(what.step))
    of_step = [item for item in trial.trace.slices if item.step == what.step]
    ran = {str(item.id) for item in of_step if item.lane != "host" and item.duration}
    boxes = [box for box in picture.shapes("rect", "box", id="*") if box["data-id"] in ran]
    assert len(boxes) == len(ran) > 0
    places = sorted((box["x"], box["width"]) for box in boxes)
    assert places == sorted((box["x"], box["width"]) for box in outlined)
    assert f"step {what.step}: {what.rid}'s token" in picture.words


@given(st.integers(1, 300), st.integers(2, 10**5), st.integers(1, 10**4))
def test_what_is_needed_is_less_than_the_published_size(m: int, context: int, chunk: int) -> None:
    assert m <= needed(m, context, chunk) <= limit(m, context, chunk)


# -- shrinking -------------------------------------------------------------------------------------


def test_a_counterexample_is_as_small_as_it_gets() -> None:
    playing = partial(play_ring, resolve=lambda ids, _: ids)
    failure = next(filter(None, (attempt(playing, broken, PLAIN.draw(s)) for s in range(60))))
    (one,) = shrink(failure, playing, broken).trial.workload.asked
    assert (len(one.prompt), one.new_tokens, one.arrives_ms, one.may_stop) == (1, 2, 0, False)


# -- the guard -------------------------------------------------------------------------------------


def test_what_goes_on_and_on_is_stopped_and_tracing_is_as_before() -> None:
    def quiet(*args: Any) -> None:
        return None

    before = sys.gettrace()
    try:
        sys.settrace(quiet)
        with pytest.raises(TooLong), bounded():
            ENDLESS(1, 1, 1)
        assert sys.gettrace() is quiet
        with bounded():
            with bounded():
                sum(range(1000))
            assert guard._clocks[-1].since is not None, "their seconds still count"
        assert sys.gettrace() is quiet and guard._clocks[-1].since is None
    finally:
        sys.settrace(before)


STUBBORN = """
import signal, sys
from minisched.learn import guard

calls, really = 0, guard.monotonic

def interrupted():  # Ctrl-C, while the guard looks at the clock
    global calls
    calls += 1
    if calls == 3000:
        raise KeyboardInterrupt
    return really()

how, *all_lines = sys.argv[1:]
if how == "ctrl_c":
    guard.monotonic = interrupted
for lines in all_lines:
    calls, names = 0, {}
    exec(compile(lines, "<lines>", "exec"), names)
    try:
        with guard.bounded():
            names["stubborn"]()
    except guard.TooLong:
        print("stopped")
"""
SPIN = "\n        while True: pass"
CATCHING = [
    f"    try:{SPIN}\n    except BaseException: pass\n    while True: pass",
    f"    kept = []\n    while True:\n      try:{SPIN}\n"
    "      except BaseException as error: kept.append(error)",
    "    def down(): down()\n    while True:\n      try: down()\n"
    "      except (RecursionError, KeyboardInterrupt): pass",
]


@pytest.mark.parametrize("how", ["alone", "ctrl_c"])
def test_what_strikes_inside_the_guard_does_not_end_it(how: str) -> None:
    """Python forgets what traces it when that raises; these lines catch all, and go on."""
    catching = [f"def stubborn():\n{body}\n" for body in CATCHING]
    command = [sys.executable, "-c", STUBBORN, how, *catching]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "stopped\n" * 3), done.stderr[-1000:]


def test_lines_that_sleep_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 s of theirs in the whole check, not in each of its runs."""
    turns: list[None] = []

    def sleeping(engine: Any) -> Any:
        yield from map(turns.append, SOLUTIONS[0][1](engine))

    monkeypatch.setattr("minisched.learn.guard.monotonic", lambda: float(len(turns)))
    verdict = learn.check_loop(sleeping)
    assert verdict.sentences[0].startswith("Your lines took 21 s in this check, and it stops there")
    assert len(turns) == 21


# -- runs, costs, tables -------------------------------------------------------------------------


@settings(max_examples=many(6, 100))
@given(st.integers(0, 12), st.integers(1, 12), st.integers(1, 9))
def test_a_losing_case_is_one_in_which_the_run_takes_longer(h: int, d: int, n: int) -> None:
    traces = [
        learn.simulate(loop, host_ms=h, device_ms=d, requests=1, new_tokens=n, stop=True).trace
        for loop in ("serial", "overlap")
    ]
    times = [trace.end for trace in traces]
    verdict = learn.check_losing_case(host_ms=h, device_ms=d, new_tokens=n)
    is_tie = not times[1] or abs(times[0] / times[1] - 1) < TIE
    assert verdict.passed == (times[1] > times[0] and not is_tie)
    assert ("a tie" in verdict.sentences[0]) == is_tie


def test_bad_costs_are_one_sentence() -> None:
    costs: dict[str, Any] = {"host_ms": 1, "device_ms": 1, "new_tokens": 2}
    for name, value in (("new_tokens", 0), ("host_ms", float("nan")), ("host_ms", "6")):
        verdict = learn.check_losing_case(**{**costs, name: value})
        assert not verdict.passed and f"{name} is {value!r}, but it must" in verdict.sentences[0]


def test_tables_and_figures_say_what_the_runs_and_their_marks_say() -> None:
    runs = [learn.simulate(loop) for loop in ("serial", "overlap")]
    shown = learn.table(*runs)
    assert shown.rows[1][5] == f"{runs[0].trace.end / runs[1].trace.end:.2f}×"
    assert [row[0] for row in shown.rows] == ["serial", "overlap"]
    assert all(word in repr(shown) and word in shown._repr_html_() for word in shown.rows[0])
    rows = learn.inputs_sent(learn.simulate("overlap", requests=2)).rows
    assert rows[0][2:] == ("the tokens of the prompts", "slots 1 and 2")
    for before, row in pairwise(rows):
        assert row[2] == before[3].replace("slots ", "-").replace("and ", "and -")
