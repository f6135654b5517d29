"""The exercises, from their tables alone: the solution passes, and mistakes are told."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest

import minisched.learn.grade
from minisched import learn
from minisched.checks.laws import LAWS
from minisched.learn import keep
from minisched.learn.exercise import (
    DRAWN,
    Exercise,
    Function,
    Loop,
    Pure,
    exercises,
    with_arguments,
)
from minisched.learn.grade import ExerciseVerdict, grade
from minisched.loops.design import LOOPS
from minisched.museum.patch import function_at
from tests.learn.mistakes import MISTAKES

EXERCISES = exercises()
LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def start_of(one: Exercise) -> str:
    """What a learner begins with: the lesson's cell."""
    cells = (LESSONS / f"{one.lesson}.py").read_text("utf-8").split("\n# %%")
    cell = next(cell for cell in cells if f'\nlearn.check("{one.name}"' in cell)
    return cell.partition("\n")[2].partition("\nlearn.check(")[0]


def mistaken(one: Exercise) -> Iterator[tuple[str, str]]:
    """The text of each known mistake, and the words that it must be told with."""
    solution = dedent(one.solution)
    for old, new, says in MISTAKES[one.name]:
        assert old in solution, (one.name, old)
        yield solution.replace(old, new) if old else new, says


FIRST = {one.lesson: name for name, one in reversed(EXERCISES.items())}
PLAIN = {name for lesson, name in FIRST.items() if int(lesson[:2]) % 2} - {"capstone"}
"""Plain ``pytest`` takes the first exercise of every second lesson but 13, with one mistake."""
EACH_MISTAKE = [
    pytest.param(
        one,
        text,
        says,
        id=f"{one.name}-{at}",
        marks=[pytest.mark.thorough] * bool(at or one.name not in PLAIN),
    )
    for one in EXERCISES.values()
    for at, (text, says) in enumerate(mistaken(one))
]
each = pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=name, marks=[pytest.mark.thorough] * (name not in PLAIN))
        for name, one in EXERCISES.items()
    ],
)


GLOSSARY = (LESSONS / "site/docs/glossary.md").read_text(encoding="utf-8")
LAWS_EXPLAINED = dict(re.findall(r"^- `(\w+)`: (.+)$", GLOSSARY, re.M))
ENTRIES = {word for entry in re.findall(r"^## (.+)$", GLOSSARY, re.M) for word in entry.split()}
EVERYDAY = set((Path(__file__).parent / "everyday.txt").read_text(encoding="utf-8").split())
ENDINGS = (("", ""), ("s", ""), ("es", ""), ("ed", ""), ("ed", "e"), ("d", ""), ("ing", ""),
           ("ing", "e"), ("e", "ing"), ("ies", "y"), ("s", "ion"), ("ed", "ion"),
           ("", "ion"))  # fmt: skip


def unknown_words(sentences: Iterable[str]) -> set[str]:
    """Return the words that are neither everyday English, nor of the glossary, nor code."""
    known = {*EVERYDAY, *LAWS_EXPLAINED, *(word.lower() for word in ENTRIES)}
    text = re.sub(r"`[^`]*`|\[[^\]]*\]|regex '.*?'(?=[,;.])", " ", "\n".join(sentences))
    text = re.sub(r"\.(?=\s|$)", " ", text)
    words = {word.lower() for word in re.findall(r"(?<![\w'`.-])[A-Za-z][a-z]+(?![\w(.=])", text)}
    stems = {word: {word.removesuffix(end) + other for end, other in ENDINGS} for word in words}
    return {word for word in words if not stems[word] & known}


def test_the_glossary_explains_each_law_in_its_words() -> None:
    assert {name: law.says for name, law in LAWS.items()} == LAWS_EXPLAINED
    assert unknown_words(["The flux of step 2 was retracted"]) == {"flux"}


def check_verdict(verdict: ExerciseVerdict) -> None:
    """What a learner sees is short, well-formed, explained, and has no traceback in it.

    The longest sentence lists six requests, of which four share a prefix of 16 tokens.
    """
    assert unknown_words(verdict.sentences) == set(), "into the glossary, or everyday.txt?"
    assert all(len(said) < 750 and "Traceback" not in said for said in verdict.sentences)
    ElementTree.fromstring(verdict._repr_html_().replace("&times;", "×"))
    for figure in verdict.figures:
        assert ElementTree.fromstring(figure.svg).tag.endswith("svg")


@each
def test_the_solution_passes_and_what_the_cell_starts_with_does_not(one: Exercise) -> None:
    """That it passes says that its lines were called, in as many situations as ``reach``."""
    verdict = grade(one, one.lines(one.solution))
    assert verdict.passed, repr(verdict)
    check_verdict(verdict)
    assert one.why and one.why in verdict.sentences and len(one.hints) >= 2
    start = grade(one, one.lines(start_of(one)))
    assert not start.passed
    check_verdict(start)


