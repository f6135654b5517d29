"""Law 6, the same story everywhere: each exporter shows the slices, edges and time of the trace.

A reader for each form reads it back to boxes (lane, phase, start, end), arrows (lane, leaves, lane,
arrives) and the total time, in nanoseconds.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.draw import all_designs
from minisched.checks.overlap import forwards
from minisched.export.chrome import BOOKKEEPING, to_chrome
from minisched.export.html import SCRIPTS, to_html
from minisched.export.layout import View, lane_title, make_view, steady_views, view_of_steps
from minisched.export.looks import PHASES, flat, glyph
from minisched.export.runs import compare, side_by_side, timing
from minisched.export.scene import LaneItem, LaneRow
from minisched.export.scene_puml import to_puml
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import draw_row, to_text
from minisched.export.svg_style import DESK
from minisched.export.units import counted, exact, ms, tick_step
from minisched.loops.design import LOOPS
from minisched.recipes import trace_of
from minisched.trace import Edge, Mark, Slice, Trace, native
from tests.support import SVG, drawn_run, every, many, read_timing

FILLS = {flat(name): name for name in [*PHASES, "other"]}


class Shown(NamedTuple):
    """What a picture shows."""

    boxes: Counter[Any]  # (lane, phase, start, end)
    arrows: Counter[Any]  # (lane, leaves, lane, arrives)
    end: int


def truth(trace: Trace) -> Shown:
    """What a picture of the whole run must show; boxes of length zero cannot be seen."""
    slices = {item.id: item for item in trace.slices}
    lanes = {item.id: item.lane for item in trace.slices}
    boxes = Counter(
        (lanes[item.id], phase(item.name), item.start, item.end)
        for item in trace.slices
        if item.duration
    )
    arrows = Counter(
        (lanes[e.src], slices[e.src].end, lanes[e.dst], slices[e.dst].start) for e in trace.edges
    )
    return Shown(boxes, arrows, trace.end)


def phase(name: str) -> str:
    return name if name in PHASES else "other"


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


# -- a reader for each form ------------------------------------------------------------------------


def chrome_end(event: dict[str, Any]) -> int:
    return ns(event["ts"]) + ns(event["dur"])


def read_chrome(text: str, titles: dict[str, str]) -> Shown:
    """Chrome Trace Event JSON; a flow binds to the slice that is open when it leaves."""
    events = json.loads(text)["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = {tid: titles[title] for tid, title in named.items() if title in titles}
    slices = {event["args"]["id"]: event for event in events if event["ph"] == "X"}
    for lane in lanes:  # a viewer nests what overlaps
        spans = sorted((ns(e["ts"]), chrome_end(e)) for e in slices.values() if e["tid"] == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    boxes = Counter(
        (lanes[e["tid"]], phase(e["cat"]), ns(e["ts"]), chrome_end(e))
        for e in slices.values()
        if e["dur"]
    )
    arrows: Counter[Any] = Counter()
    for found, start in starts.items():
        src, dst = (slices[start["args"][name]] for name in ("src", "dst"))
        assert (start["tid"], ends[found]["tid"]) == (src["tid"], dst["tid"])
        inside = ns(src["ts"]) <= ns(start["ts"]) < chrome_end(src) + (not src["dur"])
        assert inside and ns(dst["ts"]) <= ns(ends[found]["ts"]) <= chrome_end(dst)
        arrives = ns(ends[found]["ts"])
        arrows[lanes[start["tid"]], chrome_end(src), lanes[dst["tid"]], arrives] += 1
    return Shown(boxes, arrows, max(map(chrome_end, slices.values()), default=0))


def read_svg(text: str, trace: Trace) -> Shown:
    """The SVG of one whole run: from where its shapes lie, to half a tenth of a pixel."""
    root, view = ElementTree.fromstring(text), make_view(trace)
    rects = list(root.iter(f"{SVG}rect"))
    lanes = [rect for rect in rects if rect.get("class") == "lane"]
    tops = [float(rect.attrib["y"]) + 3 for rect in lanes]
    left = float(lanes[0].attrib["x"]) if lanes else 0.0
    scale = (DESK.edge - left) / max(1, view.duration)
    by_id = {str(item.id): item for item in view.slices}
    boxes, arrows = Counter[Any](), Counter[Any]()
    for rect in rects:
        if not (found := rect.get("data-id")):
            continue
        item = by_id[found]
        x, y, width = (float(rect.attrib[name]) for name in ("x", "y", "width"))
        assert abs(x - left - item.start * scale) < 0.051
        assert abs(width - max(1, item.duration * scale)) < 0.051  # at least a pixel, to be seen
        lane, times = view.lanes[tops.index(y)], ("data-start", "data-end")
        start, end = (int(rect.attrib[name]) for name in times)
        boxes[lane, rect.attrib["class"].split()[1].replace("-", " "), start, end] += 1
    for path in root.iter(f"{SVG}path"):
        if "data-src" not in path.attrib:
            continue
        src, dst = (by_id[path.attrib[f"data-{name}"]] for name in ("src", "dst"))
        points = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
        if "L" in path.attrib["d"]:  # not a bow within a lane
            assert abs(points[0] - left - src.end * scale) < 0.051
            assert abs(points[-2] - left - dst.start * scale) < 0.051
        ends = points[1::2] if "L" in path.attrib["d"] else points[1:2]
        rows = [max(i for i, top in enumerate(tops) if top - 2 <= y) for y in ends]
        arrows[view.lanes[rows[0]], src.end, view.lanes[rows[-1]], dst.start] += 1
    return Shown(boxes, arrows, view.end)  # the scale ends there; the last slice may be a moment


def read_html(text: str) -> Shown:
    """The data of the page's one run."""
    found = re.search(r'atob\("([^"]*)"\)', text)
    assert found
    run = json.loads(gzip.decompress(base64.b64decode(found[1])))["runs"][0]
    lane_of = {one["id"]: lane["key"] for lane in run["lanes"] for one in lane["slices"]}
    boxes = Counter(
        (lane["key"], phase(one["phase"]), one["start"], one["end"])
        for lane in run["lanes"]
        for one in lane["slices"]
        if one["end"] > one["start"]
    )
    arrows = Counter(
        (lane_of[edge["src"]], edge["start"], lane_of[edge["dst"]], edge["end"])
        for edge in run["edges"]
    )
    return Shown(boxes, arrows, run["end"])


