"""Every topic has its code, picture, laws and trace; what has no lesson or view is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisched.topics import TOPICS, parts

ROOT = Path(__file__).resolve().parents[1]

# Lessons and views come later. This list may only shrink: a part that exists must not stand here.
LACKING = {(topic, part) for topic in TOPICS for part in ("lesson", "view")}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_complete(topic: str) -> None:
    for part, pattern in parts(topic).items():
        there = any(ROOT.glob(pattern))
        assert there != ((topic, part) in LACKING), f"{topic}: {part} ({pattern})"