@pytest.mark.parametrize(("one", "text", "says"), EACH_MISTAKE)
def test_a_known_mistake_is_told(
    one: Exercise, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the time goes into smaller cases; the first of them are enough for the words."""
    monkeypatch.setattr(minisched.learn.grade, "MOST_SHRINKS", 40)
    verdict = grade(one, one.lines(text))
    assert not verdict.passed and says in " ".join(verdict.sentences), repr(verdict)
    check_verdict(verdict)


# -- what is refused -------------------------------------------------------------------------------


def package_lines(one: Exercise) -> Any:
    """The package's own lines for a hole, where there are any."""
    if isinstance(one.hole, Loop):
        return LOOPS[one.hole.base.partition(":")[0]].run
    if isinstance(one.hole, Function):
        return function_at(one.hole.where)
    return Exercise.lines


@each
def test_the_packages_own_lines_are_refused(one: Exercise) -> None:
    verdict = grade(one, package_lines(one))
    assert not verdict.passed and "the package's own" in verdict.sentences[0]


def test_an_endless_loop_is_cut_off_with_a_clear_word() -> None:
    spin = EXERCISES["my_loop"]
    text = "def my_loop(engine):\n    while True:\n        pass\n    yield"
    verdict = grade(spin, spin.lines(text))
    assert "go on and on: it looks as if they would never end" in verdict.sentences[0]
    check_verdict(verdict)


SPIN = """while True:
        try:
            while True: pass
        except BaseException: pass"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (SPIN, "were not done after 0.5 s"),
        ("__import__('time').sleep(99)", "were not done after 0.5 s"),
        ("sum(range(10**12))", "were not done after 0.5 s"),
        ("__import__('os')._exit(0)", "ended Python itself"),
        ("print('here')\n    1 / 0", "ZeroDivisionError at your line `1 / 0`"),
    ],
)
def test_whatever_the_lines_do_the_check_comes_to_an_end(
    lines: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They catch every exception, sleep, or are in a call that does not come back."""
    monkeypatch.setattr("minisched.learn.guard.MOST_SECONDS", 0.5)
    one = EXERCISES["step_time"]
    text = f"def step_time(host, device, copy, in_flight):\n    {lines}\n    return host"
    verdict = learn.check("step_time", one.lines(text))
    assert not verdict.passed and said in verdict.sentences[0]
    assert ("here" in capsys.readouterr().out) == ("print" in lines)
    assert sys.gettrace() is None
    check_verdict(verdict)


NEVER_PROCESSES_THE_LAST = """
    def my_loop(engine):
        last = None
        while True:
            engine.recv_requests()
            batch = engine.get_next_batch_to_run()
            pending = engine.run_batch(batch) if batch else None
            if last and batch:
                engine.process_batch_result(last)
            elif not batch:
                engine.on_idle()
            last = pending or last
            yield
"""


def test_the_case_of_a_livelock_is_made_small() -> None:
    one = EXERCISES["my_loop"]
    verdict = grade(one, one.lines(NEVER_PROCESSES_THE_LAST))
    assert verdict.sentences[0].startswith("Step 1 was launched and never processed")
    assert verdict.sentences[1].startswith("The law: livelock.")
    assert verdict.sentences[1].endswith("at turn 0: prompt [13], max_new_tokens 1.")


@pytest.mark.parametrize("name", ["step_time", "rides"])
def test_of_all_wrong_draws_the_shortest_is_shown(name: str) -> None:
    """If the lines never end, it is the first one: each of them would take as long."""
    one = EXERCISES[name]
    solution, hole, random = one.lines(one.solution), one.hole, Random(0)
    assert isinstance(hole, Function | Pure) and hole.asked
    every = [with_arguments(solution, hole.asked(random)) for _ in range(DRAWN)]
    shortest = min(every, key=lambda said: (len(said), said))
    parameters = one.solution.partition("(")[2].partition("\n")[0]
    fails = one.lines(f"def {name}({parameters} return 1 / 0")
    assert hole.difference(fails, solution).startswith(f"{shortest}: ZeroDivisionError")
    ends_not = one.lines(f"def {name}({parameters}\n    while True: pass")
    assert hole.difference(ends_not, solution).startswith(f"{every[0]}: Your lines go on and on")
    assert shortest != every[0] and not hole.difference(solution, solution)


def test_the_packages_run_of_the_same_case_is_below_a_broken_law() -> None:
    one = EXERCISES["turn"]
    verdict = grade(one, one.lines(one.solution.replace("batch, pending)", "batch)")))
    assert verdict.sentences[2].startswith("The law: identity.")
    text = " ".join(ElementTree.fromstring(verdict.figures[0].svg).itertext())
    assert text.index("yours") < text.index("got 9, needs 5") < text.index("package's own lines")
    assert text.count("time in ms") == 1  # they have the same time


def test_a_title_has_no_backticks() -> None:
    one = EXERCISES["may_chain"]
    verdict = grade(one, one.lines(one.solution.replace("batch == running and ", "")))
    assert "`may_chain(" in verdict.sentences[1]
    assert "may_chain(" in verdict.figures[0].svg and "`" not in verdict.figures[0].svg


# -- what is kept, and hints -----------------------------------------------------------------------


def test_what_is_right_is_kept_and_hints_come_one_by_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = EXERCISES["generate_ahead"]
    assert not learn.check("generate_ahead", one.lines(start_of(one))).passed
    assert keep.parts() == {}
    verdict = learn.check("generate_ahead", one.lines(one.solution))
    assert f"Kept in `mine.py`: 1 of {len(EXERCISES)}" in verdict.sentences[-1]
    assert keep.parts() == {"generate_ahead": dedent(one.solution).strip()}
    learn.check("generate_ahead", one.lines(one.solution))
    names: dict[str, Any] = {}
    exec((tmp_path / "mine.py").read_text(encoding="utf-8"), names)
    assert callable(names["generate_ahead"])
    said = [learn.hint("generate_ahead") for _ in range(len(one.hints) + 2)]
    assert said[0].endswith(one.hints[0]) and said[-1] == said[-2] != said[-3]
