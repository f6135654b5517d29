"""Learn: a cell of a lesson, right and wrong, and what the learner takes home."""

import re
from collections.abc import Callable
from pathlib import Path

import jupytext
import pytest

from tests.doors.conftest import ROOT, Door, type_in

README = (ROOT / "README.md").read_text(encoding="utf-8")

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


Cells = Callable[..., str]
RUN = """
import nbclient, nbformat
book = nbformat.read("lesson.ipynb", 4)
nbclient.NotebookClient(book, timeout=120).execute()
shown = [output for cell in book.cells for output in cell.outputs]
print(*[str(output.get("data") or output.get("text")) for output in shown])
"""


@pytest.fixture
def cells(door: Door, installed: Path, tmp_path: Path) -> Cells:
    """Run cells as a notebook in the fresh folder; give back all that they show."""

    def run(*sources: str) -> str:
        notebook = jupytext.reads(
            "\n\n".join(f"# %%\n{source}" for source in sources), "py:percent"
        )
        (tmp_path / "lesson.ipynb").write_text(jupytext.writes(notebook, "ipynb"))
        (tmp_path / "run.py").write_text(RUN)
        answer = type_in(tmp_path, installed, "python run.py")
        assert answer.code == 0, answer.err
        return answer.out

    return run


def test_a_right_answer_is_kept_as_a_file_that_runs(
    cells: Cells, door: Door, tmp_path: Path
) -> None:
    shown = cells("from minisched import learn", CELL)
    assert "✓ Right" in shown and "Kept in `mine.py`: 1 of" in shown
    assert "import deque" in (tmp_path / "mine.py").read_text(encoding="utf-8")
    answer = door("minisched check --loop mine.py --workloads 1 --seed 8")
    assert answer.code == 0 and "No law broke" in answer.out


def test_a_wrong_answer_gets_the_law_and_is_not_kept(cells: Cells, tmp_path: Path) -> None:
    shown = cells("from minisched import learn", WRONG)
    assert "Not yet" in shown and "ivelock" in shown and not (tmp_path / "mine.py").exists()


def test_a_cell_of_the_readme_shows_a_player(cells: Cells, tmp_path: Path) -> None:
    lines = re.search(r"## In Python\n\n```python\n(.*?)```", README, re.DOTALL)
    assert lines is not None and "<iframe" in cells(lines[1])


def test_the_lines_of_the_readme_run_as_a_script(door: Door, tmp_path: Path) -> None:
    lines = re.search(r"## In Python\n\n```python\n(.*?)```", README, re.DOTALL)
    assert lines is not None
    (tmp_path / "three.py").write_text(lines[1])
    answer = door("python three.py")
    assert answer.code == 0 and "Identical: overlap gave every request the same" in answer.out
