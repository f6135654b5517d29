"""A topic's view, and its further parts: recorded events to pictures that show the idea at work.

``draw`` finds the topic's module, which has ``scene(trace) -> Scene``. A module with several
pictures has ``PARTS`` (``loop_parts.py``), the first of which is its view. A loop that is no topic,
a variant of one, has every loop's parts. Topics share their reading of steps (``steps``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from ...loops.design import LOOPS
from ...topics import TOPICS, view_of
from ...trace import Trace
from ..scene import Scene
from ..scene_puml import to_puml
from ..scene_svg import to_svg
from ..scene_text import COLUMNS, to_text
from .marks import NothingToShow

__all__ = ["FORMS", "NothingToShow", "draw", "parts_of"]

FORMS = ("svg", "puml", "text")


def draw(
    topic: str, trace: Trace, form: str = "svg", part: str = "", columns: int = COLUMNS
) -> str:
    """The view of a topic on a trace, as the text of an SVG, of a PlantUML diagram, or plain.

    ``topic`` may also be the name of any loop, as a trace has it: ``vllm_async``, ``overlap-pool``.
    ``part`` is one of ``parts_of(topic)``; without it, the first. ``columns`` is how wide a plain
    text may be.

    Raises:
        ValueError: there is no such topic, form or part, or there are less than 40 columns.
        NothingToShow: the trace lacks the events that the view needs.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; the forms are {', '.join(FORMS)}.")
    pictures = _pictures(topic)
    if part and part not in pictures:
        names = ", ".join(filter(None, pictures))
        known = f"its parts are {names}" if names else "it has one picture only"
        raise ValueError(f"topic {topic!r} has no part {part!r}; {known}.")
    scene = pictures[part or next(iter(pictures))](trace)
    if form == "text":
        return to_text(scene, columns)
    return to_puml(scene) if form == "puml" else to_svg(scene)


def parts_of(topic: str) -> tuple[str, ...]:
    """The names of a topic's pictures; none where it has only one.

    Raises:
        ValueError: there is no such topic.
    """
    return tuple(name for name in _pictures(topic) if name)


def _pictures(topic: str) -> dict[str, Callable[[Trace], Scene]]:
    """A topic's pictures; one that is the only one has no name."""
    name, topic = topic, topic if topic in TOPICS else kind_of_loop(topic)
    if not topic:
        raise ValueError(unknown(name))
    if topic not in TOPICS or view_of(topic) == "loop_parts":
        every: dict[str, Callable[[Trace], Scene]]
        every = import_module(".loop_parts", __name__).parts_of_loop(topic)
        return every
    module = import_module(f".{topic}", __name__)
    return dict(getattr(module, "PARTS", {"": module.scene}))


# -- The names under which a view is found: topics, loops, and the words that people try first -----

NEAR = {  # a word -> the topic that is about it
    "copy": "generation_batch_result",
    "copies": "generation_batch_result",
    "grammar": "grammar_manager",
    "pages": "page_allocator",
    "memory": "page_allocator",
    "kv": "page_allocator",
    "radix": "radix_cache",
    "prefix": "radix_cache",
    "tree": "radix_cache",
    "queue": "schedule_policy",
    "admission": "prefill",
    "budget": "prefill",
    "running": "decode",
    "chunked": "mixed_chunk",
    "ring": "future_map",
    "future": "future_map",
    "chain": "lazy_chain",
    "placeholder": "placeholder_fill",
    "thread": "overlap_thread",
}


def kind_of_loop(name: str) -> str:
    """The loop, or the topic, as which a trace of that name is drawn; empty: there is no such loop.

    A trace's name may have a relay behind it, ``overlap-pool``; pipelines are a topic together.
    """
    loop = name.partition("-")[0].partition(":")[0]
    if loop not in LOOPS:
        return ""
    return re.sub(r"^vllm_pp\d+$", "vllm_pp", loop)


def unknown(topic: str) -> str:
    """What to say where there is no such topic: the nearest, and all of them."""
    near = [NEAR[topic]] if topic in NEAR else get_close_matches(topic, [*TOPICS, *LOOPS], 1)
    hint = f"perhaps {near[0]} is meant; the" if near else "the"
    return f"unknown topic {topic!r}; {hint} topics are {', '.join(TOPICS)}."
