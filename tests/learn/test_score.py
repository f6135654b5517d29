"""The score of a loop, and the leaderboard: each row is recomputed from its file."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import minisched as ms
from minisched.learn.exercises.l13_capstone import SOLUTION
from minisched.learn.score import (
    WORKLOADS,
    ScoreFigures,
    best_of,
    entries,
    leaderboard_cells,
    points,
    score,
)
from minisched.own_loops import known

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "lessons" / "leaderboard.md"
ENTRIES = entries(BOARD.read_text(encoding="utf-8"))
FILES = sorted((ROOT / "lessons" / "leaderboard").glob("*.py"))


def loop_of(name: str) -> str:
    """Return an entry as a command line names it: its file, or a loop of the package."""
    file = ROOT / "lessons" / "leaderboard" / f"{name}.py"
    return str(file) if file in FILES else name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_the_figures_of_its_row(name: str) -> None:
    with known([loop_of(name)]) as (loop,):
        assert f" | {leaderboard_cells(score(loop))}" == f" | {' | '.join(ENTRIES[name][1:])}"


def test_the_board_has_every_file_and_the_best_entry_first() -> None:
    assert {path.stem for path in FILES} < ENTRIES.keys() > {"serial", "overlap"}
    each = [float(cells[-1]) for cells in ENTRIES.values()]
    assert each == sorted(each, reverse=True)
    assert best_of(BOARD.read_text(encoding="utf-8"))[0] == next(iter(ENTRIES))
    assert ENTRIES["serial"][-1] == "100.0"


@pytest.mark.thorough
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_entry_keeps_the_laws_on_random_workloads(path: Path) -> None:
    checked = ms.check(str(path), workloads=20, jobs=1)
    assert checked.tally is not None and not checked.tally.first, repr(checked)


def test_the_entry_of_lesson_13_is_its_solution() -> None:
    text = (ROOT / "lessons" / "leaderboard" / "capstone.py").read_text(encoding="utf-8")
    solution, _, _ = dedent(SOLUTION).partition("capstone = ")
    assert text.endswith(f"\n\n{solution.strip()}\n")


def test_points_grow_with_speed_and_with_shorter_pauses() -> None:
    (name, *_), ms_ = WORKLOADS, 1_000_000
    serial = points(name, ScoreFigures(1075 * ms_, 0, 0, 265 * ms_))
    assert 99 < serial < 101
    assert points(name, ScoreFigures(1075 * ms_, 0, 0, 265 * ms_ // 4)) == pytest.approx(2 * serial)
    assert points(name, ScoreFigures(1075 * ms_ // 4, 0, 0, 265 * ms_)) == pytest.approx(2 * serial)


def test_a_loop_that_breaks_a_law_has_no_score(cli: Any, tmp_path: Path) -> None:
    text = (ROOT / "lessons" / "leaderboard" / "capstone.py").read_text(encoding="utf-8")
    line = "            engine.process_batch_result(last)\n"
    assert text.count(line) == 1
    mine = tmp_path / "mine.py"
    mine.write_text(text.replace(line, 2 * line), encoding="utf-8")
    code, out, _ = cli(f"learn score {mine}")
    assert code == 1 and out.startswith("✗ No score. document: ")


def test_the_score_of_a_file_stands_next_to_serial_overlap_and_the_best(cli: Any) -> None:
    file = ROOT / "lessons" / "leaderboard" / "capstone.py"
    code, out, _ = cli(f"learn score {file}")
    best = next(iter(ENTRIES))
    assert code == 0 and f"best: {best}" in out and "serial has 100.0, overlap has" in out
    assert out.rstrip().endswith(" | ".join(ENTRIES["capstone"][1:]))


def test_the_score_in_json(cli: Any) -> None:
    file = ROOT / "lessons" / "leaderboard" / "capstone.py"
    code, out, _ = cli(f"learn score {file} --json")
    said = json.loads(out)
    assert code == 0 and said["points"] == float(ENTRIES["capstone"][-1])
    assert (
        said["best"]["name"] == next(iter(ENTRIES)) and said["workloads"].keys() == WORKLOADS.keys()
    )


def test_what_cannot_be_scored_gets_a_sentence(cli: Any, tmp_path: Path) -> None:
    assert cli("learn 3 mine.py") == (
        2, "", "minisched: mine.py needs score before it: minisched learn score mine.py.\n"
    )  # fmt: skip
    code, _, err = cli(f"learn score --folder {tmp_path}")
    assert code == 2 and "mine.py can't be read" in err
