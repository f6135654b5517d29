"""Law 6, the same story everywhere: every exporter shows the same slices, edges and total time."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import forwards
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.export import native
from minisched.export.chrome import to_chrome
from minisched.export.html import SCRIPTS, to_html
from minisched.export.layout import make_view
from minisched.export.letters import OTHER, letter
from minisched.export.puml_sequence import to_sequence
from minisched.export.puml_style import BUBBLE
from minisched.export.puml_timing import Panel, draw_panels, to_timing
from minisched.export.recipes import recipes
from minisched.export.recipes.loops import TITLES as LOOPS
from minisched.export.svg import to_svg
from minisched.export.text import margin_of, to_text
from minisched.export.units import exact, ms, tick_step
from minisched.export.window import steady_views, view_of_steps, whole_run
from minisched.models.hash import HashModel
from minisched.trace import Counter as CounterEvent
from minisched.trace import Edge, Mark, Slice, Trace
from tests.export_readers import (
    chrome_end,
    chrome_lanes,
    ns,
    phase,
    read_chrome,
    read_html,
    read_sequence,
    read_svg,
    read_timing,
    truth,
)
from tests.support import LOOP_OPTIONS, VOCAB, Workload, play, workloads

times = st.sampled_from([0, 1, 999, 1000, 250_000, 3_000_001])
costs = st.builds(
    lambda host, forward, sample, copy: CostModel(
        {"schedule": host, "prepare": 1, "launch": host, "process": host, "output": 7},
        forward,
        0,
        sample,
        copy,
    ),
    times,
    times,
    times,
    times,
)


def loop_traces() -> dict[str, Trace]:
    """The golden run of each loop."""
    return {loop: recipes()[loop].run() for loop in LOOPS}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """The trace of a small random run."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload: Workload = draw(workloads(max_requests=3))
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, options, device, model, draw(costs))
    return device.recorder.trace(loop, "sim", "hash", "virtual")


law = settings(max_examples=60, deadline=None)


@law
@given(traces())
def test_native_comes_back_as_it_was(trace: Trace) -> None:
    text = native.to_json(trace)
    assert native.from_json(text) == trace
    assert native.to_json(native.from_json(text)) == text
    kinds = (trace.slices, trace.edges, trace.counters, trace.marks, trace.program)
    events = sum(map(len, kinds))
    assert sum(line.startswith("{") and "}" in line for line in text.splitlines()) == events


@law
@given(traces())
def test_chrome_tells_the_same_story(trace: Trace) -> None:
    assert read_chrome(to_chrome(trace)) == truth(trace)


@law
@given(traces())
def test_svg_tells_the_same_story(trace: Trace) -> None:
    assert read_svg(to_svg([trace], whole=True), trace) == truth(trace)


@law
@given(traces())
def test_html_tells_the_same_story(trace: Trace) -> None:
    assert read_html(to_html([trace])) == truth(trace)


@law
@given(traces())
def test_puml_timing_tells_the_same_story(trace: Trace) -> None:
    steps = [item.step for item in forwards(trace)]
    text = to_timing(trace, min(steps), max(steps)) if steps else to_timing(trace)
    assert read_timing(text) == truth(trace)


@law
@given(traces())
def test_puml_sequence_tells_the_same_story(trace: Trace) -> None:
    steps = [item.step for item in forwards(trace)]
    text = to_sequence(trace, min(steps), max(steps)) if steps else to_sequence(trace)
    notes, arrows = read_sequence(text)
    view = make_view(trace)
    assert notes == Counter(
        (box.lane.key, box.label, ms(box.slice.duration))
        for box in view.boxes
        if box.slice.duration
    )
    lanes = {box.slice.id: box.lane.key for box in view.boxes}
    edges = Counter((lanes[edge.src], lanes[edge.dst]) for edge in trace.edges)
    assert Counter((src, dst) for src, dst, _ in arrows.elements()) == edges
    shown = re.search(r"title .*steps .*, (\S+) ms, device", text)
    assert shown and shown[1] == ms(trace.end)


@law
@given(traces(), st.integers(60, 120))
def test_text_tells_the_same_story(trace: Trace, columns: int) -> None:
    """A cell shows the phase that took the most of its time, and is blank only if none ran."""
    lines = to_text([trace], whole=True, columns=columns).splitlines()
    assert f"whole run: {ms(trace.end)} ms" in lines[0]
    cells, longest = columns - margin_of([whole_run(trace)]), max(1, trace.end)
    for lane, line in zip(whole_run(trace).lanes, lines[1:], strict=False):
        assert line.strip().startswith(lane.title)
        drawn = line.partition("│")[2].ljust(cells)
        boxes = [box.slice for box in whole_run(trace).on(lane) if box.slice.duration]
        for cell, glyph in enumerate(drawn):
            if glyph.isdigit():
                continue
            start, end = cell * longest // cells, (cell + 1) * longest // cells
            took = [(min(b.end, end) - max(b.start, start), letter(b.name)) for b in boxes]
            most = max((time for time, _ in took), default=0)
            best = {name for time, name in took if time == most} if most > 0 else {" ", "╱", "╳"}
            assert glyph in best, (lane.key, cell, took)


