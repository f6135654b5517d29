"""Names of an untrusted trace or client reach terminals and pictures without control characters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Request
from minisched.core.text import printable
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.views import FORMS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.topics import TOPICS
from minisched.trace import native
from tests.support import tokens

NAME = "\x1b]0;t\x07\x1b[2J\x00\u202eb\r\uffff"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\uffff]")


@given(st.text())
def test_only_control_characters_are_written_out(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown and not UNSAFE.search(shown)
    assert shown.encode() is not None
    assert shown == text or re.search("[^\t\n -~\xa0-\u2029\u2070-\ud7ff\ue000-\ufffd]", text)
    assert printable("plain é 漢字 ✓\n\t") == "plain é 漢字 ✓\n\t"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every request's id is hostile."""
    reqs = [Request(f"{n}{NAME}", [n + 1, 2, 3], tokens(4)) for n in range(3)]
    run = run_loop("overlap", SimDevice(), HashModel(), reqs, cost=SIM_COST)
    assert not run.errors
    file = tmp_path_factory.mktemp("hostile") / "overlap.json"
    native.write(run.trace, file)
    return file


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("topic", [*TOPICS])
def test_no_picture_of_a_hostile_trace_holds_any(
    cli: Any, trace: Path, topic: str, form: str
) -> None:
    code, out, err = cli(f"view {topic} {trace} --form {form} --out -")
    assert not UNSAFE.search(out + err)
    assert code == 0 or "can't be shown" in err or "shown as" in err
    if code == 0 and form == "svg":
        ElementTree.fromstring(out)


@pytest.mark.parametrize("line", ["check {0}", "check {0} {0} --json", "stepper {0} --out s.html"])
def test_no_answer_about_a_hostile_trace_holds_any(cli: Any, trace: Path, line: str) -> None:
    _, out, err = cli(line.format(trace))
    assert not UNSAFE.search(out + err)


def test_no_message_about_a_hostile_name_holds_any(cli: Any) -> None:
    for line in (f"run --loop '{NAME[:7]}'", f"check 'no{NAME[:7]}.json'", f"replay 'x{NAME[:7]}'"):
        code, out, err = cli(line)
        assert code == 2 and not UNSAFE.search(out + err)
