"""When overlap wins: the map's numbers are those of the runs, and its words are true of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minisched.export.scene import CellGrid
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import to_text
from minisched.sweep import break_even as module
from minisched.sweep.break_even import TIE, BreakEven, break_even, kind_of, measure_break_even


@pytest.fixture(scope="module")
def found() -> BreakEven:
    """Short answers alone: they are quick, and they are where designs lose."""
    return measure_break_even(["overlap", "overlap_thread"], lengths=(1, 4))


def test_who_counts_ties_on_one_token_and_who_does_not_loses(found: BreakEven) -> None:
    at = found.ratios.index(0.5)
    counts, does_not = found.rows["overlap"][0, at], found.rows["overlap_thread"][0, at]
    assert counts["wasted_rows"] == 0 and does_not["wasted_rows"] == module.REQUESTS
    assert abs(found.speedups["overlap"][0, at] - 1) < TIE
    assert found.speedups["overlap_thread"][0, at] < 0.72


def test_four_tokens_win_most_where_host_and_device_are_equal(found: BreakEven) -> None:
    row = {found.ratios[c]: v for (r, c), v in found.speedups["overlap"].items() if r == 1}
    assert max(row, key=lambda ratio: row[ratio]) == 1.0 and row[1.0] > 1.5


def test_the_words_are_true_of_the_numbers(found: BreakEven) -> None:
    every = [value for values in found.speedups.values() for value in values.values()]
    assert f"up to {max(every):.2f} times" in found.title
    assert f"up to {100 * (1 - min(every)):.0f} % slower, on answers of 1 token" in found.title
    lost = min(found.speedups["overlap_thread"].values())
    assert f"loses {100 * (1 - lost):.0f} %" in found.why("overlap_thread")
    assert f"{module.REQUESTS} rows for nothing" in found.why("overlap_thread")


def test_your_ratio_is_a_column() -> None:
    one = measure_break_even(["overlap"], host_ms=3, device_ms=4, lengths=(1,))
    assert one.ratios[one.yours] == 0.75
    assert "0.75 (yours)" in to_text(one.scene, 100)


def test_every_place_is_drawn_in_its_colour_and_the_break_even_where_it_turns(
    found: BreakEven,
) -> None:
    for part in found.scene.parts:
        (grid,) = part.shows
        assert isinstance(grid, CellGrid)
        values = found.speedups[part.heading]
        assert {at: cell.text for at, cell in grid.cells.items()} == {
            at: f"{value:.2f}×" for at, value in values.items()
        }
        assert all(cell.kind == kind_of(values[at]) for at, cell in grid.cells.items())
        wins = {at for at, value in values.items() if value > 1 + TIE}
        turns = {
            (at, other)
            for at in values
            for other in ((at[0], at[1] + 1), (at[0] + 1, at[1]))
            if other in values and (at in wins) != (other in wins)
        }
        assert set(grid.walls) == set(break_even(values)) == turns != set()
        assert to_svg(found.scene).count('class="wall"') >= len(turns)


def test_a_stop_token_is_foreseen_by_nobody() -> None:
    one = measure_break_even(["overlap"], is_stopped=True, lengths=(2,))
    assert all(row["wasted_rows"] > 0 for row in one.rows["overlap"].values())


def test_the_command_draws_and_says_it(minisched: Any, tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    options = ("--loops", "overlap", "--jobs", "1", "--json", "--out", str(picture))
    small = pytest.MonkeyPatch()
    small.setattr(module.measure_break_even, "__defaults__", _with_short_answers())
    try:
        code, out, _ = minisched("map", *options)
    finally:
        small.undo()
    said = json.loads(out)
    assert code == 0 and picture.read_text("utf-8").startswith("<svg")
    assert said["yours"] == 0.6 and list(said["speedups"]) == ["overlap"]
    assert len(said["speedups"]["overlap"]) == len(said["lengths"]) == 1


def _with_short_answers() -> tuple[Any, ...]:
    usual = measure_break_even.__defaults__ or ()
    return tuple((1,) if value == module.LENGTHS else value for value in usual)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--device-ms", "0"),
            "--device-ms is 0, but it must be above 0 and at most 1,000,000",
        ),
        (("--device-ms", "nan"), "--device-ms is nan, but it must be above 0"),
        (("--host-ms", "inf"), "--host-ms is inf, but it must be at least 0"),
        (("--host-ms", "1e300"), "--host-ms is 1e+300, but it must be at least 0"),
        (("--copy-ms", "-1"), "--copy-ms is -1, but it must be at least 0"),
        (("--out", "map.png"), "it must end in .svg, .puml, .txt."),
        (("--loops", "nope"), "unknown loop 'nope'"),
    ],
)
def test_a_bad_option_is_a_sentence(minisched: Any, options: tuple[str, ...], said: str) -> None:
    code, _, err = minisched("map", *options)
    assert code == 2 and said in err and err.count("\n") == 1
