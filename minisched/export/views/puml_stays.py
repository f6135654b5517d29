"""Stays as a PlantUML timing diagram: one lane a row, each stay a box in the colour of its look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..palette import LIGHT
from ..puml_axis import Axis
from ..puml_style import creole
from ..puml_timing import STYLE
from ..state import Stay
from .look import LOOKS

DASHED = LIGHT.lane  # the fill of a look through which the paper shows


def stays_to_puml(
    title: str, rows: Sequence[tuple[str, Sequence[Stay]]], end: int, names: Mapping[str, str]
) -> str:
    """The diagram's text; ``names`` says what each look means that occurs.

    Stays of a row do not overlap; where they do, the later one is shown.
    """
    axis = Axis(max(1, end))
    lanes = [f'rectangle "{creole(name)}" as lane{at}' for at, (name, _) in enumerate(rows)]
    changes: dict[int, list[str]] = {}
    for at, (_, stays) in enumerate(rows):
        _states(f"lane{at}", sorted(stays, key=lambda stay: stay.start), axis, changes)
    return "\n".join(
        [
            "@startuml",
            STYLE,
            f"title {creole(title)}",
            f"caption time in {axis.unit}",
            f"scale {axis.at(axis.tick)} as {max(1, round(axis.tick * axis.scale))} pixels",
            *lanes,
            *(line for time in sorted(changes) for line in (f"@{axis.at(time)}", *changes[time])),
            *_legend(names),
            "@enduml",
            "",
        ]
    )


def _states(name: str, stays: Sequence[Stay], axis: Axis, changes: dict[int, list[str]]) -> None:
    """Add what one lane shows to ``changes``, by moment."""
    free_at = 0
    for at, stay in enumerate(stays):
        end = min(stay.end, stays[at + 1].start) if at + 1 < len(stays) else stay.end
        if end <= stay.start:
            continue
        if stay.start > free_at:
            changes.setdefault(free_at, []).append(f"{name} is {{-}}")
        fits = len(stay.label) * 7 + 4 <= (end - stay.start) * axis.scale
        text = creole(stay.label) if stay.label and fits else " "
        changes.setdefault(stay.start, []).append(
            f'{name} is "{_ink(stay.kind, text)}" {_fill(stay.kind)}'
        )
        free_at = end
    changes.setdefault(free_at, []).append(f"{name} is {{-}}")


def _fill(kind: str) -> str:
    return LOOKS[kind].fill or DASHED


def _ink(kind: str, text: str) -> str:
    look = LOOKS[kind]
    return f"<color:{look.text}>{text}</color>" if look.fill else text


def _legend(names: Mapping[str, str]) -> list[str]:
    cells = [f"<{_fill(kind)}> {_ink(kind, creole(words))} " for kind, words in names.items()]
    return ["legend", "|" + "|".join(cells) + "|", "end legend"]