@law
@given(traces())
def test_chrome_flows_bind_inside_their_slices(trace: Trace) -> None:
    """What Perfetto goes by: the slice of that lane that is open when the flow leaves."""
    events = json.loads(to_chrome(trace))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    flows = [event for event in events if event["ph"] in "sf"]
    assert Counter(e["name"] for e in flows) == Counter(2 * [edge.kind for edge in trace.edges])
    assert all(event["bp"] == "e" for event in flows if event["ph"] == "f")
    assert all(event["tid"] != event["pid"] for event in events if "tid" in event)
    for flow in flows:
        time, owner = ns(flow["ts"]), flow["args"]["src" if flow["ph"] == "s" else "dst"]
        (bound,) = (event for event in slices if event["args"]["id"] == owner)
        assert bound["tid"] == flow["tid"]
        # It is open, and not only just closed; one of length zero has no inside.
        assert ns(bound["ts"]) <= time < chrome_end(bound) + (not bound["dur"])
    for tid in chrome_lanes(events):
        spans = sorted((ns(e["ts"]), chrome_end(e)) for e in slices if e["tid"] == tid)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


@law
@given(traces(), st.data())
def test_a_window_shows_what_touches_it(trace: Trace, data: st.DataObject) -> None:
    """The same slices in every picture of a few steps, cut where the view ends."""
    steps = sorted(item.step for item in forwards(trace))
    if not steps:
        return
    first, last = sorted(data.draw(st.tuples(st.sampled_from(steps), st.sampled_from(steps))))
    view = view_of_steps(trace, first, last)
    wanted = Counter(
        (box.lane.key, phase(box.slice.name), *view.clip(box.slice.start, box.slice.end))
        for box in view.boxes
        if view.clip(box.slice.start, box.slice.end)[0]
        < view.clip(box.slice.start, box.slice.end)[1]
    )
    assert read_timing(to_timing(trace, first, last)).boxes == wanted
    notes, _ = read_sequence(to_sequence(trace, first, last))
    assert sum(notes.values()) == sum(box.slice.duration > 0 for box in view.boxes)
    inside = [s for s in trace.slices if s.start < view.end and s.end > view.start and s.duration]
    assert sum(wanted.values()) == len(inside)


def test_the_same_bytes_each_time() -> None:
    one, two = list(loop_traces().values()), list(loop_traces().values())
    assert to_svg(one) == to_svg(two)
    assert to_html(one) == to_html(two)
    assert [to_chrome(trace) for trace in one] == [to_chrome(trace) for trace in two]


def test_runs_are_compared_over_the_same_steps() -> None:
    views = steady_views(list(loop_traces().values()), 3)
    assert len({(view.first_step, view.last_step) for view in views}) == 1
    assert len({box.slice.rids for view in views for box in view.boxes if box.slice.rids}) == 1
    serial, overlap, mlx_async = views
    assert serial.duration == 3 * 16_400_000  # d + h + c, from the costs of sim
    assert overlap.duration == mlx_async.duration == 3 * 9_200_000  # d


def test_svg_names_what_it_shows() -> None:
    traces = loop_traces()
    text = to_svg([traces["serial"], traces["overlap"]])
    words = " ".join("".join(e.itertext()) for e in ElementTree.fromstring(text).iter())
    for wanted in ("serial", "overlap", "device busy", "time in ms", "21.6 ms saved", "speed-up"):
        assert wanted in words
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_title_names_three_loops_and_counts_more() -> None:
    trace = loop_traces()["serial"]
    three = [loop_traces()[name] for name in ("serial", "overlap", "mlx_async")]
    for draw in (to_svg, to_html):
        assert "<title>serial against overlap against mlx_async" in draw(three)
        assert "<title>4 loops side by side" in draw([trace] * 4)


def test_html_needs_no_network() -> None:
    text = to_html(list(loop_traces().values()))
    assert not re.search(r"https?://|<link|@import|src=", text)
    assert text.count("</script>") == 1 + len(SCRIPTS)


