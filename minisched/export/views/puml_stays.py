"""Stays as a PlantUML timing diagram: one lane a row, each stay a box in the colour of its look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..palette import LIGHT
from ..puml_style import BUBBLE, Axis, creole
from ..scene_puml import STYLE
from ..state import Stay
from .page import LOOKS

PALE = {  # the fills of looks through which the paper shows
    "queued": LIGHT.grid,
    "stale": LIGHT.lane,
    "wasted": BUBBLE.fill,
    "evicted": BUBBLE.fill,
}
Row = tuple[str, Sequence[Stay]]


def stays_to_puml(
    title: str,
    rows: Sequence[Row],
    end: int,
    names: Mapping[str, str],
    flags: Sequence[tuple[int, str]] = (),
) -> str:
    """The diagram's text; ``names`` says what each look means that occurs.

    ``flags`` are moments, each with a word or two. Stays of a row do not overlap; where they do,
    the later one is shown.
    """
    axis = Axis(max(1, end))
    lanes = [f'rectangle "{creole(name)}" as lane{at}' for at, (name, _) in enumerate(rows)]
    changes: dict[int, list[str]] = {}
    for at, (_, stays) in enumerate(rows):
        _states(f"lane{at}", sorted(stays, key=lambda stay: stay.start), axis, changes)
    kinds = {stay.kind for _, stays in rows for stay in stays}
    return "\n".join(
        [
            "@startuml",
            STYLE,
            f"title {creole(title)}",
            f"caption time in {axis.unit}",
            f"scale {axis.at(axis.tick)} as {max(1, round(axis.tick * axis.scale))} pixels",
            *lanes,
            *(line for time in sorted(changes) for line in (f"@{axis.at(time)}", *changes[time])),
            *_flags(flags, axis),
            *legend({kind: words for kind, words in names.items() if kind in kinds}),
            "@enduml",
            "",
        ]
    )


def fill(kind: str) -> str:
    """The colour of a look, where PlantUML has no texture."""
    return LOOKS[kind].fill or PALE[kind]


def ink(kind: str, text: str) -> str:
    """Text in the colour that is legible on a look; ``text`` is escaped already."""
    look = LOOKS[kind]
    return f"<color:{look.text}>{text}</color>" if look.fill else text


def legend(names: Mapping[str, str]) -> list[str]:
    """What the colours mean."""
    cells = [f"<{fill(kind)}> {ink(kind, creole(words))} " for kind, words in names.items()]
    return ["legend", "|" + "|".join(cells) + "|", "end legend"]


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
            f'{name} is "{ink(stay.kind, text)}" {fill(stay.kind)}'
        )
        free_at = end
    changes.setdefault(free_at, []).append(f"{name} is {{-}}")


def _flags(flags: Sequence[tuple[int, str]], axis: Axis) -> list[str]:
    """Each a thin stripe through all lanes, as long as about three pixels, with its words."""
    width = max(1, round(3 / axis.scale))
    return [
        f"highlight {axis.at(time)} to {axis.at(time + width)} {BUBBLE.fill};line:D55E00 : "
        f"{creole(words)}"
        for time, words in flags
    ]
