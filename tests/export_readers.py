"""Reads pictures back: what each format shows, so that it can be held against the trace.

Each reader gives two Counters in the same terms: boxes as (lane, phase, start, end) and arrows as
(lane, leaves, lane, arrives), in nanoseconds; and the total time that the picture shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

from minisched.export.layout import make_view
from minisched.export.palette import OTHER, PAINTS
from minisched.export.puml_style import BUBBLE, WAIT
from minisched.export.svg import RIGHT, WIDTH, left_of
from minisched.trace import Slice, Trace

SVG = "{http://www.w3.org/2000/svg}"
FILLS = {paint.fill: name for name, paint in [*PAINTS.items(), ("other", OTHER)]}
assert len({*FILLS, BUBBLE.fill, WAIT.fill}) == len(PAINTS) + 3, "a colour must tell the phase"


@dataclass
class Shown:
    """What a picture shows."""

    boxes: Counter[Any]
    arrows: Counter[Any]
    end: int


HOST_LANES = {
    **dict.fromkeys(("receive", "schedule", "prepare", "launch"), "scheduler"),
    **dict.fromkeys(("wait", "process", "output"), "process"),
}


def truth(trace: Trace) -> Shown:
    """What a picture of the whole run must show; boxes of length zero cannot be seen."""
    slices = {item.id: item for item in trace.slices}
    assert len(slices) == len(trace.slices)
    lanes = {item.id: lane_key(item) for item in trace.slices}
    boxes = Counter(
        (lanes[item.id], phase(item.name), item.start, item.end)
        for item in trace.slices
        if item.end > item.start
    )
    arrows = Counter(
        (lanes[e.src], slices[e.src].end, lanes[e.dst], slices[e.dst].start) for e in trace.edges
    )
    return Shown(boxes, arrows, trace.end)


def lane_key(item: Slice) -> str:
    """The one word by which a picture knows the lane of a slice."""
    if item.lane == "host":
        return HOST_LANES.get(item.name, "scheduler")
    word = item.lane.replace(" ", "_")
    if item.lane.endswith(("host", "thread")):
        return f"thread_{word}"
    return word if word in ("forward", "copy") else f"stream_{word}"


def phase(name: str) -> str:
    """How a picture's colours name a phase: those without one of their own share one."""
    return name if name in PAINTS else "other"


def read_chrome(text: str) -> Shown:
    """Chrome Trace Event JSON: slices, and flows by the ids of the slices they connect."""
    events = json.loads(text)["traceEvents"]
    lanes = chrome_lanes(events)
    slices = {event["args"]["id"]: event for event in events if event["ph"] == "X"}
    boxes = Counter(
        (lanes[e["tid"]], phase(e["cat"]), ns(e["ts"]), chrome_end(e))
        for e in slices.values()
        if e["dur"]
    )
    starts, ends = (
        {event["id"]: event for event in events if event["ph"] == phase} for phase in "sf"
    )
    assert starts.keys() == ends.keys()
    arrows: Counter[Any] = Counter()
    for found, start in starts.items():
        src, dst = slices[start["args"]["src"]], slices[start["args"]["dst"]]
        assert (start["tid"], ends[found]["tid"]) == (src["tid"], dst["tid"])
        arrives = ns(ends[found]["ts"])
        arrows[lanes[start["tid"]], chrome_end(src), lanes[dst["tid"]], arrives] += 1
    return Shown(boxes, arrows, max(map(chrome_end, slices.values()), default=0))


def chrome_end(event: dict[str, Any]) -> int:
    """When a slice ends, in nanoseconds."""
    return ns(event["ts"]) + ns(event["dur"])


def chrome_lanes(events: list[dict[str, Any]]) -> dict[int, str]:
    """Lane keys by thread id; the name that the reader sees ends in the side."""
    titles = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    named = {tid: title.rpartition(" ")[::2] for tid, title in titles.items()}
    return {tid: key_of_title(name, side == "(host)") for tid, (name, side) in named.items()}


def key_of_title(title: str, is_host: bool) -> str:
    """A lane's key, from the name that the reader sees."""
    usual = {"Scheduler": "scheduler", "Process": "process"}
    usual |= {"Forward stream": "forward", "Copy stream": "copy"}
    word = title.lower().removesuffix(" stream").replace(" ", "_")
    return usual.get(title) or f"{'thread' if is_host else 'stream'}_{word}"


def ns(microseconds: float) -> int:
    """Nanoseconds."""
    return round(microseconds * 1000)


