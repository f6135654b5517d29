"""The poster: a strip a design, sorted, with figures that are those of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.overlap import forwards, measure
from minisched.export.pictures.compare import DESIGNS
from minisched.export.poster import PERIODS, periods_of, poster
from minisched.export.recipes import run_of
from minisched.export.scene import Lanes, Scene
from minisched.export.scene_svg import to_svg
from minisched.trace import Trace


@pytest.fixture(scope="module")
def runs() -> dict[str, Trace]:
    return {loop: run_of(loop) for loop in DESIGNS}


@pytest.fixture(scope="module")
def scene(runs: dict[str, Trace]) -> Scene:
    return poster(list(runs.values()))


def lanes(scene: Scene) -> Lanes:
    (shown,) = scene.parts[0].shows
    assert isinstance(shown, Lanes)
    return shown


def test_each_design_is_a_strip_and_the_quickest_is_first(
    runs: dict[str, Trace], scene: Scene
) -> None:
    groups = list(dict.fromkeys(row.group.partition(" ")[0] for row in lanes(scene).rows))
    assert set(groups) == set(runs)
    took = [measure(runs[loop]).makespan_ns for loop in groups]
    assert took == sorted(took)
    best = took[0]
    assert f"{measure(runs['serial']).makespan_ns / best:.2f} times as fast" in scene.title


def test_a_strip_is_three_steps_of_one_request(runs: dict[str, Trace]) -> None:
    for loop, trace in runs.items():
        view = periods_of(trace)
        assert view is not None, loop
        inside = [item for item in forwards(trace) if view.start <= item.start < view.end]
        rid = inside[0].rids[0]
        assert sum(rid in item.rids for item in inside) == PERIODS, loop
        assert any(item.start == view.end and rid in item.rids for item in forwards(trace)), loop


def test_its_figures_are_the_runs(runs: dict[str, Trace], scene: Scene) -> None:
    base = measure(runs["serial"])
    for row in lanes(scene).rows:
        report = measure(runs[row.group.partition(" ")[0]])
        assert f"{report.device_busy_percent:.0f} %" in row.group_note
        assert f"{base.makespan_ns / report.makespan_ns:.2f}×" in row.group_note
        more = report.steps - base.steps
        said = f", {more:+d} step{'s' * (abs(more) != 1)}"
        assert row.group_note.endswith(said) == bool(more)


def test_nothing_is_drawn_beyond_its_strip(scene: Scene) -> None:
    end = lanes(scene).end
    spans = [span for row in lanes(scene).rows for span in row.spans]
    assert spans and all(0 <= span.start <= span.end <= end for span in spans)


def test_a_run_without_settled_steps_is_named(runs: dict[str, Trace]) -> None:
    short = run_of("serial")
    few = replace(short, slices=tuple(item for item in short.slices if item.step <= 2))
    said = poster([runs["serial"], few])
    assert any("serial" in note and "not shown" in note for note in said.notes)


def test_compare_draws_many_loops_as_a_poster(cli: Any, tmp_path: Path) -> None:
    loops = "overlap,vllm_async,mini_overlap,mlx_async,multi_step"
    assert cli(f"compare --loops {loops} --requests 2 --max-new-tokens 8")[0] == 0
    drawn = (tmp_path / "out" / "compare.svg").read_text("utf-8")
    assert "6 designs, one workload" in drawn and len(drawn) < 200_000


def test_it_is_readable_as_a_file(scene: Scene) -> None:
    assert to_svg(scene).count("<text") > 50
    with pytest.raises(ValueError, match="at least one trace"):
        poster([])
