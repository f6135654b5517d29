"""The golden runs once more, for ``minisched bench mutation``: each does what it did when recorded.

What ``minisched diagrams --check`` compares as files is compared here run by run. Where a line of
the source stands does not count, as mutmut moves it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minisched.export import native
from minisched.export.recipes import recipes

TRACES = Path(__file__).resolve().parents[1] / "traces"


@pytest.mark.parametrize("topic", recipes())
def test_a_golden_run_does_what_it_did(topic: str) -> None:
    made = json.loads(native.to_json(recipes()[topic].run()))
    assert without_lines(made) == without_lines(json.loads(golden(topic).read_text()))


def golden(topic: str) -> Path:
    return TRACES / f"{topic}.json"


def without_lines(value: Any) -> Any:
    """A trace without the places in the source."""
    if isinstance(value, dict):
        return {key: without_lines(item) for key, item in value.items() if key != "line"}
    return [without_lines(item) for item in value] if isinstance(value, list) else value
