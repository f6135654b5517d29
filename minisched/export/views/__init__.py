"""A topic's view, and its further parts: recorded events to pictures that show the idea at work.

``draw`` finds the topic's module, which has ``scene(trace) -> Scene``; where PlantUML needs another
kind of diagram, a sequence, it has ``puml(trace) -> str``. A module with several pictures has
``PARTS`` (``loop_parts.py``), the first of which is its view. A loop that is no topic, a variant of
one, has every loop's parts (``names.py``). Topics share their reading of steps (``steps``).
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from ...topics import TOPICS, view_of
from ...trace import Trace
from ..scene_text import COLUMNS
from .forms import FORMS, NAMES, PictureForms, forms_of_scene
from .marks import NothingToShow
from .names import kind_of_loop, unknown

__all__ = ["FORMS", "NothingToShow", "draw", "parts_of"]


def draw(
    topic: str, trace: Trace, form: str = "svg", part: str = "", columns: int = COLUMNS
) -> str:
    """The view of a topic on a trace, as the text of an SVG, of a PlantUML diagram, or plain.

    ``topic`` may also be the name of any loop, as a trace has it: ``vllm_async``, ``overlap-pool``.
    ``part`` is one of ``parts_of(topic)``; without it, the first. ``columns`` is how wide a plain
    text may be.

    Raises:
        ValueError: there is no such topic, form or part, it has no PlantUML form, or there are less
            than 40 columns.
        NothingToShow: the trace lacks the events that the view needs.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; the forms are {', '.join(FORMS)}.")
    return _find(topic, form, part).draw(trace, form, columns)


def parts_of(topic: str) -> tuple[str, ...]:
    """The names of a topic's pictures; none where it has only one.

    Raises:
        ValueError: there is no such topic.
    """
    return tuple(name for name in _pictures(topic) if name)


def _pictures(topic: str) -> dict[str, PictureForms]:
    """A topic's pictures; one that is the only one has no name."""
    name, topic = topic, topic if topic in TOPICS else kind_of_loop(topic)
    if not topic:
        raise ValueError(unknown(name))
    if topic not in TOPICS or view_of(topic) == "loop_parts":
        every: dict[str, PictureForms] = import_module(".loop_parts", __name__).parts_of_loop(topic)
        return every
    module = import_module(f".{topic}", __name__)
    if parts := getattr(module, "PARTS", None):
        return dict(parts)
    forms = forms_of_scene(module.scene)
    return {"": replace(forms, puml=getattr(module, "puml", forms.puml))}


def _find(topic: str, form: str, part: str) -> PictureForms:
    """A part of a topic that has a form."""
    pictures = _pictures(topic)
    if part and part not in pictures:
        names = ", ".join(filter(None, pictures))
        known = f"its parts are {names}" if names else "it has one picture only"
        raise ValueError(f"topic {topic!r} has no part {part!r}; {known}.")
    part = part or next(iter(pictures))
    if pictures[part].has(form):
        return pictures[part]
    others = [name for name, picture in pictures.items() if picture.has(form)]
    if others:
        known, what = f"its parts that have one are {', '.join(others)}", f"part {part!r} of "
    else:
        known, what = f"the topics that have one are {', '.join(_with(form))}", ""
    raise ValueError(f"{what}topic {topic!r} has no {NAMES[form]} form; {known}.")


def _with(form: str) -> list[str]:
    """The topics of which some picture has a form."""
    return [topic for topic in TOPICS if any(p.has(form) for p in _pictures(topic).values())]
