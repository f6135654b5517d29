"""Every topic has its code, picture, laws, trace and view; what has no lesson is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisched.topics import TOPICS, parts, taught

ROOT = Path(__file__).resolve().parents[1]

# More lessons come later. This list may only shrink: a part that exists must not stand here.
TAUGHT = taught(ROOT / "lessons")
HAVE_LESSONS = {"serial", "overlap", "future_map", "mlx_async", "lazy_chain"}
LACKING = {(topic, "lesson") for topic in TOPICS if topic not in HAVE_LESSONS}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_complete(topic: str) -> None:
    for part, pattern in parts(topic).items():
        there = any(ROOT.glob(pattern)) or (part == "lesson" and topic in TAUGHT)
        assert there != ((topic, part) in LACKING), f"{topic}: {part} ({pattern})"


def test_a_lesson_teaches_its_own_topic_and_others_by_name() -> None:
    for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py"):
        assert TAUGHT.get(path.stem[3:]) == path.stem, f"{path.name} does not name its own topic"
    assert set(TAUGHT) <= set(TOPICS)


def test_every_view_belongs_to_a_topic() -> None:
    """A view is a module with a function ``view``; what views share has none."""
    views = {
        path.stem
        for path in (ROOT / "minisched" / "export" / "views").glob("*.py")
        if "\ndef view(trace: Trace) -> str:" in path.read_text(encoding="utf-8")
    }
    assert views == set(TOPICS)
