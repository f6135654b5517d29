"""Which files are generated, and how, by the name of a topic or a diagram."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import native
from .mlx_memory import draw_memory
from .pd_or_mixed_page import pd_or_mixed
from .pictures import drawings, pictures
from .pipelines_table import pipelines_table
from .puml_batches import to_batches
from .puml_sequence import to_sequence
from .puml_timing import to_timing
from .recipes import recipes, titles, trace_of
from .rules_page import rules_page
from .svg import to_svg
from .thread_or_stream import thread_or_stream
from .three_way import to_three_way
from .views import draw, parts_of

Files = dict[str, str]  # text by path in the repository


def makers() -> dict[str, Callable[[], Files]]:
    """What makes the files of each topic and each diagram."""
    return {
        **{name: partial(picture_file, name) for name in pictures()},
        **{topic: partial(topic_files, topic) for topic in recipes()},
        **{name: partial(drawing_file, name) for name in drawings()},
        "batches": lambda: {"diagrams/batches.puml": to_batches()},
        "compare": compare_picture,
        "async_scheduling_three_way_compare": written_comparison,
        "mindie_pipeline_refactor": lambda: {
            "diagrams/mindie_pipeline_refactor.md": pipelines_table()
        },
        "pd_or_mixed": lambda: {"diagrams/pd_or_mixed.md": pd_or_mixed()},
        "rules": lambda: {"diagrams/rules.md": rules_page()},
        "thread_or_stream": lambda: {"diagrams/thread_or_stream.md": thread_or_stream()},
    }


def measured() -> dict[str, Callable[[], Files]]:
    """What is measured on a machine: drawn when it is named, and never checked.

    A maker raises ValueError where this machine lacks what is to be measured.
    """
    return {"mlx_memory": lambda: {"traces/mlx_memory.svg": draw_memory()}}


def topic_files(topic: str) -> Files:
    """A topic's trace and view, with further parts of it; its diagram if it has one; where its run
    has a title, two.
    """
    trace = trace_of(topic)
    files = {
        f"traces/{topic}.json": native.to_json(trace),
        f"traces/{topic}.svg": draw(topic, trace),
    }
    for part in parts_of(topic)[1:]:
        files[f"traces/{topic}_{part}.svg"] = draw(topic, trace, part=part)
    if topic in pictures():
        files |= picture_file(topic)
    if title := titles().get(topic):
        files[f"diagrams/{topic}.puml"] = to_timing(trace, title=title)
        files[f"diagrams/{topic}_sequence.puml"] = to_sequence(trace, title=title, has_links=True)
    return files


def picture_file(name: str) -> Files:
    """A diagram that shows a design, or several."""
    return {f"diagrams/{name}.puml": pictures()[name]()}


def drawing_file(name: str) -> Files:
    """A drawing of a run that is no topic's view."""
    return {f"traces/{name}.svg": drawings()[name]()}


def compare_picture() -> Files:
    """The README's picture."""
    return {"diagrams/compare.svg": to_svg([trace_of("serial"), trace_of("overlap")])}


def written_comparison() -> Files:
    """The designs side by side, in words and figures."""
    return {"diagrams/async_scheduling_three_way_compare.md": to_three_way()}
