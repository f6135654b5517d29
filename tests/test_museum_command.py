"""``minisched museum``: what it lists and shows, its JSON, its exit codes and its sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisched.cli import app, museum, museum_page
from minisched.export.offence_text import MARK
from minisched.museum import Exhibit, exhibits, refuted
from minisched.museum.form import to_html

EXHIBITS, REFUTED = exhibits(), refuted()
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs the command line and gives its exit code."""

    def run(*args: str) -> int:
        monkeypatch.setattr("sys.argv", ["minisched", "museum", *args])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0)

    yield run


def test_the_list_names_everything_by_chapter(command: Any, capsys: Capture) -> None:
    assert command("list") == 0
    said = capsys.readouterr().out
    assert all(f"  {item.name}: " in said for item in (*EXHIBITS, *REFUTED))
    headings = [line for line in said.splitlines() if line and not line.startswith(" ")]
    assert headings[0] == "Who owns memory" and headings[-1] == "Refuted"


def test_a_suspicion_that_was_confirmed_is_called_so(command: Any, capsys: Capture) -> None:
    assert command("list") == 0
    said = " ".join(capsys.readouterr().out.split())
    confirmed = {item.name for item in EXHIBITS if item.suspected_at}
    assert confirmed == {"abort_in_flight", "row_reused_in_flight", "zombie_token_replied"}
    for item in EXHIBITS:
        where = ", ".join(item.references)
        assert (f"{where} (a suspicion, confirmed)" in said) == bool(item.suspected_at), item.name
        assert not item.suspected_at or item.suspected_at in item.references


def test_all_are_tried_and_the_object_says_what_stands(command: Any, capsys: Capture) -> None:
    assert command("run", "--all", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [bug["name"] for bug in told["bugs"]] == [item.name for item in EXHIBITS]
    for bug, item in zip(told["bugs"], EXHIBITS, strict=True):
        assert bug["caught_by"] == item.law and bug["healthy_passes"] is True
        assert bug["suspected_at"] == (item.suspected_at or None)
        assert bug["reference"] == ", ".join(item.references) and len(bug["links"]) > 0
        example, requests = bug["example"], item.case.workload.requests
        assert [it["prompt_len"] for it in example["requests"]] == [len(r.prompt) for r in requests]
        assert [it["limit"] for it in example["requests"]] == [
            request.params.max_new_tokens for request in requests
        ]
        assert example["sizes"]["kv_tokens"] == item.case.workload.config.kv_tokens
        assert example["loop"] == item.case.loop and example["relay"] == item.case.relay
        assert example["arrivals"] == item.case.workload.arrivals
    assert [it["name"] for it in told["refuted"]] == [item.name for item in REFUTED]
    assert all(it["nothing_broken"] for it in told["refuted"])


def test_the_list_as_json_has_been_tried_too(command: Any, capsys: Capture) -> None:
    assert command("list", "--json") == 0
    assert all(bug["caught_by"] for bug in json.loads(capsys.readouterr().out)["bugs"])


def test_all_are_tried_and_a_table_sums_up(command: Any, capsys: Capture) -> None:
    assert command("run", "--all") == 0
    said = capsys.readouterr().out
    assert f"{len(EXHIBITS)} of {len(EXHIBITS)} bugs are caught" in said
    assert f"{len(REFUTED)} of {len(REFUTED)} refuted suspicions break nothing." in said


def test_one_is_shown_with_its_offence_and_its_fix(command: Any, capsys: Capture) -> None:
    item = EXHIBITS[0]
    assert command("run", item.name) == 0
    said = capsys.readouterr().out
    for expected in (item.title, MARK, "every law holds", f"{item.law}: ", "The fix here", "@@ "):
        assert expected in said
    assert f"minisched museum run {item.name} --out {item.name}.svg" in said
    assert command("run", REFUTED[0].name) == 0
    assert "every law holds" in capsys.readouterr().out


def test_one_as_json(command: Any, capsys: Capture) -> None:
    assert command("run", EXHIBITS[1].name, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [bug["name"] for bug in told["bugs"]] == [EXHIBITS[1].name] and told["refuted"] == []


def test_it_is_drawn_as_svg_and_as_a_page(command: Any, capsys: Capture, tmp_path: Path) -> None:
    item = EXHIBITS[0]
    picture, page = tmp_path / "new" / "a.svg", tmp_path / "a.html"
    assert command("run", item.name, "--out", str(picture)) == 0
    assert command("run", item.name, "--out", str(page)) == 0
    assert f"Drawn in {picture}." in (said := capsys.readouterr().out) and str(page) in said
    assert picture.read_text(encoding="utf-8").startswith("<svg ")
    shown = page.read_text(encoding="utf-8")
    assert shown == to_html(item) and picture.read_text(encoding="utf-8") in shown
    assert item.references[0] in shown and 'class="plus"' in shown


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["run", EXHIBITS[0].name[:-2]], f"did you mean {EXHIBITS[0].name}"),
        (["run", EXHIBITS[0].name.upper()], f"did you mean {EXHIBITS[0].name}"),
        (["run", "zzzz"], "the museum has no 'zzzz'; `museum list` names them all."),
        (["run"], "museum run takes the name of one exhibit, or --all."),
        (["run", EXHIBITS[0].name, "--all"], "museum run takes the name of one exhibit, or --all."),
        (["run", "--all", "--out", "a.svg"], "--out draws one exhibit, so it needs its name."),
        (["run", EXHIBITS[0].name, "--out", "a.png"], "'a.png', but its name must end in .svg or"),
        (["run", EXHIBITS[0].name, "--out", "/proc/a.svg"], "/proc/a.svg can't be written: "),
        (["run", REFUTED[0].name if REFUTED else "", "--out", "a.svg"], "nothing went wrong that"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    command: Any, capsys: Capture, args: list[str], sentence: str
) -> None:
    assert command(*args) == 2
    said = capsys.readouterr()
    assert sentence in said.err and said.err.count("\n") == 1 and not said.out


def test_a_bug_that_is_not_caught_ends_with_1(
    command: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless: Exhibit = replace(EXHIBITS[0], edits=())
    monkeypatch.setattr(museum, "exhibits", lambda: (harmless, *EXHIBITS[1:3]))
    assert command("run", "--all", "--json") == 1
    told = json.loads(capsys.readouterr().out)["bugs"]
    assert [bug["caught_by"] for bug in told] == [None, *(it.law for it in EXHIBITS[1:3])]
    assert command("run", "--all") == 1
    assert "not caught" in capsys.readouterr().out


def test_a_healthy_run_that_is_not_green_ends_with_1(
    command: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = EXHIBITS[0]
    broken = replace(item, judge_by=lambda case: item.with_bug())
    monkeypatch.setattr(museum, "exhibits", lambda: (broken,))
    monkeypatch.setattr(museum, "refuted", lambda: ())
    assert command("run", "--all") == 1
    assert "fails" in capsys.readouterr().out
    assert museum_page.MARK == MARK
