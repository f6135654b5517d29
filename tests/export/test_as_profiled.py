"""What a profiler would show: names are drawn, but every moment is the simulated run's."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest

from minisched.checks.foreign import CALLS, DEVICE_OPS, RANGES
from minisched.export.as_profiled import PROFILERS, as_profiled
from minisched.export.recipes import run_of
from minisched.export.scene import LaneItem, LaneRow, Lanes, Scene


def rows(scene: Scene) -> list[list[LaneRow]]:
    shown = [show for part in scene.parts for show in part.shows]
    return [list(lanes.rows) for lanes in shown if isinstance(lanes, Lanes)]


def when(items: list[LaneItem], *kinds: str) -> list[tuple[int, int]]:
    return sorted((item.start, item.end) for item in items if item.kind in kinds)


@pytest.mark.parametrize("loop", ["overlap", "serial", "vllm_async"])
def test_a_call_is_drawn_when_its_phase_ran(loop: str) -> None:
    own, *profiled = rows(as_profiled(run_of(loop)))
    items = [item for row in own for item in row.spans]
    for drawn, (name, wanted) in zip(profiled, PROFILERS.items(), strict=True):
        assert [row.name for row in drawn] == [*wanted], name
        for row, calls in zip(drawn, wanted.values(), strict=True):
            looks, kinds = {of[0] for of in calls.values()}, {*chain(*calls.values())}
            covered = sum(end - start for start, end in when(list(row.spans), *looks))
            assert covered == sum(end - start for start, end in when(items, *kinds)), row.name
            ends = sorted((item.start, item.end) for item in row.spans)
            assert all(one[1] <= other[0] for one, other in pairwise(ends))
        api, kernels = drawn[1], drawn[2]
        assert when(list(api.spans), "wait") == when(items, "wait")
        assert when(list(kernels.spans), "forward") == when(items, "forward")


def test_the_names_are_those_that_the_readers_know() -> None:
    names = {row.partition(",")[0] for row in PROFILERS["torch.profiler"]}
    assert names <= CALLS | DEVICE_OPS | RANGES


def test_it_says_that_it_is_a_drawing_and_what_is_true_of_the_run() -> None:
    scene = as_profiled(run_of("serial"))
    assert scene.title.endswith("blocked for 29.1 of 49.2 ms, 27.6 of it while the device works")
    assert [part.note for part in scene.parts[1:]] == ["a drawing: no GPU was measured"] * 2
    assert as_profiled(run_of("overlap")).title.endswith("7.5 of 27.6 ms, while the device works")
