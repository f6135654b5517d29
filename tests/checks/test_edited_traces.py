"""A file that no run could have written is found or refused; a few edits nothing can tell."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from minisched.checking import check_runs
from minisched.checks.answers import Recorded
from minisched.checks.reading import read_recorded
from minisched.recipes import RECIPES, trace_of
from minisched.trace import native
from tests.checks.edits import EDITS, SILENT
from tests.support import every


@cache
def good(topic: str) -> str:
    return native.to_json(trace_of(topic))


@cache
def read(topic: str) -> Recorded:
    """The good trace, read from its file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "good.json"
        path.write_text(good(topic), "utf-8")
        return read_recorded(path)


def verdict(folder: Path, topic: str, text: str) -> str:
    """``ok``, ``found`` or ``refused``: the answer for a file beside the good one."""
    edited = folder / "edited.json"
    edited.write_text(text, "utf-8")
    try:
        found = check_runs([read(topic), read_recorded(edited)])
    except ValueError as error:
        assert "\n" not in str(error).strip(), error
        return "refused"
    return "ok" if found.holds else "found"


@pytest.mark.parametrize("name", every(2, EDITS))
def test_an_edit_is_found_or_refused(name: str, tmp_path: Path) -> None:
    topic, change = EDITS[name]
    data: Any = json.loads(good(topic))
    before = json.dumps(data)
    text = change(data) or json.dumps(data)
    assert text != before, "the edit changes nothing"
    said = verdict(tmp_path, topic, text)
    assert (said == "ok") == (name in SILENT), said


def test_the_list_is_long_and_its_exceptions_are_few() -> None:
    assert len(EDITS) >= 120
    assert SILENT.keys() <= EDITS.keys() and len(SILENT) <= len(EDITS) / 20
    assert len(Counter(topic for topic, _ in EDITS.values())) >= 8


@pytest.mark.parametrize("topic", sorted(RECIPES))
def test_a_good_trace_is_never_accused(topic: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, topic, good(topic)) == "ok"