def shown_by_timing(text: str, view: View) -> Shown:
    """PlantUML timing; an idle device is no slice."""
    boxes, arrows, end = read_timing(text)
    keys = {f"lane{at}": lane for at, lane in enumerate(view.lanes)}
    idle = (flat("bubble"), flat("waited"))
    slices = [box for box in boxes.elements() if box[1] not in idle]
    return Shown(
        Counter((keys[lane], FILLS[fill], *span) for lane, fill, *span in slices),
        Counter((keys[a], start, keys[b], stop) for a, start, b, stop in arrows.elements()),
        end,
    )


def check_every_exporter(trace: Trace) -> None:
    text, told = native.to_json(trace), truth(trace)
    assert native.from_json(text) == trace and native.to_json(native.from_json(text)) == text
    kinds = (trace.slices, trace.edges, trace.counters, trace.marks, trace.program)
    assert sum(line.startswith("{") for line in text.splitlines()[1:]) == sum(map(len, kinds))
    view = make_view(trace)
    assert read_chrome(to_chrome(trace), {lane_title(lane): lane for lane in view.lanes}) == told
    assert read_svg(to_svg(compare([trace], 0)), trace) == told
    assert read_html(to_html([trace])) == told
    assert shown_by_timing(to_puml(side_by_side([view])), view) == told
    lines = to_text(compare([trace], 0)).splitlines()
    drawn = [line.partition("│")[0].strip() for line in lines if "│" in line]
    assert f"whole run: {ms(trace.end)} ms" in " ".join(lines[:6])
    assert len(drawn) == len(view.lanes)


def check_steps(trace: Trace, first: int, last: int) -> None:
    """A window of steps: what touches it, cut where it ends."""
    view = view_of_steps(trace, first, last)
    inside = [s for s in trace.slices if s.end > view.start and s.start < view.end and s.duration]
    wanted = Counter(
        (s.lane, phase(s.name), *(min(max(t - view.start, 0), view.duration) for t in
                                       (s.start, s.end))) for s in inside
    )  # fmt: skip
    timing = shown_by_timing(text := to_puml(side_by_side([view])), view)
    assert timing.boxes == wanted and timing.end == view.duration
    shown = f"steps {first} to {last} of " if last > first else f"step {first} of "
    assert (view.start, view.end) == (0, trace.end) or shown in text


