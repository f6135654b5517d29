"""What a learner sees: right or not yet, why in words, and a picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..export.palette import GREEN, VERMILLION
from .figure import LessonFigure


@dataclass(frozen=True)
class ExerciseVerdict:
    """``passed``, sentences that say what was checked or what is wrong, and pictures."""

    passed: bool
    sentences: Sequence[str]
    figures: Sequence[LessonFigure] = ()

    @property
    def title(self) -> str:
        """In two words."""
        return "✓ Right" if self.passed else "✗ Not yet"

    def _repr_html_(self) -> str:
        colour = GREEN if self.passed else VERMILLION
        said = "".join(f"<p style='margin:.35em 0'>{_code(line)}</p>" for line in self.sentences)
        drawn = "".join(f"<div>{figure._repr_html_()}</div>" for figure in self.figures)
        return (
            f'<div class="minisched-verdict" style="border-left:5px solid {colour};'
            f'padding:.1em 0 .1em .9em"><b>{self.title}</b>{said}{drawn}</div>'
        )

    def __repr__(self) -> str:
        pictures = [repr(figure) for figure in self.figures]
        return "\n".join([self.title, *self.sentences, *pictures])


def _code(line: str) -> str:
    """A sentence for a page; what stands in backticks is code."""
    parts = escape(line).split("`")
    if len(parts) % 2 == 0:
        return escape(line)
    return "".join(f"<code>{x}</code>" if at % 2 else x for at, x in enumerate(parts))