def test_names_from_outside_are_escaped() -> None:
    rid = '</script><b>&"a\n'
    odd = Slice(1, "forward", "forward", 0, 10, 1, "decode", (rid,))
    trace = Trace("<loop>", "sim", "<m>&", "virtual", (odd,), (), (), ())
    ElementTree.fromstring(to_svg([trace]))
    assert read_html(to_html([trace])).boxes == truth(trace).boxes
    assert "<b>" not in to_html([trace])
    assert native.from_json(native.to_json(trace)) == trace
    assert json.loads(to_chrome(trace))
    assert '"<loop>' not in to_timing(trace)


def test_other_streams_get_lanes_of_their_own() -> None:
    slices = (
        Slice(1, "host", "launch", 0, 5, 1),
        Slice(2, "forward", "forward", 5, 9, 1),
        Slice(3, "detokenize", "gather", 9, 12, 1),
    )
    edges = (Edge(1, 2, "launch"), Edge(2, 3, "hand over"))
    trace = Trace("stages", "sim", "hash", "virtual", slices, edges, (), ())
    lanes = make_view(trace).lanes
    assert [lane.title for lane in lanes][4:] == ["Detokenize stream (device)"]
    assert 'class="thin other"' in to_svg([trace]) or 'class="box other"' in to_svg([trace])
    assert "Detokenize stream (device)" in to_timing(trace)
    text = to_text([trace])
    assert f"│{OTHER}" in text or f" {OTHER}" in text
    assert "Detokenize stream" in to_chrome(trace)


LANES = (
    ["host", "worker thread", "forward", "copy"],
    ["host", "stage 0", "stage 1", "copy"],
    ["prefill host", "prefill forward", "kv transfer", "decode host", "decode forward", "copy"],
)


@st.composite
def odd_traces(draw: st.DrawFn) -> Trace:
    """Slices and edges on the lanes of any design, with phases that no loop has had yet."""
    clocks = dict.fromkeys(draw(st.sampled_from(LANES)), 0)
    slices: list[Slice] = []
    names = st.sampled_from(["forward", "launch", "wait", "fill", "transfer"])
    for at in range(1, draw(st.integers(1, 12)) + 1):
        lane = draw(st.sampled_from(sorted(clocks)))
        start = clocks[lane] + draw(times)
        clocks[lane] = end = start + draw(times) + 1
        slices.append(Slice(at, lane, draw(names), start, end, draw(st.integers(0, 3))))
    pairs = [(a.id, b.id) for a in slices for b in slices if a is not b and a.end <= b.start]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=4, unique=True)) if pairs else []
    edges = sorted(Edge(src, dst, "token") for src, dst in chosen)
    ordered = sorted(slices, key=lambda item: (item.start, item.end, item.id))
    return Trace("odd", "sim", "hash", "virtual", tuple(ordered), tuple(edges), (), ())


@law
@given(odd_traces())
def test_several_hosts_threads_stages_and_devices_tell_the_same_story(trace: Trace) -> None:
    assert read_chrome(to_chrome(trace)) == truth(trace)
    assert read_svg(to_svg([trace], whole=True), trace) == truth(trace)
    assert read_html(to_html([trace])) == truth(trace)
    assert native.from_json(native.to_json(trace)) == trace
    assert read_timing(to_timing_of_all(trace)) == truth(trace)
    lines = to_text([trace], whole=True).splitlines()
    assert [line.partition("│")[0].strip() for line in lines if "│" in line] == [
        lane.title for lane in make_view(trace).lanes
    ]


def to_timing_of_all(trace: Trace) -> str:
    """The whole run, however its steps are numbered."""
    return draw_panels([Panel(make_view(trace))], trace.loop)


def test_each_device_idles_on_its_own_lane() -> None:
    slices = (
        Slice(1, "stage 0", "forward", 0, 4, 1),
        Slice(2, "stage 1", "forward", 4, 6, 1),
        Slice(3, "stage 0", "forward", 4, 8, 2),
        Slice(4, "stage 1", "forward", 8, 10, 2),
    )
    trace = Trace("stages", "sim", "hash", "virtual", slices, (), (), ())
    (bubble,) = make_view(trace).bubbles
    assert (bubble.lane.name, bubble.start, bubble.end) == ("Stage 1", 6, 8)
    assert to_svg([trace]).count('class="bubble"') == 2  # one on its lane, one in the legend
    assert to_timing(trace).count(BUBBLE.fill) == 2
    drawn = [line.strip() for line in to_text([trace]).splitlines()]
    assert [line.partition(" (")[0] for line in drawn if "│" in line and "╱" in line] == ["Stage 1"]


