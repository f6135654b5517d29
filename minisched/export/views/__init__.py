"""One view a topic: recorded events to a picture that shows the idea at work.

``draw`` finds the topic's module; each has ``view(trace) -> str``, the text of an SVG. Views share
their page (``page``), scales (``axes``), looks (``look``) and their reading of steps (``steps``).
"""

from __future__ import annotations

from importlib import import_module

from ...topics import TOPICS
from ...trace import Trace
from .marks import NothingToShow

__all__ = ["NothingToShow", "draw"]


def draw(topic: str, trace: Trace) -> str:
    """The view of a topic on a trace, as the text of an SVG.

    Raises:
        ValueError: there is no such topic.
        NothingToShow: the trace lacks the events that the view needs.
    """
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}; the topics are {', '.join(TOPICS)}.")
    svg: str = import_module(f".{topic}", __name__).view(trace)
    return svg
