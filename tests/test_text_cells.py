"""What a character of the text picture shows: the phase that took the most of its time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.export.lane import FORWARD
from minisched.export.layout import make_view
from minisched.export.letters import letter
from minisched.export.text import BUBBLE, row
from minisched.trace import Slice, Trace

NAMES = ("forward", "sample", "copy")


@settings(max_examples=200)
@given(
    parts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=12),
    window=st.tuples(st.integers(0, 100), st.integers(1, 300)),
    longer=st.integers(0, 50),
    cells=st.integers(1, 40),
)
def test_each_cell_shows_what_took_the_most_of_it(
    parts: list[tuple[int, int]], window: tuple[int, int], longer: int, cells: int
) -> None:
    slices, time = [], 0
    for number, (gap, duration) in enumerate(parts):
        start = time + gap
        time = start + duration
        slices.append(Slice(number + 1, "forward", NAMES[number % 3], start, time))
    trace = Trace("a", "sim", "b", "virtual", tuple(slices), (), (), ())
    view = make_view(trace, window[0], window[0] + window[1])
    longest = view.duration + longer
    drawn = row(view, FORWARD, longest, cells)
    for cell, seen in enumerate(drawn):
        start = view.start + cell * longest // cells
        end = min(view.start + (cell + 1) * longest // cells, view.end)
        shares = [min(item.end, end) - max(item.start, start) for item in slices]
        most = max(shares)
        if most > 0:
            assert seen == letter(slices[shares.index(most)].name)
        else:
            assert seen in (" ", BUBBLE)
