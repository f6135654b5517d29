"""A learner's guess in a picture: a dashed line over a run, or over bars of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from ..devices.cost import MILLISECOND
from ..export.notebook import NotebookPicture
from ..export.scene import LaneItem, LaneRow, Lanes, Part, Scene
from ..export.scene_svg import to_svg

WORDS = "your guess: {:,g}{}"
MOST_WIDER = 2  # times: a guess further to the right stands at the edge


def check_guess(guess: object) -> float | None:
    """Return a guess as a number; None if there is none yet.

    Raises:
        ValueError: it is no finite number of at least 0.
    """
    if guess is None:
        return None
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise ValueError(f"guess is {guess!r}, but it must be a number, or None before you guess.")
    if not isfinite(guess) or guess < 0:
        raise ValueError(f"guess is {guess}, but it must be a finite number of at least 0.")
    return guess


def with_guess(scene: Scene, guess: object, unit: str = "ms") -> Scene:
    """Return a picture of lanes with a dashed line at the guess, in the unit of its axis."""
    number = check_guess(guess)
    if number is None:
        return scene
    parts = []
    for part in scene.parts:
        lanes = [drawn_in(one, number, unit) if isinstance(one, Lanes) else one
                 for one in part.shows]  # fmt: skip
        parts.append(replace(part, shows=lanes))
    return replace(scene, parts=parts)


def drawn_in(lanes: Lanes, guess: float, unit: str) -> Lanes:
    """Return lanes with the line; the axis becomes longer where that is enough."""
    at, longest = round(guess * MILLISECOND), MOST_WIDER * lanes.end
    words = WORDS.format(guess, f" {unit}".rstrip()) + " →" * (at > longest)
    line = LaneItem("end", min(at, longest), min(at, longest), words)
    flags = sorted([*lanes.flags, line], key=lambda flag: flag.start)
    return replace(lanes, flags=flags, end=max(lanes.end, line.start))


def bars(
    values: Mapping[str, float],
    unit: str,
    guess: float | None = None,
    title: str = "",
    row: int | None = None,
) -> NotebookPicture:
    """Draw a bar for each value, and the guess as a dashed line over them.

    ``unit`` is that of the values. ``row`` is the number of a guessed bar, from 1.

    Raises:
        ValueError: there is no value, the guess is no number, or there is no such row.
    """
    if not values:
        raise ValueError("bars need at least one value, but got 0.")
    if row is not None and row not in range(1, len(values) + 1):
        raise ValueError(f"row is {row!r}, but it must be a number from 1 to {len(values)}.")
    rows = []
    for at, (name, value) in enumerate(values.items(), 1):
        words = f"{value:{',.0f' if value >= 100 else '.3g'}} {unit}".rstrip()
        box = LaneItem("forward", 0, round(value * MILLISECOND), "", "", f"{name}: {words}")
        rows.append(LaneRow(name, [box], tail=words + ", your guess" * (at == row)))
    longest = max([*values.values(), 1e-6])
    room = 1.15 if row is None else 1.35  # for the words after the longest bar
    lanes = Lanes(rows, round(room * longest * MILLISECOND), across=unit or "number")
    about = "a dashed line is your guess" if row is None and guess is not None else ""
    heading = "The values" if guess is None else "The values, and your guess"
    scene = Scene(title or heading, about, [Part("", "", [lanes])])
    return NotebookPicture(to_svg(with_guess(scene, guess, unit)))
