"""The poster: families of designs that draw one picture, with the figures of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.overlap import measure
from minisched.export.pictures.compare import DESIGNS
from minisched.export.poster import Kind, poster, settled_in
from minisched.export.scene import Lanes, Scene
from minisched.export.scene_svg import to_svg
from minisched.recipes import run_of
from minisched.trace import Trace

LOOPS = (*DESIGNS, "vllm_pp4")


@pytest.fixture(scope="module")
def runs() -> dict[str, Trace]:
    return {loop: run_of(loop) for loop in LOOPS}


@pytest.fixture(scope="module")
def scene(runs: dict[str, Trace]) -> Scene:
    return poster(list(runs.values()))


def lanes(scene: Scene) -> list[Lanes]:
    return [shown for part in scene.parts for shown in part.shows if isinstance(shown, Lanes)]


def test_each_design_is_in_one_family_and_the_fastest_is_first(
    runs: dict[str, Trace], scene: Scene
) -> None:
    families = [part.note.partition(";")[0].split(", ") for part in scene.parts]
    assert sorted(loop for family in families for loop in family) == sorted(runs)
    assert scene.title.startswith(f"{len(runs)} designs are {len(families)} pictures")
    took = [[measure(runs[loop]).makespan_ns for loop in family] for family in families]
    assert all(some == sorted(some) for some in [*took, [some[0] for some in took]])


def test_a_poster_of_some_loops_shows_their_families_alone(
    runs: dict[str, Trace], scene: Scene
) -> None:
    few = poster(list(runs.values()), ("overlap", "serial"))
    whole = {part.heading: part.note for part in scene.parts}
    assert [part.heading for part in few.parts] == ["1 step ahead", "one step at a time"]
    assert all(part.note == whole[part.heading] for part in few.parts)
    assert few.title.split(" is ")[1] in scene.title and f"of {len(runs)} designs" in few.title
    serial = settled_in(runs["serial"])
    assert serial is not None and {shown.end for shown in lanes(few)} == {2 * serial.period}


def test_a_family_has_one_run_ahead(runs: dict[str, Trace]) -> None:
    kinds = {loop: settled.kind for loop, trace in runs.items() if (settled := settled_in(trace))}
    assert kinds["serial"] == kinds["vllm_step"] == Kind(1, 1, 1, 1, False)
    assert kinds["overlap"] == kinds["vllm_async"] == Kind(1, 1, 1, 2, False)
    assert kinds["mlx_async"] == Kind(1, 1, 1, 2, False, has_breaks=True)
    assert kinds["mindie_dual"] == kinds["mindie_plugin"] == Kind(1, 1, 1, 2, True)
    assert kinds["multi_step"].burst == 4
    assert kinds["vllm_batch_queue"].turns == 2
    assert kinds["vllm_pp4"].devices == 4


def test_a_strip_holds_whole_periods(runs: dict[str, Trace], scene: Scene) -> None:
    (length,) = {shown.end for shown in lanes(scene)}
    for loop, trace in runs.items():
        settled = settled_in(trace)
        assert settled is not None, loop
        assert settled.period <= length, loop
    burst = settled_in(runs["multi_step"])
    assert burst is not None and burst.period == length  # with the idle time between two bursts
    shown = next(part for part in scene.parts if "multi_step" in part.note).shows[0]
    assert isinstance(shown, Lanes)
    assert any(item.kind == "bubble" for row in shown.rows for item in row.spans)


def test_its_figures_are_the_runs(runs: dict[str, Trace], scene: Scene) -> None:
    base = measure(runs["serial"]).makespan_ns
    for part in scene.parts:
        names, _, gain = part.note.removesuffix(" times as fast as serial").partition("; ")
        factors = [base / measure(runs[loop]).makespan_ns for loop in names.split(", ")]
        ends = {f"{min(factors):.2f}", f"{max(factors):.2f}"}
        assert set(gain.split(" to ")) == ends


def test_a_tie_is_a_tie(runs: dict[str, Trace], scene: Scene) -> None:
    best = min(measure(trace).makespan_ns for trace in runs.values())
    tied = [loop for loop, trace in runs.items() if measure(trace).makespan_ns <= 1.01 * best]
    assert len(tied) > 1 and all(loop in scene.notes[0] for loop in tied)


def test_nothing_is_drawn_beyond_its_strip(scene: Scene) -> None:
    for shown in lanes(scene):
        spans = [span for row in shown.rows for span in row.spans]
        assert spans and all(0 <= span.start <= span.end <= shown.end for span in spans)


def test_a_run_without_settled_steps_is_named(runs: dict[str, Trace]) -> None:
    short = run_of("serial")
    few = replace(short, slices=tuple(item for item in short.slices if item.step <= 2))
    said = poster([runs["serial"], few])
    assert any("serial" in note and "not shown" in note for note in said.notes)


def test_compare_draws_many_loops_as_a_poster(cli: Any, tmp_path: Path) -> None:
    loops = "overlap,vllm_async,mini_overlap,mlx_async,multi_step"
    assert cli(f"compare --loops {loops} --requests 2 --max-new-tokens 8")[0] == 0
    drawn = (tmp_path / "out" / "compare.svg").read_text("utf-8")
    assert "6 designs are 3 pictures" in drawn and len(drawn) < 200_000


def test_it_is_readable_as_a_file(scene: Scene) -> None:
    assert to_svg(scene).count("<text") > 50
    with pytest.raises(ValueError, match="at least one trace"):
        poster([])
