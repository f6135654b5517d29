"""A colour is a step: what is said of the run is true of it, in every size and language."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minisched.devices.cost import SIM_COST
from minisched.export.by_step import (
    Strip,
    blocks,
    by_step,
    of_one,
)
from minisched.export.chinese import LANGUAGES, translated
from minisched.export.layout import make_view
from minisched.export.scene import LaneItem, Lanes, Scene
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import to_text
from minisched.export.svg_style import PHONE, SLIDE
from minisched.recipes import RECIPES, trace_of
from minisched.trace.events import is_forward
from tests.support import Picture, check_picture

LOOPS = ("serial", "overlap", "overlap_thread", "mlx_async", "mindie_dual", "multi_step", "pd")


def lanes(scene: Scene) -> list[Lanes]:
    return [shown for part in scene.parts for shown in part.shows if isinstance(shown, Lanes)]


@pytest.mark.parametrize("loop", LOOPS)
def test_blocks_are_all_of_the_work_and_never_overlap(loop: str) -> None:
    trace = trace_of(loop)
    found = blocks(trace)
    for lane in {one.lane for one in found}:
        mine = [one for one in found if one.lane == lane]
        assert all(a.end <= b.start for a, b in pairwise(mine))
    ran = sum(item.duration for item in trace.slices if is_forward(item.lane) and item.step)
    assert ran <= sum(one.end - one.start for one in found if one.verb == "run")


@pytest.mark.parametrize("loop", LOOPS)
def test_the_colours_at_one_moment_are_the_steps_in_work(loop: str) -> None:
    trace = trace_of(loop)
    strip = Strip(make_view(trace))
    work = [item for item in blocks(trace)]
    most = max(len({one.step for one in work if one.start <= at.start < one.end}) for at in work)
    assert strip.most_steps == most
    assert (most == 1) == (loop == "serial")


def test_the_title_names_steps_that_are_drawn_at_one_moment() -> None:
    scene = by_step([trace_of("serial"), trace_of("overlap")])
    ahead = r"While the device runs step (\d+), the host reads (\d+) and plans (\d+)"
    found = re.fullmatch(ahead, scene.title)
    assert found
    drawn = {item.label: item for row in lanes(scene)[1].rows for item in row.spans}
    run, read, plan = (drawn[f"{verb} {step}"] for verb, step in
                       zip(("run", "read", "plan"), found.groups(), strict=True))  # fmt: skip
    assert run.start <= read.start < read.end <= plan.start < plan.end <= run.end
    assert "serial has 1 step at" in scene.about and "overlap has 2 steps at" in scene.about
    assert scene.about.endswith("Both runs gave the same tokens")


def test_serial_alone_does_not_claim_to_be_ahead() -> None:
    title = "serial: the device idles 7.2 of 16.4 ms a step"
    assert of_one(trace_of("serial")).title == by_step([trace_of("serial")]).title == title


def test_other_tokens_are_not_called_the_same() -> None:
    assert "same" not in by_step([trace_of("serial"), trace_of("decode")]).about


def test_a_box_has_the_colour_of_its_step_and_a_token_its_way() -> None:
    scene = by_step([trace_of("serial"), trace_of("overlap")])
    boxes = [item for shown in lanes(scene) for row in shown.rows for item in row.spans]

    def is_right(item: LaneItem) -> bool:
        return item.kind == "bubble" or item.kind == f"step {int(item.data['step']) % 5}"

    assert all(map(is_right, boxes))
    serial, overlap = lanes(scene)
    assert [link.src[0] for link in serial.links] == [1, 0]  # to the host, and back
    assert [(link.src[0], link.dst[0]) for link in overlap.links] == [(1, 1)]
    assert "over the host" in scene.parts[0].note and "stays" in scene.parts[1].note


@pytest.mark.parametrize("loop", [*LOOPS, "vllm_step", "trtllm_overlap"])
def test_no_token_arrow_points_back_in_time(loop: str) -> None:
    links = [link for shown in lanes(of_one(trace_of(loop))) for link in shown.links]
    assert links and all(link.src[1] <= link.dst[1] for link in links)


@pytest.mark.parametrize("loop", ["mlx_async", "multi_step"])
def test_a_token_that_takes_the_other_way_is_named(loop: str) -> None:
    scene = draw_of(loop)
    found = re.search(
        r"the token of step (\d+) goes over the host, others stay", scene.parts[0].note
    )
    assert found
    (shown,) = lanes(scene)
    plan = f"plan {int(found[1]) + 1}"
    read, after = (next(it for row in shown.rows for it in row.spans if it.label == words)
                   for words in (f"read {found[1]}", plan))  # fmt: skip
    assert read.end <= after.start


def draw_of(loop: str) -> Scene:
    return of_one(trace_of(loop), 4 if loop == "multi_step" else 3, has_gap=loop == "mlx_async")


def test_two_batches_that_take_turns_have_a_lane_each() -> None:
    trace = trace_of("vllm_batch_queue")
    (shown,) = lanes(draw_of("vllm_batch_queue"))
    batches = [row for row in shown.rows if row.name.startswith("batch ")]
    rids = {item.step: item.rids for item in trace.slices if item.name == "forward"}
    assert len(batches) == 2
    runs = {item.data["step"]: item for item in shown.rows[1].spans if "step" in item.data}
    for row in batches:
        for item in row.spans:
            assert row.name == f"batch {', '.join(rids[int(item.data['step'])])}"
            run = runs[item.data["step"]]
            assert item.start <= run.start < run.end <= item.end, "in flight while it runs"
    steps = sorted(int(item.data["step"]) for row in batches for item in row.spans)
    assert steps == sorted(map(int, runs))


def test_a_host_that_takes_no_time_still_has_steps_in_flight() -> None:
    recipe = RECIPES["vllm_batch_queue"]
    free = replace(recipe, cost=replace(SIM_COST, host=dict.fromkeys(SIM_COST.host, 0)))
    (shown,) = lanes(of_one(free.play().trace))
    device, *batches = shown.rows[-3:]
    runs = {item.data["step"]: item for item in device.spans if "step" in item.data}
    for row in batches:
        assert row.name.startswith("batch ") and row.spans
        for item in row.spans:
            run = runs[item.data["step"]]
            assert (item.start, item.end) == (run.start, run.end)


def test_the_first_late_launch_has_its_words() -> None:
    svg = to_svg(draw_of("trtllm_overlap"))
    late = re.search(r"runs step (\d+), the host launches its sampling", svg)
    assert late and f">launch {late[1]}<" in svg


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("sheet", [SLIDE, PHONE], ids=["slide", "phone"])
def test_every_size_and_language_fits(lang: str, sheet: Any) -> None:
    traces = [trace_of("serial"), trace_of("overlap")]
    scene = by_step(traces, 1)
    svg = to_svg(translated(scene) if lang == "zh" else scene, sheet)
    picture = Picture(svg)
    assert picture.width == sheet.width
    sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)"', svg)}
    assert min(sizes) >= 12
    if lang == "en" and sheet is SLIDE:
        check_picture(picture)
    assert (f'lang="{lang}"' in svg) == (lang != "en")


def words_of(scene: Scene) -> list[str]:
    """Return the words of a picture, without the names of its runs, and "token"."""
    svg = to_svg(scene)
    return [words for words in re.findall(r"<t(?:ext|itle)[^>]*>([^<]+)<", svg)
            if re.search("[a-z]{3}", words) and words not in {*LOOPS, "token"}]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_in_chinese_only_names_are_left_in_english(loop: str, count: int) -> None:
    scene = translated(by_step([trace_of("serial"), trace_of(loop)][-count:], 1))
    for words in words_of(scene):
        assert re.search("[\u4e00-\u9fff]", words), words


def test_the_text_has_the_same_words() -> None:
    scene = by_step([trace_of("serial"), trace_of("overlap")])
    assert "the token stays on the device" in to_text(scene) and scene.title in to_text(scene)


def test_compare_draws_by_step_and_phases_in_detail(cli: Any, tmp_path: Path) -> None:
    picture = tmp_path / "out" / "compare.svg"
    assert cli("compare --requests 2 --max-new-tokens 8")[0] == 0
    assert "the host reads" in picture.read_text("utf-8")
    assert cli("compare --requests 2 --max-new-tokens 8 --lang zh")[0] == 0
    assert 'lang="zh"' in picture.read_text("utf-8")
    assert cli("compare --requests 2 --max-new-tokens 8 --detail")[0] == 0
    assert ">schedule<" in picture.read_text("utf-8")


@pytest.mark.parametrize("line", ["--lang fr", "--lang zh --detail"])
def test_a_wrong_language_is_one_sentence(cli: Any, line: str) -> None:
    code, _, said = cli(f"compare --requests 2 {line}")
    assert code == 2 and "--lang" in said and "Traceback" not in said
