"""``minisched learn``, and a loop in a file for ``minisched check``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from minisched.learn.exercise import exercises
from minisched.learn.grade import check
from minisched.learn.keep import keep

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(path.stem for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py"))


def test_it_shows_what_is_right_and_names_the_next_lesson(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Device", "generate_tokens", "generate_ahead", "losing_costs"):
        assert check(name, exercises()[name].lines(exercises()[name].solution)).passed
    code, out, _ = cli("learn --no-open --folder .")
    assert code == 0 and all(name in out for name in LESSONS)
    assert "→  01_bubble" in out and "3 of 3" in out and "1 of 3" in out
    said = json.loads(cli("learn --json --folder .")[1])
    assert said["next"] == "01_bubble" and [one["name"] for one in said["lessons"]] == LESSONS
    code, _, err = cli("learn 77")
    there = ", ".join(str(int(name[:2])) for name in LESSONS)
    assert (code, err) == (2, f"minisched: there is no lesson 77; there are {there}, and score.\n")


def test_a_lesson_is_copied_once_and_opened(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(subprocess, "call", lambda line, cwd: opened.append((line, cwd)) or 0)
    monkeypatch.setattr("minisched.cli.learn.find_spec", lambda name: name != "jupytext" or None)
    assert cli(f"learn 1 --folder {tmp_path}")[0] == 0
    copy = tmp_path / "01_bubble.py"
    assert opened[0][0][1:] == ["-m", "jupyterlab", copy.name] and opened[0][1] == tmp_path
    copy.write_text("mine", encoding="utf-8")
    monkeypatch.setattr("minisched.cli.learn.find_spec", lambda name: None)
    code, out, _ = cli(f"learn 1 --folder {tmp_path}")
    assert code == 0 and len(opened) == 1 and copy.read_text(encoding="utf-8") == "mine"
    assert "pip install 'minisched[lessons]'" in out and "colab" in out


def test_a_loop_in_a_file_is_held_against_the_laws(cli: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    loop, whole = (exercises()[name].solution for name in ("my_loop", "capstone"))
    lines = [line[12:] for line in loop.splitlines()]
    mine.write_text("\n".join([*lines, whole]), encoding="utf-8")
    code, out, _ = cli(f"check --loop {mine}:my_loop --workloads 1 --seed 9")
    assert code == 0 and "? No law broke in 1 case, but nothing happened that " in out
    code, out, _ = cli(f"check --loop {mine} --workloads 4 --json")
    assert code == 0, json.loads(out)["failures"]
    code, _, err = cli(f"check --loop {mine}:other")
    assert (code, err) == (2, f"minisched: {mine} has no loop 'other'; it has my_loop, loop.\n")
    mine.write_text("1 / 0", encoding="utf-8")
    code, _, err = cli(f"check --loop {mine}")
    assert (code, err) == (
        2,
        f"minisched: {mine} stops with ZeroDivisionError at your line `1 / 0`: division by zero.\n",
    )
    assert cli("check --loop nobody.py")[0] == 2


def kept_capstone(folder: Path) -> Path:
    """The file that the capstone's right answer leaves."""
    one, mine = exercises()["capstone"], folder / "mine.py"
    assert "Kept in" in keep(one, one.lines(one.solution), mine)
    return mine


def test_a_kept_capstone_holds_the_laws_for_requests_of_any_form(cli: Any, tmp_path: Path) -> None:
    """Seed 192 draws a request with a list as its id."""
    line = f"check --loop {kept_capstone(tmp_path)} --workloads 1 --seed 192"
    assert "No law broke in 1 case" in cli(line)[1]


def same_tokens(cli: Any, line: str) -> bool:
    """Whether the learner's loop gave every request the tokens of the serial one."""
    code, out, err = cli(f"{line} --json")
    assert code == 0, err
    runs = json.loads(out)
    assert [run["loop"] for run in runs["runs"]] == ["serial", "loop"]
    return bool(runs["identical"])


def test_a_kept_capstone_serves_on_a_thread(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"compare --loops {kept_capstone(tmp_path)} --device thread --requests 4"
    assert same_tokens(cli, f"{line} --max-new-tokens 6")


@pytest.mark.thorough
def test_a_kept_capstone_serves_smollm2(
    cli: Any, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = kept_capstone(tmp_path)
    real = f"--device thread --model {smollm2}"
    assert same_tokens(cli, f"compare --loops {mine} {real} --requests 2 --max-new-tokens 6")
    line = f"run --loop {mine} {real} --chat --prompt Hello --max-new-tokens 6"
    code, out, _ = cli(line)
    assert code == 0 and "6 tokens in 6 steps of the loop" in out


def test_a_lesson_in_chinese(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minisched.cli.learn.find_spec", lambda name: None)
    assert cli(f"learn 1 --lang zh --folder {tmp_path}")[0] == 0
    assert "气泡" in (tmp_path / "01_bubble_zh.py").read_text(encoding="utf-8")
    code, _, err = cli(f"learn 9 --lang zh --folder {tmp_path}")
    assert code == 2 and "lesson 9 is not in zh; the lessons 0, 1, 2, 3 are" in err
    assert cli("learn 1 --lang fr")[2] == ("minisched: --lang is 'fr', but it must be en or zh.\n")
