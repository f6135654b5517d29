"""From a right answer to ``mine.py``, and from there to ``minisched check`` in a fresh Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from minisched.learn import keep
from minisched.learn.exercise import Exercise, Loop, exercises
from minisched.learn.grade import grade

EXERCISES = exercises()
UNLIKE = ("generate_ahead", "my_loop", "limit", "race", "capstone")  # imports, helpers, two loops
CHECK = """
import sys, mine
from minisched import learn
from minisched.learn import guard
guard.MOST_SECONDS = 600.0  # of a busy machine
verdict = learn.check(sys.argv[1], getattr(mine, sys.argv[1]))
print(verdict)
sys.exit(not verdict.passed or "Kept in `mine.py`" not in verdict.sentences[-1])
"""


@pytest.fixture(autouse=True)
def in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kept(name: str, text: str) -> str:
    """What is said of keeping this answer."""
    one = EXERCISES[name]
    return keep.keep(one, one.lines(text))


def python(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, check=False, encoding="utf-8"
    )


def checked(loop: str) -> Any:
    """What ``minisched check --loop`` finds on a workload on which a right loop holds, as JSON."""
    line = ("-m", "minisched", "check", "--loop", loop, "--workloads", "1", "--seed", "9", "--json")
    done = python(*line)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def is_a_whole_loop(one: Exercise) -> bool:
    """Whether ``minisched check`` takes the answer: it is more than a turn, and needs no depth."""
    return isinstance(one.hole, Loop) and one.name not in ("turn", "batch_queue_loop")


@pytest.mark.parametrize("name", UNLIKE)
def test_the_solution_goes_to_mine_py_and_is_checked_there(name: str) -> None:
    one = EXERCISES[name]
    assert (
        kept(one.name, one.solution) == f"Kept in `mine.py`: 1 of {len(EXERCISES)} exercises right."
    )
    if not is_a_whole_loop(one):
        done = python("-c", CHECK, one.name)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    found = checked("mine.py")
    assert found["cases"] == 1 and not found["failures"]


WITH_HELPERS = """
    from collections import deque
    from minisched import learn


    def oldest(queue):
        return queue.popleft()


    # The loop of lesson 1.
    def my_loop(engine):
        queue = deque()
        while True:
            engine.recv_requests()
            batch = engine.get_next_batch_to_run()
            if batch:
                queue.append(engine.run_batch(batch))
            if queue and (len(queue) == 2 or not batch):
                engine.process_batch_result(oldest(queue))
            elif not batch:
                engine.on_idle()
            yield


    verdict = learn.check("my_loop", my_loop)
"""


@pytest.mark.thorough
def test_imports_helpers_and_comments_of_the_cell_are_kept_and_the_check_is_not() -> None:
    assert kept("my_loop", WITH_HELPERS).startswith("Kept")
    text = keep.parts()["my_loop"]
    assert (
        text
        == dedent(WITH_HELPERS)
        .strip()
        .removesuffix('verdict = learn.check("my_loop", my_loop)')
        .strip()
    )
    assert python("-c", "from mine import my_loop, oldest").returncode == 0


def test_all_answers_live_in_one_file() -> None:
    """No helper of one is another thing in a second one, and ``loop`` is the capstone's."""
    cells = {name: keep.cell_of(name, one.lines(one.solution)) for name, one in EXERCISES.items()}
    assert len(cells) == 43
    assert not [name for name in cells if keep.trouble_of_names(name, cells)]
    Path("mine.py").write_text(keep.text_of(cells), encoding="utf-8")
    assert list(keep.parts()) == list(EXERCISES)
    assert checked("mine.py")["cases"] == 1


