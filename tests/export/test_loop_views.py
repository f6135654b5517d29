"""A loop's pictures: three parts in three forms with the same steps and slices; and what one loop
alone has, its queue or its ledger."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import pytest

from minisched.checks.draw.designs import all_designs
from minisched.checks.overlap.overlap import forwards
from minisched.core import Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.export.layout import View
from minisched.export.letters import letter
from minisched.export.palette import OTHER, PAINTS
from minisched.export.puml_style import BUBBLE, WAIT
from minisched.export.recipes import trace_of
from minisched.export.units import ms
from minisched.export.views import FORMS, draw, parts_of
from minisched.export.views.shown_steps import in_turns, shown
from minisched.export.views.steps_rows import rows_of, steps_view
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.topics import TOPICS
from minisched.trace import Trace
from tests.support import VIEW_COST, Picture, boxes_in, drawn_run, forms_of, many, read_timing

TOPIC_LOOPS = [topic for topic in TOPICS if TOPICS[topic] == "loops"]
KV = "KV to the decode side"


def ids(picture: Picture) -> list[int]:
    return sorted(int(box["data-id"]) for box in picture.shapes("rect", id="*"))


def edges_of(view: View) -> Counter[tuple[str, ...]]:
    return Counter((str(a.src.slice.id), str(a.dst.slice.id)) for a in view.arrows)


def lanes_in(text: str) -> dict[str, str]:
    lines = (line.partition("│") for line in text.splitlines() if " │" in line)
    return {title.strip(): drawn for title, _, drawn in lines}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_part_shows_the_slices_and_edges_of_its_steps_in_every_form(loop: str) -> None:
    designs = [design.name for design in all_designs() if design.loop == loop]
    for seed in range(many(3, 20)):
        trace, _ = drawn_run(seed, designs[seed % len(designs)])
        if forwards(trace):
            for part in (timing, sequence, steps):
                part(trace)


def timing(trace: Trace) -> None:
    view, forms = shown(trace, 3), forms_of("serial", trace, "timing")
    assert forms
    inside = [s for s in trace.slices if s.end > view.start and s.start < view.end and s.duration]
    assert ids(forms.picture) == sorted(item.id for item in inside)
    boxes, _, end = read_timing(forms.puml)
    drawn = Counter(box for box in boxes.elements() if box[1] not in (BUBBLE.fill, WAIT.fill))
    assert end == view.duration and drawn == Counter(
        (box.lane.key, PAINTS.get(box.slice.name, OTHER).fill,
         *view.clip(box.slice.start, box.slice.end))
        for box in view.boxes if box.slice.duration
    )  # fmt: skip
    assert f"steps {view.first_step} to {view.last_step}: {ms(view.duration)} ms" in forms.text
    lanes = lanes_in(forms.text)
    assert [*lanes] == [lane.title for lane in view.lanes]
    for lane in view.lanes:
        assert lanes[lane.title].strip() or not any(b.slice.duration for b in view.on(lane))


def sequence(trace: Trace) -> None:
    view, forms = shown(trace, 2), forms_of("serial", trace, "sequence")
    assert forms
    boxes = [box for box in view.boxes if box.slice.duration]
    assert ids(forms.picture) == sorted(box.slice.id for box in boxes)
    assert forms.picture.count("src", "dst", tag="path") == edges_of(view)
    lines = re.findall(r"^ *\d+\. .*\(([\d.]+) ms\)$", forms.text, re.M)
    assert Counter(line for line in lines if line != "0") == Counter(
        ms(box.slice.duration) for box in boxes
    )
    assert {words for box in boxes for words in [box.label] if words not in forms.text} == set()
    assert forms.text.count("└──▶") == len(view.arrows)
    slices, spans = {str(box.slice.id): box.slice for box in boxes}, list[tuple[int, float]]()
    for shape in forms.picture.shapes("rect", id="*"):
        item, top = slices[shape["data-id"]], float(shape["y"])
        spans += [(max(item.start, view.start), top)]
        spans += [(min(item.end, view.end), top + float(shape["height"]))]
    for (time, y), (later, lower) in pairwise(sorted(spans)):  # time runs down
        assert y <= lower + 0.21 if time < later else abs(y - lower) < 0.21


def steps(trace: Trace) -> None:
    rows, forms = rows_of(trace, 4), forms_of("serial", trace, "steps")
    assert forms
    view, by_id = steps_view(trace, rows), {item.id: item for item in trace.slices}
    wanted = {
        item.id for item in trace.slices for row in rows
        if item.step == row.step and item.duration and item.name != "schedule"
        and (item.lane.startswith(row.side) or (row.side, item.lane) == ("prefill", "kv transfer"))
    }  # fmt: skip
    assert {at for at in ids(forms.picture) if by_id[at].name != "schedule"} == wanted
    assert forms.picture.count("src", "dst", tag="path") == edges_of(view)
    prepared = [item for item in trace.slices if item.name == "prepare"]
    for box in forms.picture.shapes("rect", kind="schedule", id="*"):  # it led to the next one
        item = by_id[int(box["data-id"])]
        first = next(p for p in prepared if p.lane == item.lane and p.start >= item.end)
        assert str(first.step) == box["data-step"]
    lanes = lanes_in(forms.text)
    assert [*lanes] == [lane.title for lane in view.lanes]
    for lane in view.lanes:  # the letters of its slices in order; nothing is lost, however short
        letters = [letter(box.slice.name) for box in view.on(lane) if box.slice.duration]
        found = [key for key, _ in groupby(lanes[lane.title].replace(" ", ""))]
        assert found == [key for key, _ in groupby(letters)]
    common = []
    for before, row in pairwise(rows):
        spans = [[box.slice for box in one.boxes] for one in (before, row)]
        start = max(min(item.start for item in one) for one in spans)
        end = min(max(item.end for item in one) for one in spans)
        if end > start and before.side == row.side:
            common.append(f"{ms(end - start)} ms together")
    assert re.findall(r"[\d.]+ ms together", forms.picture.words) == common
    if not any(row.side for row in rows):
        counts, most = (1, 2, 8), len(forwards(trace))
        assert [len(rows_of(trace, count)) for count in counts] == [min(n, most) for n in counts]


# -- every loop's golden run -----------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPIC_LOOPS)
def test_what_is_said_of_a_golden_run_is_its_design_s(topic: str) -> None:
    """Where one step is in flight no two are on their way together; where there are more, all.

    The first step of a burst of ``multi_step`` is alone: nothing overlaps with the burst before.
    """
    trace, forms = trace_of(topic), forms_of(topic, trace_of(topic), "steps")
    rows, words = rows_of(trace, 6 if topic == "multi_step" else 4), forms.picture.words
    pairs = [
        ([a for a in rows[:at] if a.side == b.side][-1], b)
        for at, b in enumerate(rows) if any(a.side == b.side for a in rows[:at])
    ]  # fmt: skip
    leads = sorted(lead for a, b in pairs if (lead := a.device_span[1] - b.start) > 0)
    fresh = [row for a, row in pairwise(rows) if a.side == row.side]
    if topic == "multi_step":
        fresh = [row for row in fresh if all(box.slice.name != "schedule" for box in row.boxes)]
    overlaps = len(forms.picture.shapes("line", overlap="*"))
    assert overlaps == (0 if LOOPS[trace.loop].depth == 1 else len(fresh))
    device = "its own device" if {row.side for row in rows} != {""} else "the device"
    for form in FORMS:
        drawn = draw(topic, trace, form, "steps")
        assert (f"before {device} is done" if overlaps else f"only when {device} is done") in drawn
        said = re.search(r"begins (.*) steps? ([\d.]+)(?: to ([\d.]+))? ms before", drawn)
        assert bool(said) == bool(leads)
        if said:
            assert [said[2], said[3] or said[2]] == [ms(leads[0]), ms(leads[-1])]
            some = said[1] == f"{len(leads)} of these {len(pairs)}"
            assert some == (len(leads) < len(pairs))
    assert words.count("device busy") <= 1
    text = draw(topic, trace, "text", "timing")
    drawn = re.sub(r"[\d ]", "", "".join(lanes_in(text).values()))
    legend = {*re.findall(r"(?:^| {2}|\n)(\S) \S", text.rpartition("\n\n")[2])}
    assert {*drawn} <= legend and ("╱" in drawn) == ("╱" in legend)
    count = {"pd": 2, "vllm_pp": 4}.get(topic, 1)
    for part, form in (("timing", "svg"), ("timing", "text"), ("timing", "puml")):
        assert (f"mean of {count} devices" in draw(topic, trace, form, part)) == (count > 1)
    views = [shown(trace, count) for count in (2, 3, 4)]
    for small, large in pairwise(views):  # the same stretch of settled steps
        assert large.first_step <= small.first_step <= small.last_step <= large.last_step
    modes = {i.mode for i in forwards(trace) if views[2].first_step <= i.step <= views[2].last_step}
    assert modes == {"decode"}


@pytest.mark.parametrize("topic", TOPIC_LOOPS)
def test_on_another_loop_s_trace_the_title_is_that_loop_s(topic: str) -> None:
    trace = trace_of("overlap")
    for part in parts_of(topic):
        if part != "ledger":  # it needs its own loop's marks
            assert draw(topic, trace, "text", part).startswith("overlap: ")
            svg = draw(topic, trace, part=part)
            assert "<title>overlap: " in svg and (topic == "overlap" or f"{topic}:" not in svg)


# -- vllm_pp: batches that take turns --------------------------------------------------------------


def test_batches_that_take_turns_are_settled_too() -> None:
    trace = trace_of("vllm_pp")
    turns, rids = in_turns(trace), {item.step: item.rids for item in forwards(trace)}
    assert len(turns) >= 8 and shown(trace, 4).first_step in turns
    assert all(rids[step] == rids[step - 4] for step in turns[4:])


# -- vllm_batch_queue: who is in which place of the queue ------------------------------------------


def test_every_step_stands_in_the_queue_from_its_launch_until_it_was_processed() -> None:
    for seed in range(many(6, 60)):
        trace, _ = drawn_run(seed, "vllm_batch_queue:host:depth=4", VIEW_COST, odd=False)
        forms = forms_of("vllm_batch_queue", trace, "queue")
        if forms is None or "the first" in forms.picture.words:
            continue
        by_step: dict[str, dict[str, Any]] = {name: {} for name in ("launch", "wait", "process")}
        for item in trace.slices:
            by_step.get(item.name, {})[item.step] = item
        wanted: Counter[Any] = Counter()
        for step, item in by_step["process"].items():
            taken = by_step["wait"].get(step, item).start
            spans = (by_step["launch"][step].end, taken), (taken, item.end)
            pairs = zip(("queued", "admitted"), spans, strict=True)
            wanted.update((str(step), kind) for kind, (start, end) in pairs if end > start)
        found = Counter(
            (box["data-step"], kind)
            for kind in ("queued", "admitted")
            for box in forms.picture.shapes("rect", kind, step="*")
        )
        assert found == wanted
        lanes = boxes_in(forms.puml)
        assert sum(len(boxes) for title, boxes in lanes.items() if title != "step") == len(
            [*wanted.elements()]
        )
        for boxes in lanes.values():  # nobody stands in another one's place
            assert all(a[2] <= b[1] for a, b in pairwise(boxes))
    text = draw("vllm_batch_queue", trace_of("vllm_batch_queue"), "text")
    assert parts_of("vllm_batch_queue")[0] == "queue" and "place 2" in text
    assert "place 3" not in text


# -- mindie_placeholder: a ledger of placeholders --------------------------------------------------


@pytest.mark.parametrize("loop", ["mindie_placeholder", "mindie_dual", "mindie_single"])
def test_the_ledger_shows_every_list(loop: str) -> None:
    """A box for each token of each list, at its place."""
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    requests = [Request(f"r{at}", [1, 2 + at], params) for at in range(2)]
    trace, wanted = run_loop(loop, SimDevice(), HashModel(), requests).trace, Counter[Any]()
    forms = forms_of("mindie_placeholder", trace, "ledger")
    for mark in [mark for mark in trace.marks if mark.name == "ledger"]:
        for item in filter(None, str(mark.attrs["lists"]).split("; ")):
            rid, tokens = item.split(":")
            places = enumerate(tokens.split())
            wanted.update((ms(mark.time), rid, str(place), token) for place, token in places)
    assert forms.picture.count("entry", "rid", "place", "token", tag="rect") == wanted
    promised = sum(count for (*_, token), count in wanted.items() if token == "-1")
    assert len(forms.picture.shapes("rect", "promised")) == 1 + promised  # one in the legend
    assert " -1" in forms.text


# -- pd: two sides, and the way between ------------------------------------------------------------


def test_pd_shows_both_sides_and_a_kv_transfer_is_called_so_in_every_form() -> None:
    trace = trace_of("pd")
    assert {row.side for row in rows_of(trace, 4)} == {"prefill", "decode"}
    lanes = {box.slice.lane for box in shown(trace, 2).boxes}
    assert {"prefill host", "decode host", "prefill forward", "kv transfer"} <= lanes
    count = sum(arrow.brings == "transfer" for arrow in shown(trace, 2).arrows)
    puml, text = draw("pd", trace, "puml", "sequence"), draw("pd", trace, "text", "sequence")
    lines = [line for line in puml.splitlines() if line.startswith("stream_kv_transfer -")]
    assert 0 < count == len(lines) == text.count(": KV for ")
    assert all(re.search(r" : KV for \d+$", line) for line in lines)
    for part in ("timing", "sequence", "steps"):
        svg = draw("pd", trace, part=part)
        assert KV in Picture(svg).words and 'class="arrow transfer' in svg
        assert KV not in draw("overlap", trace_of("overlap"), part=part)
    words = "a host begins 3 of these 4 steps 5.55 to 8.45 ms before its own device is done with"
    assert words in draw("pd", trace, "text", "steps")