def read_svg(text: str, trace: Trace) -> Shown:
    """The SVG of one whole run: from where its shapes lie, to within half a tenth of a pixel."""
    root = ElementTree.fromstring(text)
    view = make_view(trace)
    left = left_of([view])
    scale = (WIDTH - left - RIGHT) / max(1, view.duration)
    rects = list(root.iter(f"{SVG}rect"))
    tops = [float(rect.attrib["y"]) + 3 for rect in rects if rect.get("class") == "lane"]
    by_id = {str(box.slice.id): box for box in view.boxes}
    boxes: Counter[Any] = Counter()
    for rect in rects:
        if not (found := rect.get("data-id")):
            continue
        item, (x, y, width) = (
            by_id[found].slice,
            (float(rect.attrib[k]) for k in ("x", "y", "width")),
        )
        assert abs(x - left - item.start * scale) < 0.051
        assert abs(width - max(1, item.duration * scale)) < 0.051  # at least a pixel, to be seen
        lane = view.lanes[tops.index(y)].key
        boxes[lane, rect.attrib["class"].split()[-1], item.start, item.end] += 1
        assert rect.attrib["data-start"] == str(item.start)
        assert rect.attrib["data-end"] == str(item.end)
    arrows: Counter[Any] = Counter()
    for path in root.iter(f"{SVG}path"):
        if "data-src" not in path.attrib:
            continue
        src, dst = by_id[path.attrib["data-src"]], by_id[path.attrib["data-dst"]]
        points = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
        if "L" in path.attrib["d"]:  # not a bow within a lane
            assert abs(points[0] - left - src.slice.end * scale) < 0.051
            assert abs(points[2] - left - dst.slice.start * scale) < 0.051
        rows = [max(i for i, top in enumerate(tops) if top - 2 <= y) for y in points[1::2]]
        lanes = view.lanes[rows[0]].key, view.lanes[rows[-1]].key
        arrows[lanes[0], src.slice.end, lanes[1], dst.slice.start] += 1
    return Shown(boxes, arrows, max((key[3] for key in boxes), default=0))


def read_html(text: str) -> Shown:
    """The data of the page's one run."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found
    data = json.loads(found[1])
    run, names = data["runs"][0], data["names"]
    lane_of = {one[0]: lane["key"] for lane in run["lanes"] for one in lane["slices"]}
    boxes = Counter(
        (lane["key"], phase(names[number]), start, end)
        for lane in run["lanes"]
        for _, number, start, end, *_ in lane["slices"]
        if end > start
    )
    arrows = Counter(
        (lane_of[src], start, lane_of[dst], end) for src, dst, _, start, end in run["edges"]
    )
    return Shown(boxes, arrows, run["end"])


def read_timing(text: str) -> Shown:
    """PlantUML timing: what each lane shows from when on, until it shows something else."""
    boxes: Counter[Any] = Counter()
    arrows: Counter[Any] = Counter()
    now, open_boxes = 0, dict[str, tuple[str, int]]()
    unit = re.search(r"^caption time in (\w+)$", text, re.M)
    assert unit

    def time(written: str) -> int:
        exact = Decimal(written) * {"milliseconds": 10**6, "microseconds": 10**3}.get(unit[1], 1)
        assert exact == int(exact)
        return int(exact)

    for line in text.splitlines():
        if found := re.fullmatch(r"@([\d.]+)", line):
            now = time(found[1])
        elif found := re.fullmatch(r'(\w+) is (?:\{-\}|".*" (#\w+))', line):
            lane, fill = found[1], found[2]
            if lane in open_boxes:
                boxes[(lane, *open_boxes.pop(lane), now)] += 1
            if fill and fill not in (BUBBLE.fill, WAIT.fill):  # an idle device is no slice
                open_boxes[lane] = (FILLS[fill], now)
        elif found := re.fullmatch(r"(\w+)@([\d.]+) -\[#\w+\]> (\w+)@([\d.]+)", line):
            arrows[found[1], time(found[2]), found[3], time(found[4])] += 1
    assert not open_boxes
    return Shown(boxes, arrows, now)


def read_sequence(text: str) -> tuple[Counter[Any], Counter[Any]]:
    """PlantUML sequence has no time axis: (lane, label, duration) and (lane, lane, text)."""
    plain = re.sub(r"</?color[^>]*>", "", text)
    notes = re.findall(r"rnote over (\w+) #\w+ : (.*)\\n(.*) ms", plain)
    arrows = re.findall(r"^(\w+) -\[#\w+\]-?>+ (\w+) : (.*)$", plain, re.M)
    return Counter(notes), Counter(arrows)
