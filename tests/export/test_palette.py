"""Colours that stand side by side are told apart, also by eyes with two kinds of cones.

Distances are CIE76 in CIELAB. The simulations are those of Machado, Oliveira and Fernandes (2009)
at full severity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from minisched.export.chinese import LANGUAGES, in_language
from minisched.export.explore import shared_words
from minisched.export.looks import DARK, LIGHT, OWNERS, PHASES, STEPS

Matrix = tuple[tuple[float, float, float], ...]
EYES: dict[str, Matrix] = {
    "three kinds of cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
MAIN = ("schedule", "prepare", "launch", "process", "forward", "sample", "copy")  # of every loop
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def product(row: Sequence[float], column: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(row, column, strict=True))


def lab(colour: str, eyes: Matrix) -> tuple[float, float, float]:
    """A colour in CIELAB, as these eyes see it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    seen = [min(1.0, max(0.0, product(row, linear))) for row in eyes]
    ratios = [product(row, seen) / white for row, white in zip(TO_XYZ, WHITE, strict=True)]
    x, y, z = (it ** (1 / 3) if it > 0.008856 else 7.787 * it + 16 / 116 for it in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, eyes: Matrix) -> float:
    return math.dist(lab(one, eyes), lab(other, eyes))


@pytest.mark.parametrize("eyes", EYES.values(), ids=EYES)
def test_steps_that_follow_one_another_have_far_colours(eyes: Matrix) -> None:
    fills = [look.fill for look in STEPS.values()]
    least = min(distance(one, other, eyes) for one, other in combinations(fills, 2))
    assert least >= 15
    near = [distance(one, other, eyes) for one, other in pairwise([*fills, fills[0]])]
    assert min(near) >= 17


@pytest.mark.parametrize("eyes", EYES.values(), ids=EYES)
def test_phases_of_every_loop_have_far_colours(eyes: Matrix) -> None:
    pairs = combinations([(name, PHASES[name].fill) for name in MAIN], 2)
    near = {(a, b): distance(one, other, eyes) for (a, one), (b, other) in pairs}
    assert min(near.values()) >= 15, min(near, key=near.__getitem__)


@pytest.mark.parametrize("eyes", EYES.values(), ids=EYES)
def test_requests_have_colours_of_their_own(eyes: Matrix) -> None:
    fills = [fill for fill, _ in OWNERS]
    assert min(distance(one, other, eyes) for one, other in combinations(fills, 2)) >= 17
    phases = [PHASES[name].fill for name in (*MAIN, "receive", "output")]
    assert min(distance(one, other, eyes) for one in fills for other in phases) >= 13
    for paper in (LIGHT, DARK):
        assert min(distance(fill, paper["paper"], eyes) for fill in fills) >= 17


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_and_the_picture_by_step_have_one_table_of_words(lang: str) -> None:
    words = shared_words(lang)
    for verb in ("plan", "read", "run"):
        assert in_language(f"{verb} 7", lang) == f"{words[verb]} 7"
    assert (words["host"] == "host") == (lang == "en")
