"""Every topic has its code, picture, laws, trace and view; what has no lesson is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisched.topics import TOPICS, parts

ROOT = Path(__file__).resolve().parents[1]

# Lessons come later. This list may only shrink: a part that exists must not stand here.
LACKING = {(topic, "lesson") for topic in TOPICS}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_complete(topic: str) -> None:
    for part, pattern in parts(topic).items():
        there = any(ROOT.glob(pattern))
        assert there != ((topic, part) in LACKING), f"{topic}: {part} ({pattern})"


def test_every_view_belongs_to_a_topic() -> None:
    """A view is a module with a function ``view``; what views share has none."""
    views = {
        path.stem
        for path in (ROOT / "minisched" / "export" / "views").glob("*.py")
        if "\ndef view(trace: Trace) -> str:" in path.read_text(encoding="utf-8")
    }
    assert views == set(TOPICS)
