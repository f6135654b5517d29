"""Which files are generated, and how, by the name of a topic or a diagram."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from ..trace import Trace
from . import native
from .puml_batches import to_batches
from .puml_sequence import to_sequence
from .puml_timing import to_timing
from .recipes import recipes, titles
from .svg import to_svg
from .views import draw

Files = dict[str, str]  # text by path in the repository


def makers() -> dict[str, Callable[[], Files]]:
    """What makes the files of each topic and each diagram."""
    return {
        **{topic: partial(topic_files, topic) for topic in recipes()},
        "batches": lambda: {"diagrams/batches.puml": to_batches()},
        "compare": compare_picture,
    }


@cache
def trace_of(topic: str) -> Trace:
    """The golden run of a topic; several pictures may show it."""
    return recipes()[topic].run()


def topic_files(topic: str) -> Files:
    """A topic's trace and view; where its run has a title, also its two diagrams."""
    trace = trace_of(topic)
    files = {
        f"traces/{topic}.json": native.to_json(trace),
        f"traces/{topic}.svg": draw(topic, trace),
    }
    if title := titles().get(topic):
        files[f"diagrams/{topic}.puml"] = to_timing(trace, title=title)
        files[f"diagrams/{topic}_sequence.puml"] = to_sequence(trace, title=title)
    return files


def compare_picture() -> Files:
    """The README's picture."""
    return {"diagrams/compare.svg": to_svg([trace_of("serial"), trace_of("overlap")])}
