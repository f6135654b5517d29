"""For a teacher: slides, lessons without solutions, the answers, the report, and the plan."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisched.learn.exercise import exercises
from minisched.learn.keep import keep, parts
from minisched.learn.slides import cells_of, without_solutions, write_slides

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
OFTEN = [path for path in LESSONS if path.stem in ("01_bubble", "14_into_an_engine")]
PLAN = (ROOT / "lessons" / "teaching.md").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """The start tags of a page, and the words of its headings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def check_slides(path: Path) -> None:
    """A slide for each heading but the solutions, with a picture of each cell that shows one."""
    text = path.read_text(encoding="utf-8")
    page = write_slides(path)
    tags = Tags(page).tags
    drawn = re.findall(r"^learn\.(?:view|timing)\(", without_solutions(text), re.M)
    heads = re.findall(r"^# ##? (.*)$", without_solutions(text), re.M)
    assert (
        tags.count("section") >= len(heads) == len({*heads}) and tags.count("img") >= len(drawn) > 0
    )
    assert "Solutions, and other ways" not in page and "<details>" not in page
    assert "http-equiv" not in page and 'src="http' not in page  # it needs no network


@pytest.mark.parametrize("path", OFTEN, ids=lambda path: path.stem)
def test_the_slides_of_a_lesson(path: Path) -> None:
    check_slides(path)


@pytest.mark.thorough
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_slides_of_every_lesson(path: Path) -> None:
    check_slides(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_without_solutions_has_all_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    short = without_solutions(text)
    assert "<details>" not in short and short != text
    code, other = (
        [cell for cell in cells_of(lesson) if cell.kind != "markdown"] for lesson in (text, short)
    )
    assert code == other
    assert "## In the real systems" in short


def test_the_answers_are_a_file_that_runs(cli: Any, tmp_path: Path) -> None:
    assert cli(f"learn --answers --folder {tmp_path}")[0] == 0
    assert list(parts(tmp_path / "answers.py")) == list(exercises())
    code, out, _ = cli(f"check --loop {tmp_path / 'answers.py'} --workloads 2")
    assert code == 0, out


def test_a_lesson_is_copied_without_solutions_and_as_slides(cli: Any, tmp_path: Path) -> None:
    assert cli(f"learn 0 --no-answers --folder {tmp_path}")[0] == 0
    assert "<details>" not in (tmp_path / "00_from_nothing.py").read_text(encoding="utf-8")
    assert cli(f"learn 0 --slides --folder {tmp_path}")[0] == 0
    assert "<section>" in (tmp_path / "00_from_nothing_slides.html").read_text(encoding="utf-8")


def test_a_template_repository_has_the_lessons_and_grades_what_is_kept(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli(f"learn --template --folder {tmp_path}")[0] == 0
    copies = sorted(tmp_path.glob("*_*.py"))
    assert [path.name for path in copies] == [path.name for path in LESSONS]
    assert not any("<details>" in path.read_text(encoding="utf-8") for path in copies)
    workflow = yaml.safe_load((tmp_path / ".github/workflows/grade.yml").read_text("utf-8"))
    runs = [step["run"] for step in workflow["jobs"]["grade"]["steps"] if "run" in step]
    (grade,) = (run for run in runs if run.startswith("minisched "))
    one = exercises()["input_ids"]
    assert "Kept in" in keep(one, one.lines(one.solution), tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    assert cli(grade.removeprefix("minisched "))[0] == 0 and (tmp_path / "report.html").exists()
    monkeypatch.setattr("minisched.cli.learn.find_spec", lambda name: name == "jupytext" or None)
    assert cli("learn 0 --folder .")[0] == 0
    assert "<details>" not in (tmp_path / "00_from_nothing.ipynb").read_text(encoding="utf-8")


def test_the_report_checks_every_answer_again(cli: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    for name in ("Device", "input_ids", "blocking_call"):
        one = exercises()[name]
        assert "Kept in" in keep(one, one.lines(one.solution), mine)
    code, out, _ = cli(f"learn --report --folder {tmp_path}")
    assert code == 0 and f"3 of {len(exercises())} exercises are right" in out
    edited = mine.read_text(encoding="utf-8").replace("seq.in_flight > 1", "seq.in_flight > 0")
    mine.write_text(edited, encoding="utf-8")
    assert cli(f"learn --report --folder {tmp_path}")[0] == 1
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<code>input_ids</code>" in page and page.count(">✓<") == 2 and page.count(">✗<") == 1
    code, _, err = cli(f"learn --report --folder {tmp_path / 'nothing'}")
    assert code == 2 and "has no answers" in err


def test_the_plan_has_each_lesson_once() -> None:
    found = re.findall(r"^\| \d+:\d\d \| (\d+)[ ,:]", PLAN, re.M)
    assert [int(number) for number in found] == list(range(len(LESSONS)))