@pytest.mark.parametrize("loop", every(4, LOOPS))
def test_every_exporter_tells_the_story_of_every_design(loop: str) -> None:
    designs = [design.name for design in all_designs() if design.loop == loop]
    for seed in range(many(2, len(designs))):
        trace, _ = drawn_run(seed, designs[seed % len(designs)])
        check_every_exporter(trace)
        if (steps := sorted(item.step for item in forwards(trace))) and loop != "pd":
            first, last = steps[seed % len(steps)], steps[-1 - seed // 2 % len(steps)]
            check_steps(trace, *sorted((first, last)))
        events = json.loads(to_chrome(trace))["traceEvents"]
        marks = [mark.name for mark in trace.marks if mark.name not in BOOKKEEPING]
        assert [e["name"] for e in events if e["ph"] == "i"] == marks
        shown = [(ns(e["ts"]), *e["args"].items()) for e in events if e["ph"] == "C"]
        assert shown == [
            (c.time, (of.unit or "number", of.value(c.value)))
            for c in trace.counters
            for of in [counted(c.name)]
        ]


# -- lanes by hand --------------------------------------------------------------------------------


def trace_with(*slices: tuple[Any, ...], edges: tuple[Edge, ...] = ()) -> Trace:
    return Trace("hand", "sim", "hash", "virtual", tuple(Slice(*s) for s in slices), edges, (), ())


def test_each_device_idles_on_its_own_lane() -> None:
    trace = trace_with(
        (1, "stage 0", "forward", 0, 4, 1), (2, "stage 1", "forward", 4, 6, 1),
        (3, "stage 0", "forward", 4, 8, 2), (4, "stage 1", "forward", 8, 10, 2),
    )  # fmt: skip
    (bubble,) = make_view(trace).bubbles
    assert (bubble.lane, bubble.start, bubble.end) == ("stage 1", 6, 8)
    scene = compare([trace])
    assert to_svg(scene).count('class="box bubble"') == 2  # one on its lane, one in the legend
    assert to_puml(scene).count(f" {flat('bubble')}") == 1
    drawn = [line.strip() for line in to_text(scene).splitlines()]
    idle = [line for line in drawn if "│" in line and glyph("bubble") in line]
    assert [line.partition(" (")[0] for line in idle] == ["Stage 1"]


def test_a_schedule_belongs_to_the_step_that_its_own_host_prepared_next() -> None:
    trace = trace_with(
        (1, "prefill host", "schedule", 0, 2), (2, "decode host", "schedule", 1, 3),
        (3, "prefill host", "prepare", 2, 3, 5), (4, "decode host", "prepare", 3, 4, 8),
        (5, "decode host", "prepare", 4, 5, 9), (6, "decode host", "schedule", 6, 7),
    )  # fmt: skip
    assert [item.step for item in make_view(trace).slices] == [5, 8, 5, 8, 9, 0]


# -- text ------------------------------------------------------------------------------------------


@given(
    parts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=12),
    window=st.tuples(st.integers(0, 100), st.integers(1, 300)),
    longer=st.integers(0, 50),
    cells=st.integers(1, 40),
)
def test_a_row_of_text_shows_what_is_there_and_loses_nothing_that_has_room(
    parts: list[tuple[int, int]], window: tuple[int, int], longer: int, cells: int
) -> None:
    spans, time = [], 0
    for number, (gap, duration) in enumerate(parts):
        kind = ("forward", "sample", "copy", "prepare", "launch")[number % 5]
        spans.append(LaneItem(kind, time + gap, time + gap + duration))
        time += gap + duration
    start, longest = window[0], window[1] + longer
    drawn = draw_row(LaneRow("", spans), start, start + longest, cells)
    seen: set[int] = set()
    for cell, shown in enumerate(drawn):
        since, until = (start + at * longest // cells for at in (cell, cell + 1))
        touching = [s for s in spans if min(s.end, until) > max(s.start, since)]
        around = 7 * (longest // cells + 1)
        near = [s for s in spans if s.start < until + around and s.end > since - around]
        assert shown in {glyph(s.kind) for s in near} | {" "} and (shown != " " or not touching)
        seen |= {spans.index(s) for s in touching if glyph(s.kind) == shown}
    for at, span in enumerate(spans):
        inside = min(span.end, start + longest) - max(span.start, start)
        assert at in seen or inside * cells < 2 * longest + 2 * cells


@given(st.integers(0, 10**13))
def test_times_are_written_exactly_or_rounded(time: int) -> None:
    for digits in (0, 3, 6):
        whole, _, rest = exact(time, 10**digits).partition(".")
        assert int(whole) * 10**digits + int(rest.ljust(digits, "0") or "0") == time
    assert abs(float(ms(time)) * 10**6 - time) <= (50_000 if time >= 10**9 else 5_000)
    step = tick_step(time)
    assert time <= 10 * step and str(step).strip("0") in ("1", "2", "5")


# -- runs side by side, names from outside, requests that cannot be met ----------------------------


def test_runs_are_compared_over_the_same_steps_and_name_what_they_show() -> None:
    traces = [trace_of(name) for name in ("serial", "overlap", "mlx_async")]
    views = steady_views(traces, 3)
    assert len({(view.first_step, view.last_step) for view in views}) == 1
    assert len({item.rids for view in views for item in view.slices if item.rids}) == 1
    assert [v.duration for v in views] == [3 * 16_400_000, *[3 * 9_200_000] * 2]  # d+h+c, d, d
    page = to_html(traces)
    assert "in 27.6 instead of 49.2 ms" in to_svg(compare(traces[:2]))
    assert not re.search(r"https?://(?!www\.w3\.org/)|<link|@import|src=(?!\"data:)", page), (
        "the page needs no network"
    )
    assert page.count("</script>") == 1 + len(SCRIPTS)


def test_names_and_lanes_from_outside_are_shown_as_they_are() -> None:
    slices = (
        (1, "forward", "forward", 0, 999, 1, "decode", ('</script><b>&"a\n',)),
        (2, "detokenize", "gather", 1000, 1001, 1), (3, "kv transfer", "new", 1001, 3_250_002, 1),
    )  # fmt: skip
    edges = (Edge(1, 2, "token"), Edge(2, 3, "token"))
    trace = replace(trace_with(*slices, edges=edges), loop="<l>", model="&")
    check_every_exporter(trace)
    assert "</script><b>" not in to_html([trace]) and '"<l>' not in to_puml(timing(trace))
    with pytest.raises(ValueError, match=r"steps 3 to 99 .* the run has steps 1 to 1"):
        view_of_steps(trace, 3, 99)


GOOD = Trace(
    "serial", "sim", "hash", "virtual",
    (Slice(1, "host", "launch", 0, 5, 1, "decode", ("a",)), Slice(2, "copy", "copy", 5, 6)),
    (Edge(1, 2, "launch"),), (), (Mark("wasted row", 4, {"rid": "a"}),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format="other"), 'lacks "format"'),
        (lambda d: d.update(version=2), "of version 2; this program reads 1"),
        (lambda d: d.pop("slices"), "the trace lacks slices"),
        (lambda d: d["slices"][0].update(end="5"), 'slices[0] has end = "5"'),
        (lambda d: d["slices"][0].update(rids=[1]), "slices[0] has rids = [1]"),
        (lambda d: d["slices"][1].update(end=1), "slice 2 ends at 1, before it starts"),
        (lambda d: d["edges"][0].update(src=9), "edge 9 to 2 names a slice that is not there"),
    ],
)
def test_a_damaged_trace_is_refused_in_one_sentence(change: Any, says: str) -> None:
    data = json.loads(native.to_json(GOOD))
    change(data)
    with pytest.raises(native.NotATrace) as caught:
        native.from_json(json.dumps(data), "x.json")
    assert str(caught.value).startswith("x.json is") and says in str(caught.value)


def test_a_file_is_read_back_or_is_no_trace(tmp_path: Path) -> None:
    native.write(GOOD, tmp_path / "y")
    assert native.read(tmp_path / "y") == GOOD
    for content in (b"", b"hello", b"[1]", b'{"traceEvents": []}'):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(native.NotATrace, match="is not a minisched trace"):
            native.read(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"x can't be read: it is not UTF-8 text\.$"):
        native.read(tmp_path / "x")
