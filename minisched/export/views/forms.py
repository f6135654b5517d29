"""The forms that a view has: an SVG, a PlantUML diagram, and text for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...trace import Trace

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
