"""A loop's three parts in three forms show the same steps and slices: law 6, over random runs."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.checks.overlap.overlap import forwards
from minisched.export.layout import Box, View
from minisched.export.letters import letter
from minisched.export.recipes import trace_of
from minisched.export.units import ms
from minisched.export.views import draw, parts_of
from minisched.export.views.loop_parts import loop_parts
from minisched.export.views.shown_steps import in_turns, shown
from minisched.export.views.steps_rows import Row, rows_of, steps_view
from minisched.export.views.text_page import COLUMNS
from minisched.loops.registry import LOOPS
from minisched.topics import TOPICS
from minisched.trace import Trace
from minisched.trace.lanes import is_host
from tests.export_readers import phase, read_sequence, read_timing
from tests.support import Picture, check_picture
from tests.test_views import runs

TOPIC_LOOPS = [topic for topic in TOPICS if TOPICS[topic] == "loops"]
PARTS = loop_parts()
law = settings(max_examples=20, deadline=None)
some_steps = runs().filter(lambda run: bool(forwards(run[0])))


def told(boxes: tuple[Box, ...]) -> list[Box]:
    """Boxes that take time: those that can be seen."""
    return [box for box in boxes if box.slice.duration]


def svg_of(name: str, trace: Trace) -> Picture:
    """A part's SVG, read back and checked."""
    picture = Picture(PARTS[name].svg(trace))
    check_picture(picture)
    return picture


def ids(picture: Picture) -> list[int]:
    return sorted(int(box["data-id"]) for box in picture.shapes("rect", id="*"))


def edges(picture: Picture) -> Counter[tuple[str, ...]]:
    return picture.count("src", "dst", tag="path")


def edges_in(view: View) -> Counter[tuple[str, ...]]:
    return Counter((str(a.src.slice.id), str(a.dst.slice.id)) for a in view.arrows)


# -- timing ------------------------------------------------------------------------------------


@law
@given(some_steps)
def test_timing_shows_the_same_in_three_forms(run: Any) -> None:
    trace = run[0]
    view = shown(trace, 3)
    inside = [s for s in trace.slices if s.end > view.start and s.start < view.end and s.duration]
    picture = svg_of("timing", trace)
    assert ids(picture) == sorted(item.id for item in inside)
    drawn = read_timing(PARTS["timing"].puml(trace))  # type: ignore[misc]
    assert drawn.boxes == Counter(
        (box.lane.key, phase(box.slice.name), *view.clip(box.slice.start, box.slice.end))
        for box in told(view.boxes)
    )
    assert drawn.end == view.duration and drawn.boxes.total() == len(inside)
    text = PARTS["timing"].text(trace)  # type: ignore[misc]
    assert f"steps {view.first_step} to {view.last_step}: {ms(view.duration)} ms" in text
    lanes = [line for line in text.splitlines() if " │" in line]
    assert [line.split(" │")[0].strip() for line in lanes] == [lane.title for lane in view.lanes]
    for lane, line in zip(view.lanes, lanes, strict=True):
        busy = sum(box.slice.duration for box in view.on(lane))
        assert busy == 0 or line.split("│")[1].strip()


# -- sequence ----------------------------------------------------------------------------------


@law
@given(some_steps)
def test_sequence_tells_the_same_in_three_forms(run: Any) -> None:
    trace = run[0]
    view = shown(trace, 2)
    boxes = told(view.boxes)
    picture = svg_of("sequence", trace)
    assert ids(picture) == sorted(box.slice.id for box in boxes)
    assert edges(picture) == edges_in(view)
    notes, arrows = read_sequence(PARTS["sequence"].puml(trace))  # type: ignore[misc]
    assert notes == Counter((b.lane.key, b.label, ms(b.slice.duration)) for b in boxes)
    assert arrows.total() == len(view.arrows)
    text = PARTS["sequence"].text(trace)  # type: ignore[misc]
    lines = re.findall(r"^ *\d+\. +(?:before|[\d.]+) {2}(.+?) {2,}(\S.*) \((.*) ms\)$", text, re.M)
    lines += re.findall(
        r"^ *\d+\. +(?:before|[\d.]+) {2}(\S+ \S+) {2}(\S.*) \((.*) ms\)$", text, re.M
    )
    seen = Counter((what, duration) for _, what, duration in set(lines) if duration != "0")
    assert set(seen) == {(box.label, ms(box.slice.duration)) for box in boxes}
    assert len(re.findall(r"^ *\d+\. ", text, re.M)) - text.count("(0 ms)") == len(boxes)
    assert text.count("└──▶") == len(view.arrows)