def test_a_schedule_belongs_to_the_step_that_it_led_to() -> None:
    """On each host the step prepared next, however many follow upon it."""
    slices = (
        Slice(1, "prefill host", "schedule", 0, 2),
        Slice(2, "decode host", "schedule", 1, 3),
        Slice(3, "prefill host", "prepare", 2, 3, 5),
        Slice(4, "decode host", "prepare", 3, 4, 8),
        Slice(5, "decode host", "prepare", 4, 5, 9),
        Slice(6, "decode host", "schedule", 6, 7),
    )
    trace = Trace("two", "sim", "hash", "virtual", slices, (), (), ())
    assert [box.step for box in make_view(trace).boxes] == [5, 8, 5, 8, 9, 0]


def test_an_op_that_starts_inside_its_launch_points_forward() -> None:
    """On a wall clock the device may start before the host's call has returned."""
    slices = (Slice(1, "host", "launch", 0, 50, 1), Slice(2, "forward", "forward", 20, 90, 1))
    edges = (Edge(1, 2, "launch"),)
    trace = Trace("eager", "thread", "hash", "wall", slices, edges, (), ())
    (arrow,) = make_view(trace).arrows
    assert (arrow.start, arrow.end) == (20, 20)
    flows = {e["ph"]: e["ts"] for e in json.loads(to_chrome(trace))["traceEvents"] if "id" in e}
    assert flows["s"] < flows["f"]


GOOD = Trace(
    "serial",
    "sim",
    "hash",
    "virtual",
    (
        Slice(1, "host", "launch", 0, 5, 1, "decode", ("a",), {"x": 1}),
        Slice(2, "copy", "copy", 5, 6),
    ),
    (Edge(1, 2, "launch"),),
    (CounterEvent("running", 3, 1),),
    (Mark("wasted row", 4, {"rid": "a"}),),
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format="other"), 'lacks "format"'),
        (lambda d: d.update(version=2), "of version 2; this program reads 1"),
        (lambda d: d.pop("slices"), "the trace has slices = null"),
        (lambda d: d.update(loop=3), "the trace has loop = 3"),
        (lambda d: d["slices"].append(7), "slices[2] is not an object"),
        (lambda d: d["slices"][0].pop("start"), "slices[0] has start = null"),
        (lambda d: d["slices"][0].update(end="5"), 'slices[0] has end = "5"'),
        (lambda d: d["slices"][0].update(end=True), "slices[0] has end = true"),
        (lambda d: d["slices"][0].update(rids=[1]), "slices[0] has rids = [1]"),
        (lambda d: d["slices"][1].update(end=1), "slice 2 ends at 1, before it starts"),
        (lambda d: d["edges"][0].update(src=9), "edge 9 to 2 names a slice that is not there"),
        (lambda d: d["marks"][0].update(time=1.5), "marks[0] has time = 1.5"),
    ],
)
def test_a_damaged_trace_is_refused_in_one_sentence(change: Any, says: str) -> None:
    data = json.loads(native.to_json(GOOD))
    change(data)
    with pytest.raises(native.NotATrace) as caught:
        native.from_json(json.dumps(data), "x.json")
    message = str(caught.value)
    assert message.startswith("x.json is") and says in message and message.endswith(".")


def test_a_file_that_is_no_trace_is_refused(tmp_path: Any) -> None:
    for content in (b"", b"hello", b"[1]", b"\xff\xfe\x00", b'{"traceEvents": []}'):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(native.NotATrace, match="is not a minisched trace"):
            native.read(tmp_path / "x")
    native.write(GOOD, tmp_path / "y")
    assert native.read(tmp_path / "y") == GOOD


def test_bad_requests_for_pictures() -> None:
    trace = loop_traces()["serial"]
    with pytest.raises(
        ValueError, match="steps 3 to 99 cannot be shown: the run has steps 1 to 30"
    ):
        to_timing(trace, 3, 99)
    with pytest.raises(ValueError, match="at least one trace, but got 0"):
        to_svg([])
    with pytest.raises(ValueError, match="at least 1 trace and a report for each"):
        to_html([trace], [])
    with pytest.raises(ValueError, match="at least 1 trace and 60 columns, but got 1 and 10"):
        to_text([trace], columns=10)


@given(st.integers(0, 10**13))
def test_times_are_written_exactly_or_rounded(time: int) -> None:
    for digits in (0, 3, 6):
        whole, _, rest = exact(time, 10**digits).partition(".")
        assert int(whole) * 10**digits + int(rest.ljust(digits, "0") or "0") == time
    assert abs(float(ms(time)) * 10**6 - time) <= (50_000 if time >= 10**9 else 5_000)
    step = tick_step(time)
    assert time <= 10 * step and str(step).strip("0") in ("1", "2", "5")
