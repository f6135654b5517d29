"""The forms that a view has: an SVG, a PlantUML diagram, and text for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...trace import Trace
from ..scene import Scene
from ..scene_puml import to_puml
from ..scene_svg import to_svg
from ..scene_text import to_text
from .text_page import columns_here

Draw = Callable[[Trace], str]
FORMS = ("svg", "puml", "text")
NAMES = {"svg": "SVG", "puml": "PlantUML", "text": "text"}


@dataclass(frozen=True)
class PictureForms:
    """One picture in its forms; ``puml`` is None where PlantUML does not fit."""

    svg: Draw
    text: Draw | None = None
    puml: Draw | None = None

    def form(self, form: str) -> Draw | None:
        """What draws it in a form, if it has it."""
        return {"svg": self.svg, "text": self.text, "puml": self.puml}[form]


def forms_of_scene(scene: Callable[[Trace], Scene]) -> PictureForms:
    """A picture that is a scene has every form."""
    return PictureForms(
        svg=lambda trace: to_svg(scene(trace)),
        text=lambda trace: to_text(scene(trace), columns_here()),
        puml=lambda trace: to_puml(scene(trace)),
    )