@pytest.mark.thorough
def test_another_answer_takes_the_place_of_the_one_before() -> None:
    kept("my_loop", WITH_HELPERS)
    kept("limit", EXERCISES["limit"].solution)
    assert kept("my_loop", EXERCISES["my_loop"].solution).startswith("Kept in `mine.py`: 2 of")
    assert list(keep.parts()) == ["my_loop", "limit"]
    assert "popleft" not in Path("mine.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def limit(m, n, c):\n    return m * (3 + ceil(n / c))",
         "this cell uses `ceil`, which is defined in another one"),
        ("def limit(m, n, c):\n    return pages(m)\n\ndef f(pages): return [it for it in pages]",
         "this cell uses `pages`"),
        ("def oldest(a, b):\n    return a\n\ndef limit(m, n, c):\n    return oldest(m, n)",
         "`oldest` is already another thing in your `my_loop`"),
        ("import os\nos.environ['NOWHERE']\ndef limit(m, n, c):\n    return 9",
         "the file stops with KeyError: 'NOWHERE'."),
        ("import nowhere_at_all\ndef limit(m, n, c):\n    return 9",
         "the file stops with ModuleNotFoundError: No module named 'nowhere_at_all'."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("platform", ["", "emscripten"])
def test_a_cell_that_could_not_run_there_is_not_kept(
    text: str, said: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an import from another cell, a helper's name that is taken, and an error of the file."""
    kept("my_loop", "def oldest(queue): ...\n\ndef my_loop(engine): ...")
    before = Path("mine.py").read_text(encoding="utf-8")
    given: dict[str, Any] = {}
    one = EXERCISES["limit"]
    monkeypatch.setattr(one.__class__, "lines", lines_of_a_notebook(given))
    if platform:  # a page has no other process
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delattr(subprocess, "run")
    assert keep.keep(one, one.lines(text)).startswith(f"Not kept in `mine.py`: {said}")
    assert Path("mine.py").read_text(encoding="utf-8") == before


def lines_of_a_notebook(names: dict[str, Any]) -> Any:
    """``Exercise.lines`` where other cells have bound and imported what this one lacks."""
    from os import environ
    from unittest.mock import patch

    def lines(one: Exercise, text: str) -> Any:
        import linecache

        linecache.cache["<a cell>"] = len(text), None, text.splitlines(keepends=True), "<a cell>"
        with patch.dict(environ, NOWHERE=""), patch.dict(sys.modules, nowhere_at_all=sys):
            exec(compile(text, "<a cell>", "exec"), names)
        return names[one.name]

    return lines


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").mkdir()
    assert kept("limit", EXERCISES["limit"].solution).startswith("Not kept in `mine.py`: ")


RAISES = """
    class Mine:
        def receive(self, req):
            raise ZeroDivisionError("my class decides")

        ended = next_batch = receive


    def turns(engine):
        while True:
            engine.recv_requests()
            yield


    capstone = Mine, turns
"""


def test_a_class_by_another_name_decides_and_never_the_packages_own() -> None:
    whole = EXERCISES["capstone"].solution
    assert kept("capstone", whole.replace("Scheduler", "Mine").replace("loop", "turns")).startswith(
        "Kept"
    )
    assert "\nScheduler, loop = capstone\n" in Path("mine.py").read_text(encoding="utf-8")
    kept("capstone", RAISES)
    assert "my class decides" in json.dumps(checked("mine.py")["failures"])


@pytest.mark.parametrize(
    ("capstone", "said"),
    [
        ("Scheduler(), loop", "is of type Scheduler, but it must be a class"),
        ("(lambda: Scheduler()), loop", "is of type function, but it must be a class"),
        ("Scheduler", "must be 2 things: a class, and a loop"),
        ("loop, Scheduler", "is of type function, but it must be a class"),
    ],
)
def test_no_class_is_refused_in_a_sentence(capstone: str, said: str) -> None:
    one = EXERCISES["capstone"]
    text = one.solution.replace("capstone = Scheduler, loop", f"capstone = {capstone}")
    verdict = grade(one, one.lines(text))
    assert not verdict.passed and said in verdict.sentences[0]


def test_an_answer_from_mine_py_itself_is_its_section_again() -> None:
    """A learner goes on in an editor: ``from mine import limit; learn.check("limit", limit)``."""
    for name in ("my_loop", "limit", "order"):
        kept(name, EXERCISES[name].solution)
    before = Path("mine.py").read_text(encoding="utf-8")
    done = python("-c", CHECK, "limit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path("mine.py").read_text(encoding="utf-8") == before
