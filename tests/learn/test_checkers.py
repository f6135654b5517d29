"""The checkers of the lessons: right lines pass, wrong ones are told why, and nothing hangs."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched import learn
from minisched.checks.tokens.oracle import hash_oracle
from minisched.core import SamplingParams
from minisched.learn import guard
from minisched.learn.exercise import attempt, draw_trial, shrink
from minisched.learn.guard import TooLong, bounded
from minisched.learn.laws import Broken, broken
from minisched.learn.oracle import alone
from minisched.learn.ring_exercise import PLAIN, play_ring
from minisched.learn.ring_size_exercise import needed
from minisched.learn.simulate import TIE, VOCAB
from minisched.learn.trial import Trial
from minisched.learn.wording import ordinal
from minisched.learn.workload import STOPS, Shape
from tests.learn import solutions
from tests.learn.solutions import MISTAKES, SOLUTIONS
from tests.support import Picture, check_picture, many

seeds = st.integers(0, 10**6)

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


# -- the truth -------------------------------------------------------------------------------------


@settings(max_examples=many(10, 100))
@given(seeds)
def test_the_truth_is_the_oracle_of_the_tests(seed: int) -> None:
    for one in Shape().draw(seed).asked:
        stops = STOPS if one.may_stop else frozenset[int]()
        params = SamplingParams(max_new_tokens=one.new_tokens, stop_token_ids=stops)
        assert one.truth == hash_oracle(list(one.prompt), params, 0, VOCAB, frozenset()).tokens
        assert alone(one.prompt, 1, set(), VOCAB) == one.truth[:1]


@settings(max_examples=many(12, 150))
@given(seeds, st.integers(1, 6))
def test_the_first_wrong_token_is_found_at_its_step(seed: int, lost: int) -> None:
    """A ring that spoils one placeholder of one step: that step's token is the first wrong one."""
    calls, spoiled = [0], list[int]()

    def spoil(ids: list[int], token_ids_map: list[int]) -> list[int]:
        calls[0] += 1
        found = solutions.resolve(ids, token_ids_map)
        if calls[0] >= lost and not spoiled and min(ids) < 0:
            spoiled.append(calls[0])
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
    check_outline(trial, what)


def check_outline(trial: Trial, what: Broken) -> None:
    """The outlined boxes of the picture are those of the offending step on the device."""
    (figure,) = draw_trial(trial, what)
    picture = Picture(figure.svg)
    outlined = picture.shapes("rect", "wrong", wrong=str(what.step))
    ran = {
        str(item.id)
        for item in trial.trace.slices
        if item.step == what.step and item.lane != "host" and item.duration
    }
    boxes = [box for box in picture.shapes("rect", "box", id="*") if box["data-id"] in ran]
    assert len(boxes) == len(ran) > 0
    places = sorted((box["x"], box["width"]) for box in boxes)
    assert places == sorted((box["x"], box["width"]) for box in outlined)
    assert f"step {what.step}: {what.rid}'s token" in picture.words


@given(st.integers(1, 300), st.integers(2, 10**5), st.integers(1, 10**4))
def test_what_is_needed_is_less_than_the_published_size(m: int, context: int, chunk: int) -> None:
    assert m <= needed(m, context, chunk) <= solutions.limit(m, context, chunk)


# -- shrinking -------------------------------------------------------------------------------------


def test_a_counterexample_is_as_small_as_it_gets() -> None:
    playing = partial(play_ring, resolve=lambda ids, _: ids)
    failure = next(filter(None, (attempt(playing, broken, PLAIN.draw(s)) for s in range(60))))
    (one,) = shrink(failure, playing, broken).trial.workload.asked
    assert (len(one.prompt), one.new_tokens, one.arrives_ms, one.may_stop) == (1, 2, 0, False)


# -- the guard -------------------------------------------------------------------------------------

ENDLESS = solutions.lines("def endless():\n    while True: pass")  # it never gets to another line


def test_what_goes_on_and_on_is_stopped_and_tracing_is_as_before() -> None:
    def quiet(*args: Any) -> None:
        return None

    before = sys.gettrace()
    try:
        sys.settrace(quiet)
        with pytest.raises(TooLong), bounded():
            ENDLESS()
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
    """Python forgets what traces it when that raises; these lines catch all, and go on.

    That a library's hook was run by the garbage collector, and pytest kept what it raised, once
    made a checker hang.
    """
    lines = [f"def stubborn():\n{body}\n" for body in CATCHING]
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN, how, *lines], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n" * len(lines)), done.stderr[-1000:]


def test_lines_that_sleep_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 s of theirs in the whole check, not in each of its runs."""
    turns = 0
    my_loop = SOLUTIONS[0][1]

    def sleeping(engine: Any) -> Any:
        nonlocal turns
        for _ in my_loop(engine):
            turns += 1
            yield

    monkeypatch.setattr("minisched.learn.guard.monotonic", lambda: float(turns))
    verdict = learn.check_loop(sleeping)
    assert verdict.sentences[0].startswith("Your lines took 21 s in this check, and it stops there")
    assert turns == 21


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