@law
@given(some_steps)
def test_in_a_sequence_nothing_stands_above_what_was_before_it(run: Any) -> None:
    """Time runs down: heights are in the order of times, on and between lifelines."""
    trace = run[0]
    view, picture = shown(trace, 2), svg_of("sequence", trace)
    slices = {str(box.slice.id): box.slice for box in view.boxes}
    spans = []
    for box in picture.shapes("rect", id="*"):
        item, top = slices[box["data-id"]], float(box["y"])
        spans += [(max(item.start, view.start), top)]
        spans += [(min(item.end, view.end), top + float(box["height"]))]
    for (time, y), (later, lower) in pairwise(sorted(spans)):
        assert y <= lower + 0.21 if time < later else abs(y - lower) < 0.21


# -- steps -------------------------------------------------------------------------------------


def side_of(row: Row, lane: str) -> bool:
    """Whether a lane belongs to the scheduler of a step; what is sent belongs to the sender."""
    return lane.startswith(row.side) or (row.side == "prefill" and lane == "kv transfer")


@law
@given(some_steps)
def test_steps_show_everything_of_each_step_in_three_forms(run: Any) -> None:
    trace = run[0]
    rows = rows_of(trace, 4)
    view = steps_view(trace, rows)
    wanted = {item.id for item in trace.slices for row in rows
              if item.step == row.step and side_of(row, item.lane) and item.duration}  # fmt: skip
    picture = svg_of("steps", trace)
    by_id = {item.id: item for item in trace.slices}
    assert {i for i in ids(picture) if by_id[i].name != "schedule"} == wanted
    assert edges(picture) == edges_in(view)
    prepared = [item for item in trace.slices if item.name == "prepare"]
    for box in picture.shapes("rect", kind="schedule", id="*"):  # it led to the next prepare
        item = by_id[int(box["data-id"])]
        first = next(p for p in prepared if p.lane == item.lane and p.start >= item.end)
        assert str(first.step) == box["data-step"]
    drawn = read_timing(PARTS["steps"].puml(trace))  # type: ignore[misc]
    assert drawn.boxes.total() == len(ids(picture)) and drawn.end == view.duration
    check_letters(PARTS["steps"].text(trace), view)  # type: ignore[misc]


def check_letters(text: str, view: View) -> None:
    """In each lane the letters of its slices, in order; nothing is lost, however short."""
    lines = [line for line in text.splitlines() if " │" in line]
    assert [line.split(" │")[0].strip() for line in lines] == [lane.title for lane in view.lanes]
    for lane, line in zip(view.lanes, lines, strict=True):
        letters = [letter(box.slice.name) for box in told(view.on(lane))]
        found = [key for key, _ in groupby(line.split("│")[1].replace(" ", ""))]
        assert found == [key for key, _ in groupby(letters)]


@law
@given(some_steps)
def test_what_two_steps_have_in_common_is_measured_right(run: Any) -> None:
    trace = run[0]
    rows = rows_of(trace, 4)
    picture = svg_of("steps", trace)
    common = []
    for before, row in pairwise(rows):
        spans = [[box.slice for box in one.boxes] for one in (before, row)]
        start = max(min(s.start for s in one) for one in spans)
        end = min(max(s.end for s in one) for one in spans)
        if end > start and before.side == row.side:
            common.append(f"{ms(end - start)} ms together")
    assert re.findall(r"[\d.]+ ms together", picture.words) == common
    text = PARTS["steps"].text(trace)  # type: ignore[misc]
    table = text.split("both on their way\n", 1)[1].split("\n\n")[0]
    said = [line.split("  ")[-1].strip() for line in table.splitlines() if line.endswith(" ms")]
    assert [f"{words} together" for words in said if words != "0 ms"] == common


