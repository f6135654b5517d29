"""Learn: a cell of a lesson, right and wrong, and what the learner takes home."""

import json
import re
from pathlib import Path

import jupytext
import pytest

from tests.doors.conftest import ROOT, Door, type_in

README = (ROOT / "README.md").read_text(encoding="utf-8")
(LINES,) = re.findall(r"## In Python\n\n```python\n(.*?)```", README, re.DOTALL)

CELL = '''
from collections import deque


def launch(engine, batch):
    """A helper of the same cell."""
    return engine.run_batch(batch)


def my_loop(engine):
    in_flight = deque()
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        pending = launch(engine, batch) if batch else None
        if in_flight:
            engine.process_batch_result(in_flight.popleft())
        elif not batch:
            engine.on_idle()
        if pending:
            in_flight.append(pending)
        yield batch


learn.check("my_loop", my_loop)
'''
WRONG = CELL.replace("        if in_flight:\n", "        if in_flight and batch:\n")


RUN = """
import json, nbclient, nbformat
book = nbformat.read("lesson.ipynb", 4)
nbclient.NotebookClient(book, timeout=120).execute()
print(json.dumps([str(cell.outputs) for cell in book.cells]))
"""


@pytest.fixture(scope="module")
def notebook(
    installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """Run a notebook in a fresh folder; give back the folder, and what its cells show."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = {
        "readme": LINES,
        "import": "from minisched import learn",
        "right": CELL,
        "wrong": WRONG,
    }
    text = "\n\n".join(f"# %%\n{source}" for source in cells.values())
    book = jupytext.writes(jupytext.reads(text, "py:percent"), "ipynb")
    (folder / "lesson.ipynb").write_text(book, "utf-8")
    (folder / "run.py").write_text(RUN, "utf-8")
    answer = type_in(folder, installed, "python run.py")
    assert answer.code == 0, answer.err
    return folder, dict(zip(cells, json.loads(answer.out), strict=True))


@pytest.mark.thorough
def test_a_right_answer_is_kept_as_a_file_that_runs(
    notebook: tuple[Path, dict[str, str]], installed: Path
) -> None:
    folder, shown = notebook
    assert "✓ Right" in shown["right"] and "Kept in `mine.py`: 1 of" in shown["right"]
    assert "import deque" in (folder / "mine.py").read_text(encoding="utf-8")
    answer = type_in(folder, installed, "minisched check --loop mine.py --workloads 1 --seed 9")
    assert answer.code == 0 and "No law broke" in answer.out


def test_a_wrong_answer_gets_the_law_and_is_not_kept(
    notebook: tuple[Path, dict[str, str]],
) -> None:
    folder, shown = notebook
    assert "Not yet" in shown["wrong"] and "ivelock" in shown["wrong"]
    assert "and batch" not in (folder / "mine.py").read_text(encoding="utf-8")


def test_a_cell_of_the_readme_shows_a_player(notebook: tuple[Path, dict[str, str]]) -> None:
    assert "<iframe" in notebook[1]["readme"]


def test_the_wheel_has_every_lesson_with_its_exercises(door: Door) -> None:
    lessons = json.loads(door("minisched learn --json").out)["lessons"]
    there = sorted(path.stem for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py"))
    assert [one["name"] for one in lessons] == there and all(one["exercises"] for one in lessons)
    answer = door("minisched learn --template --folder template")
    assert f"{len(there)} lessons, and the grader" in answer.out
