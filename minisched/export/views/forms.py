"""The forms that a view has: an SVG, a PlantUML diagram, and text for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...trace import Trace
from ..scene import Scene
from ..scene_puml import to_puml
from ..scene_svg import to_svg
from ..scene_text import to_text

NAMES = {"svg": "SVG", "puml": "PlantUML", "text": "text"}
FORMS = tuple(NAMES)
Draw = Callable[[Trace], str]
Write = Callable[[Trace, int], str]  # the trace, and how many columns the text has


@dataclass(frozen=True)
class PictureForms:
    """One picture in its forms; ``puml`` is None where PlantUML does not fit."""

    svg: Draw
    text: Write
    puml: Draw | None = None

    def has(self, form: str) -> bool:
        """Whether there is such a form of it."""
        return form != "puml" or self.puml is not None

    def draw(self, trace: Trace, form: str, columns: int) -> str:
        """The picture in a form that it has."""
        if form == "text":
            return self.text(trace, columns)
        return self.puml(trace) if form == "puml" and self.puml else self.svg(trace)


def forms_of_scene(scene: Callable[[Trace], Scene]) -> PictureForms:
    """A picture that is a scene has every form."""
    return PictureForms(
        svg=lambda trace: to_svg(scene(trace)),
        text=lambda trace, columns: to_text(scene(trace), columns),
        puml=lambda trace: to_puml(scene(trace)),
    )