@pytest.mark.parametrize("topic", TOPIC_LOOPS)
def test_the_overhang_is_that_of_the_design(topic: str) -> None:
    """Where one step is in flight no two are on their way together; where there are more, all.

    The first step of a burst of ``multi_step`` is alone: nothing overlaps with the burst before.
    """
    trace = trace_of(topic)
    picture = Picture(draw(topic, trace, part="steps"))
    rows = rows_of(trace, 6 if topic == "multi_step" else 4)
    pairs = [row for before, row in pairwise(rows) if before.side == row.side]
    assert len(pairs) >= 3
    if topic == "multi_step":
        pairs = [row for row in pairs if all(b.slice.name != "schedule" for b in row.boxes)]
    overlaps = len(picture.shapes("line", overlap="*"))
    assert overlaps == (0 if LOOPS[trace.loop].depth == 1 else len(pairs))
    device = "its own device" if {row.side for row in rows} != {""} else "the device"
    begins = f"before {device} is done" if overlaps else f"only when {device} is done"
    for form in ("svg", "text", "puml"):
        assert begins in draw(topic, trace, form, "steps")


# -- which steps -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPIC_LOOPS)
def test_all_parts_show_settled_steps_of_the_same_stretch(topic: str) -> None:
    trace = trace_of(topic)
    views = [shown(trace, count) for count in (2, 3, 4)]
    for small, large in pairwise(views):
        assert large.first_step <= small.first_step <= small.last_step <= large.last_step
    modes = {i.mode for i in forwards(trace) if views[2].first_step <= i.step <= views[2].last_step}
    assert modes == {"decode"}


@law
@given(some_steps)
def test_so_many_steps_are_shown_as_were_asked_for(run: Any) -> None:
    trace = run[0]
    steps = [item.step for item in forwards(trace)]
    for count in (1, 2, 3, 8):
        view = shown(trace, count)
        found = [step for step in steps if view.first_step <= step <= view.last_step]
        assert len(found) == min(count, len(steps))
        assert len(rows_of(trace, count)) == len(found)


def test_batches_that_take_turns_are_settled_too() -> None:
    trace = trace_of("vllm_pp")
    turns = in_turns(trace)
    rids = {item.step: item.rids for item in forwards(trace)}
    assert len(turns) >= 8
    assert all(rids[step] == rids[step - 4] for step in turns[4:])
    assert shown(trace, 4).first_step in turns


# -- all of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPIC_LOOPS)
def test_every_loop_has_its_parts_in_every_form(topic: str) -> None:
    trace = trace_of(topic)
    assert {"timing", "sequence", "steps"} <= set(parts_of(topic))
    for part in ("timing", "sequence", "steps"):
        svg, puml, text = (draw(topic, trace, form, part) for form in ("svg", "puml", "text"))
        check_picture(Picture(svg))
        assert Picture(svg).width <= 900 and trace.loop in Picture(svg).words
        assert puml.startswith("@startuml\n") and puml.endswith("@enduml\n")
        assert max(map(len, text.splitlines())) <= COLUMNS and trace.loop in text
        assert [svg, puml, text] == [
            draw(topic, trace, form, part) for form in ("svg", "puml", "text")
        ]


def test_pd_shows_both_sides_and_the_way_between() -> None:
    """From the prompt on one device to the first decoded token on the other."""
    trace = trace_of("pd")
    assert {row.side for row in rows_of(trace, 4)} == {"prefill", "decode"}
    view = shown(trace, 2)
    names = {box.slice.lane for box in view.boxes}
    assert {"prefill host", "decode host", "prefill forward", "kv transfer"} <= names
    text = draw("pd", trace, "text", "sequence")
    assert "KV transfer: launch 1" in text and "Decode host: KV for 1" in text


def test_a_token_is_said_to_stay_or_to_go_over_the_host() -> None:
    for topic, words in (
        ("overlap", "stays on the device"),
        ("serial", "goes over the host"),
        ("mindie_plugin", "goes over the host"),  # from the copy, written into a placeholder
    ):
        text = draw(topic, trace_of(topic), "text", "sequence")
        others = {"stays on the device", "goes over the host"} - {words}
        assert words in text and not any(other in text for other in others)


def test_a_thread_has_a_lane_of_its_own() -> None:
    for topic in ("overlap_thread", "mindie_dual"):
        for row in rows_of(trace_of(topic), 4):
            launches = [box for box in row.boxes if box.slice.name == "launch"]
            assert launches and all("thread" in box.lane.name for box in launches)
            assert all(is_host(box.slice.lane) == (box.lane.side == "host") for box in row.boxes)
