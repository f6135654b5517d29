"""A topic's view, and its further parts: pictures of recorded events that show the idea at work.

``draw`` finds the topic's module. Its function ``scene`` makes a ``Scene`` of a trace; a module
with two pictures has a function of the topic's name. A loop has two pictures of its work over time:
by step (``by_step.py``) and by phase (``runs.py``). Two loops have a picture of their own before
them. A loop that is no topic, a variant of one, has every loop's parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

from ...loops.design import LOOPS
from ...topics import LOOPS_WITH_MORE, TOPICS, view_of
from ...trace import Trace
from ..scene import Scene
from ..scene_puml import to_puml
from ..scene_svg import to_svg
from ..scene_text import COLUMNS, to_text
from .marks import NothingToShow

__all__ = ["FORMS", "NothingToShow", "draw", "parts_of"]

FORMS = ("svg", "puml", "text")
# the number of settled steps of a part
STEPS = {"by_step": 3, "timing": 3}
MORE_STEPS: dict[str, dict[str, int]] = {
    "serial": {"by_step": 2, "timing": 3},
    "mini_normal": {"by_step": 2, "timing": 3},
    "vllm_step": {"by_step": 2, "timing": 3},
    "multi_step": {"by_step": 4, "timing": 8},  # a burst, and the time to the next
    "pd": {"by_step": 8, "timing": 8},  # both sides while a prompt moves between them
    "vllm_batch_queue": {"by_step": 4, "timing": 4},  # two batches take turns
    "vllm_pp": {"by_step": 4, "timing": 8},  # a pipeline that is full
}


def draw(
    topic: str, trace: Trace, form: str = "svg", part: str = "", columns: int = COLUMNS
) -> str:
    """Return the view of a topic on a trace, as an SVG, a PlantUML diagram, or plain text.

    ``topic`` may also be the name of any loop, as a trace has it: ``vllm_async``, ``overlap-pool``.
    ``part`` is one of ``parts_of(topic)``, by default the first. ``columns`` is the width of a
    plain text in characters.

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
    """Return the names of a topic's pictures; none where it has only one.

    Raises:
        ValueError: there is no such topic.
    """
    return tuple(name for name in _pictures(topic) if name)


def _pictures(topic: str) -> dict[str, Callable[[Trace], Scene]]:
    """Return a topic's pictures; a single one has no name."""
    name, topic = topic, topic if topic in TOPICS else kind_of_loop(topic)
    if not topic:
        raise ValueError(unknown(name))
    found: dict[str, Callable[[Trace], Scene]] = {}
    if own := view_of(topic):
        module: Any = import_module(f".{own}", __name__)
        found[LOOPS_WITH_MORE.get(topic, "")] = getattr(module, topic, None) or module.scene
    if topic not in TOPICS or TOPICS[topic].startswith("loops/"):
        from .. import by_step, runs

        draws: dict[str, Callable[..., Scene]] = {
            "by_step": partial(by_step.of_one, has_gap=topic == "mlx_async"),
            "timing": runs.timing,
        }
        counts = {**STEPS, **MORE_STEPS.get(topic, {})}
        found |= {part: partial(draws[part], count=count) for part, count in counts.items()}
    return found


def kind_of_loop(name: str) -> str:
    """Return the loop or the topic for a trace's name; empty if there is no such loop.

    A trace's name may end in a relay, ``overlap-pool``; pipelines share a topic.
    """
    loop = name.partition("-")[0].partition(":")[0]
    if loop not in LOOPS:
        return ""
    return re.sub(r"^vllm_pp\d+$", "vllm_pp", loop)


def unknown(topic: str) -> str:
    """Return the message for an unknown topic: the nearest one, and all of them."""
    known = [*TOPICS, *LOOPS]
    near = [name for name in known if topic and topic in name] or get_close_matches(topic, known, 1)
    hint = f"perhaps {near[0]} is meant; the" if near else "the"
    return f"unknown topic {topic!r}; {hint} topics are {', '.join(TOPICS)}."
