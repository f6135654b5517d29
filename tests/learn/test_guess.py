"""A guess in a picture: a dashed line at its place, next to the measured value."""

from __future__ import annotations

import re

import pytest

from minisched import learn
from tests.support import SVG, Picture

BARS = {"one piece": 1467.0, "mixed": 134.0}


def lines_of(svg: str) -> list[float]:
    """The places of dashed lines, in pixels."""
    return [
        float(line.attrib["x1"])
        for line in Picture(svg).root.iter(f"{SVG}line")
        if line.attrib["class"] == "end"
    ]


def test_a_guess_is_a_dashed_line_at_its_time() -> None:
    run = learn.simulate("serial")
    assert lines_of(learn.timing(run).svg) == []
    without, *places = (
        lines_of(learn.timing(run, guess_ms=guess).svg) for guess in (None, 10, 20, 30)
    )
    (first, second, third) = (at for (at,) in places)
    assert without == [] and third - second == pytest.approx(second - first, abs=0.2)
    assert "your guess: 20 ms" in Picture(learn.timing(run, guess_ms=20).svg).words
    both = learn.timing(run, learn.simulate("overlap"), guess_ms=20).svg
    assert len(lines_of(both)) == 2  # one in each run


def test_a_guess_stands_over_bars_and_far_away_at_the_edge() -> None:
    svg = learn.bars(BARS, "ms", 134, "A title").svg
    (box,) = (
        box
        for box in Picture(svg).root.iter(f"{SVG}rect")
        if box.findtext(f"{SVG}title") == "mixed: 134 ms"
    )
    assert lines_of(svg) == [
        pytest.approx(float(box.attrib["x"]) + float(box.attrib["width"]), abs=1)
    ]
    assert "your guess: 9,000 ms →" in Picture(learn.bars(BARS, "ms", 9000).svg).words
    assert "134 ms, your guess" in Picture(learn.bars(BARS, "ms", row=2).svg).words


@pytest.mark.parametrize("guess", ["10", True, -1, float("inf"), float("nan")])
def test_a_guess_is_a_finite_number(guess: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"guess is {guess!r}, but it must be a")):
        learn.bars(BARS, "ms", guess)  # type: ignore[arg-type]


def test_a_guessed_bar_is_one_of_them_and_a_guessed_token_an_integer() -> None:
    with pytest.raises(ValueError, match="row is 3, but it must be a number from 1 to 2"):
        learn.bars(BARS, "ms", row=3)
    run = learn.simulate("overlap", new_tokens=3)
    assert "no token has this number" in str(learn.inputs_sent(run, guess=-1))
    assert "a token can have this number" in str(learn.inputs_sent(run, guess=0))
    with pytest.raises(ValueError, match="guess is 'zero', but it must be an integer"):
        learn.inputs_sent(run, guess="zero")  # type: ignore[arg-type]
