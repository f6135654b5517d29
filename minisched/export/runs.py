"""What every loop's pictures show: who works when, who tells whom, and step under step.

All are lanes of a ``View`` (``layout.py``); several runs stand one above the other on one time
axis, and the first of them is the baseline that speed-ups refer to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..checks.causes import waits
from ..checks.overlap import measure
from ..trace import Mark, Trace
from ..trace.events import is_host
from .layout import (
    Arrow,
    Box,
    Lane,
    View,
    boxes_of,
    choose_view,
    meaning,
    says,
    steady_views,
    whole_run,
)
from .looks import LOOKS
from .palette import ARROWS, PAINTS, SHARES
from .scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, TextTable, about_run
from .units import busy, ms
from .views.marks import many
from .views.shown_steps import shown

LEGEND = {
    **{name: name for name in PAINTS},
    "waiting": "waiting",
    "prompt": "tokens of a prompt",
    "again": "computed once more",
    "decode": "one token decoded",
    "wasted": "computed for nobody",
    "other": "another phase",
    "bubble": "the device idles",
    "waited": "the device waits for what a step needs",
    "flag": "the host lets an op wait",
    **{f"arrow {kind}": words for kind, words in ARROWS.items()},
}
MOST_NAMES = 3  # of loops; more would fill the title

# -- Who works when: a few settled steps of one run, or the same of several ------------------------


def timing(trace: Trace, count: int = 3) -> Scene:
    """``count`` settled steps of a run; 0: the whole run.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    return side_by_side([view], f"{trace.loop}: {finding(view)}")


def compare(traces: Sequence[Trace], steps: int = 3, whole: bool = False, title: str = "") -> Scene:
    """A few settled steps of each run, or the whole runs.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a picture needs at least one trace, but got 0.")
    views = [whole_run(t) for t in traces] if whole else steady_views(list(traces), steps)
    return side_by_side(views, title)


def stretch(
    trace: Trace, first_step: int | None = None, last_step: int | None = None, title: str = ""
) -> Scene:
    """From one step of a run to another; three settled ones unless told which.

    Raises:
        ValueError: the run has no such steps.
    """
    return side_by_side([choose_view(trace, first_step, last_step, count=3)], title)


def side_by_side(
    views: Sequence[View], title: str = "", names: Sequence[tuple[str, str]] = ()
) -> Scene:
    """What was chosen of each run, with how busy its device was, or what ``names`` say of it."""
    base, parts = views[0], list[Part]()
    end = max(view.duration for view in views)
    for view in views:
        report = measure(view.trace)
        what = "" if is_whole(view) else (f"steps {view.first_step} to {view.last_step} of "
                                          f"{report.steps}: {ms(view.duration)} ms; ")  # fmt: skip
        note = f"{what}whole run: {ms(report.makespan_ns)} ms, {busy(report)}"
        if view is not base and report.makespan_ns:
            note += f", speed-up {base.trace.end / report.makespan_ns:.2f}×"
        lanes = lanes_of(view, end)
        heading, note = names[len(parts)] if names else (report.loop, note)
        parts.append(Part(heading, note, [lanes if names else with_end(lanes, view, base)]))
    zero = "" if is_whole(base) else "0 is when the device starts the first of these steps"
    clock = "simulated time" if base.trace.clock == "virtual" else "measured time"
    about = about_run(base.trace) if len(views) == 1 else f"{base.trace.what_ran}, {clock}"
    return Scene(title or _title(views), "; ".join(filter(None, (about, zero))), parts, LEGEND,
                 [line for view in views for line in wrong_tokens(view)])  # fmt: skip


def is_whole(view: View) -> bool:
    """Whether nothing of the run is left out."""
    return view.start == 0 and view.end == view.trace.end


def finding(view: View) -> str:
    """How much the devices idle in the time shown, and what for: true of this run."""
    devices = {box.lane for box in view.boxes if box.slice.name == "forward"}
    spans = [view.clip(item.start, item.end) for item in view.bubbles]
    idle = sum(end - start for start, end in spans)
    steps = len({box.step for box in view.boxes if box.slice.name == "forward"})
    reasons = ", ".join(dict.fromkeys(item.reason for item in view.bubbles if item.reason))
    why = f", waiting for {reasons}" if reasons else ""
    if len(devices) > 1:
        share = 100 * idle / (len(devices) * max(1, view.duration))
        return f"{len(devices)} devices, idle {share:.0f} % of this time{why}"
    if not idle:
        return (
            f"the device never idles in these {steps} steps"
            if steps > 1
            else ("the device never idles in this step")
        )
    if is_whole(view) or steps < 2:
        return f"the device idles {ms(idle)} of {ms(view.duration)} ms{why}"
    return f"the device idles {ms(idle // steps)} of {ms(view.duration // steps)} ms a step{why}"


def loops_shown(traces: Sequence[Trace]) -> str:
    """The loops by name, or how many there are where their names would fill the line."""
    if len(traces) > MOST_NAMES:
        return f"{len(traces)} loops side by side"
    return " against ".join(trace.loop for trace in traces)


def _title(views: Sequence[View]) -> str:
    """What a comparison shows."""
    loops, base, last = loops_shown([view.trace for view in views]), views[0], views[-1]
    if len(views) == 1:
        return f"{loops}: {finding(base)}"
    rows = max((len(box.slice.rids) for box in base.boxes), default=0)
    count = base.last_step - base.first_step + 1
    what = f"the same {count} decode steps of {many(rows, 'request')}"
    what = "the whole run" if is_whole(base) else what
    if len(views) == 2 and not is_whole(base) and base.duration != last.duration:
        return f"{loops}: {what} in {ms(last.duration)} instead of {ms(base.duration)} ms"
    return f"{loops}: {what}"


def lanes_of(view: View, duration: int) -> Lanes:
    """Boxes, idle stretches, arrows and waits; the axis is ``duration`` nanoseconds long."""
    spans: dict[str, list[LaneItem]] = {lane.key: [] for lane in view.lanes}
    idle_ns = [item.end - item.start for item in view.bubbles]
    # of a long profile's gaps, thinner than a line and hardly any in all, nothing would be seen
    is_seen = max(idle_ns, default=0) >= duration / 1000 or sum(idle_ns) >= duration / 100
    for item in view.bubbles if is_seen else ():
        kind, idle = "waited" if item.reason else "bubble", ms(item.end - item.start)
        about = f"bubble: {item.lane.name.lower()} waits {idle} ms" + (
            f" for {item.reason}" if item.reason else ""
        )
        spans[item.lane.key].append(
            LaneItem(kind, *view.clip(item.start, item.end), f"{item.reason or 'idle'} {idle} ms",
                 about=about)
        )  # fmt: skip
    for box in view.boxes:
        if box.slice.duration:
            spans[box.lane.key].append(_span(view, box))
    for one in view.wrong_tokens:
        first, *more = one.words.split("; ")  # all of them are on the arrow
        spans[one.box.lane.key].append(
            LaneItem("said", *view.clip(one.box.slice.start, one.box.slice.end),
                 f"{first} …" if more else first)
        )  # fmt: skip
    for mark in waits_of(view):
        side = str(mark.attrs.get("side", "")).capitalize()
        hosts = (lane for lane in view.lanes if lane.side == "host" and lane.name.startswith(side))
        time = view.clip(mark.time, mark.time)[0]
        spans[next(hosts, view.lanes[0]).key].append(_flag(mark, time))
    notes = ["" if lane.name.lower().endswith(lane.side) else lane.side for lane in view.lanes]
    rows = [
        LaneRow(lane.name, spans[lane.key], note)
        for lane, note in zip(view.lanes, notes, strict=True)
    ]
    start, _ = view.clip(view.start, view.start)
    return Lanes(rows, start + duration, start, links_of(view))


def links_of(view: View) -> list[LaneLink]:
    """An arrow for each edge between two boxes that are shown."""
    at = {lane.key: number for number, lane in enumerate(view.lanes)}
    return [
        LaneLink(
            arrow.brings if arrow.brings in ARROWS else "launch",
            (at[arrow.src.lane.key], view.clip(arrow.start, arrow.start)[0]),
            (at[arrow.dst.lane.key], view.clip(arrow.end, arrow.end)[0]),
            says(arrow),
            meaning(arrow),
            {"kind": arrow.kind, "src": arrow.src.slice.id, "dst": arrow.dst.slice.id},
        )
        for arrow in view.arrows
    ]


def with_end(lanes: Lanes, view: View, base: View) -> Lanes:
    """The lanes with a line where the run has done its steps, and how much sooner than the base."""
    if view.duration == lanes.end:
        return lanes
    until = max(view.duration, base.duration)
    saved, factor = base.duration - view.duration, base.duration / max(1, view.duration)
    note = f"{ms(view.duration)} instead of {ms(base.duration)} ms: {factor:.2f}×"
    flag = LaneItem("end", view.duration, until, f"{ms(saved)} ms saved" if saved > 0 else "", note)
    return Lanes(lanes.rows, lanes.end, lanes.start, lanes.links, [flag])


def waits_of(view: View) -> list[Mark]:
    """The waits that were decided in the time shown."""
    return [mark for mark in waits(view.trace) if view.start <= mark.time <= view.end]


def wrong_tokens(view: View) -> Iterator[str]:
    """A sentence for each slice that took a wrong token, and where that came from."""
    for item in view.wrong_tokens:
        sources = [one.src.label for one in view.arrows if one.wrong and one.dst is item.box]
        came_from = f", from {', '.join(sources)}" if sources else ""
        yield f"wrong token for {item.box.label}: {item.words}{came_from}"


def _span(view: View, box: Box, label: str = "") -> LaneItem:
    """A slice that takes time; its step alone stands in it where its name has no room."""
    item = box.slice
    about = [box.label, f"{ms(item.start)} to {ms(item.end)} ms", f"{ms(item.duration)} ms"]
    about += [item.mode, " ".join(item.rids)] if item.rids else []
    return LaneItem(
        item.name if item.name in LOOKS else "other",
        *view.clip(item.start, item.end),
        label or box.label,
        "" if label or item.name in ("wait", *SHARES) else str(box.step or ""),
        ", ".join(about),
        {"id": item.id, "start": item.start, "end": item.end, "step": box.step},
    )


def _flag(mark: Mark, time: int) -> LaneItem:
    said = "{op} {step} waits for {reason}".format(**mark.attrs)
    return LaneItem(
        "flag", time, time, about=f"{said} at {ms(mark.time)} ms", data={"mark": "wait"}
    )


# -- Who tells whom, in order ----------------------------------------------------------------------


def sequence(trace: Trace, count: int = 2) -> Scene:
    """``count`` settled steps, told one after the other.

    Raises:
        NothingToShow: no step ran.
    """
    return in_order(shown(trace, count))


def messages(
    trace: Trace, first_step: int | None = None, last_step: int | None = None, title: str = ""
) -> Scene:
    """From one step of a run to another; two settled ones unless told which.

    Raises:
        ValueError: the run has no such steps.
    """
    return in_order(choose_view(trace, first_step, last_step, count=2), title)


def in_order(view: View, title: str = "") -> Scene:
    """A view as a sequence, with a line where the first device begins with each step."""
    scene = side_by_side([view], title or f"{view.trace.loop}: {way_of_tokens(view)}")
    lanes = lanes_of(view, view.duration)
    rows = [replace(row, note="", group=lane.side)
            for row, lane in zip(lanes.rows, view.lanes, strict=True)]  # fmt: skip
    forwards = [box for box in view.boxes if box.slice.name == "forward"]
    lane = min((box.lane for box in forwards), key=view.lanes.index, default=None)
    starts = {view.clip(box.slice.start, box.slice.start)[0]: box.step for box in forwards
              if box.lane == lane and box.slice.start >= view.start}  # fmt: skip
    begins = [LaneItem("begin", at, at, f"step {step} begins") for at, step in starts.items()]
    told = replace(lanes, rows=rows, flags=begins, runs_down=True)
    about = about_run(view.trace, "time runs down, in order but not to scale")
    return replace(scene, about=about, parts=[replace(scene.parts[0], shows=[told])])


def way_of_tokens(view: View) -> str:
    """How the tokens in a view get to the next step: true of these steps."""
    ways = [meaning(arrow) for arrow in view.arrows if arrow.brings == "token"]
    on_device = sum("stays on the device" in way for way in ways)
    if not ways:
        return "who tells whom, in order"
    if on_device in (0, len(ways)):
        return f"a token goes to the next step {'without' if on_device else 'over'} the host"
    return f"{on_device} of {len(ways)} tokens go to the next step without the host"


# -- Step under step: each has a lane for its host and one for its device --------------------------


@dataclass(frozen=True)
class StepRow:
    """A step, from the moment it was scheduled until its result was processed.

    ``lanes``: the host's, its thread's, then the device's; a second of one where two things of a
    step overlap there. All are named after the step.
    """

    side: str  # whose step (``prefill``, ``decode``; empty where there is one scheduler)
    step: int
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]  # on those lanes

    @property
    def name(self) -> str:
        """``step 5``, ``prefill step 5``."""
        return f"{self.side} step {self.step}".strip()

    @property
    def start(self) -> int:
        """When the host began to schedule it."""
        return min(box.slice.start for box in self.boxes)

    @property
    def end(self) -> int:
        """When its last part was over."""
        return max(box.slice.end for box in self.boxes)

    @property
    def device_span(self) -> tuple[int, int]:
        """When a device began with it, and when the last one had done with it."""
        device = [box.slice for box in self.boxes if box.lane.side == "device"]
        return min(item.start for item in device), max(item.end for item in device)


def steps(trace: Trace, count: int = 4) -> Scene:
    """``count`` settled steps; above each stands how long it was on its way with the one before.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    before: dict[str, StepRow] = {}
    drawn, both = list[LaneRow](), ""
    flags = {mark.time: mark for mark in waits_of(view)}
    for row in rows:
        earlier = before.get(row.side)
        common = together(earlier, row) if earlier else 0
        tint = view.clip(row.start, row.start + common)
        measure_ = LaneItem("span", *tint, f"{ms(common)} ms together", data={"overlap": row.step})
        item = next(box.slice for box in row.boxes if box.slice.name == "forward")
        who = f"{item.mode}, {len(item.rids)} row{'s' * (len(item.rids) != 1)}"
        for lane in row.lanes:
            spans = [LaneItem("both", *tint)] if common else []
            spans += [_span(view, box, box.slice.name) for box in row.boxes
                      if box.lane == lane and box.slice.duration]  # fmt: skip
            if lane is row.lanes[0]:
                spans += [
                    _flag(mark, view.clip(time, time)[0])
                    for time, mark in flags.items()
                    if mark.attrs.get("step") == row.step
                    or (
                        row is rows[0]
                        and all(other.step != mark.attrs.get("step") for other in rows)
                    )
                ]
            name = "thread" if " thread" in lane.name else lane.side
            is_first = lane is row.lanes[0]
            name += " also" * lane.name.endswith("also")
            above = measure_ if common and is_first else None
            drawn.append(LaneRow(name, spans, "", row.name, who, above))
        before[row.side] = row
        both = "the step above is on its way, too" if common else both
    moments = TextTable(HEADS, list(_moments(view, rows)))
    return Scene(
        f"{trace.loop}: {rhythm(rows)}",
        about_run(trace, "0 is when the first of these steps is scheduled"),
        [
            Part("Step under step", "", [Lanes(drawn, view.duration, links=links_of(view))]),
            Part("Moments", "ms since the first of these steps was scheduled", [moments]),
        ],
        {**LEGEND, "both": both} if both else LEGEND,
    )


HEADS = ("step", "scheduled", "launched", "on the device", "processed", "together with the above")


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """The steps that the other parts show, or ``count`` of them, whole; the first one first.

    Raises:
        NothingToShow: no step ran.
    """
    view, sides = shown(trace, count), sides_of(trace)
    found: dict[tuple[str, int], list[Box]] = {}
    for box in boxes_of(trace):
        if box.step:
            found.setdefault((sides[box.slice.lane], box.step), []).append(box)
    rows = [
        _row(side, step, boxes)
        for (side, step), boxes in found.items()
        if view.start <= _forward_start(boxes) < view.end
    ]
    return sorted(rows, key=lambda row: (row.start, row.step))


def steps_view(trace: Trace, rows: list[StepRow]) -> View:
    """The rows as a view: everything that belongs to one of them, and the edges between that."""
    boxes = {box.slice.id: box for row in rows for box in row.boxes}
    arrows = (
        Arrow(boxes[edge.src], boxes[edge.dst], edge.kind)
        for edge in trace.edges
        if edge.src in boxes and edge.dst in boxes
    )
    start, end = min(row.start for row in rows), max(row.end for row in rows)
    lanes = tuple(lane for row in rows for lane in row.lanes)
    numbers = [row.step for row in rows]
    return View(trace, start, end, min(numbers), max(numbers), lanes, tuple(boxes.values()),
                tuple(arrows), ())  # fmt: skip


def sides_of(trace: Trace) -> dict[str, str]:
    """Which scheduler a lane belongs to; the link between two belongs to the one that sends."""
    lanes = dict.fromkeys(item.lane for item in trace.slices)
    named = [lane.removesuffix(" host") for lane in lanes if lane.endswith(" host")]
    found = {lane: next((s for s in named if lane.startswith(f"{s} ")), "") for lane in lanes}
    slices = {item.id: item for item in trace.slices}
    for edge in trace.edges:
        if not found[slices[edge.dst].lane]:
            found[slices[edge.dst].lane] = found[slices[edge.src].lane]
    return found


def _forward_start(boxes: list[Box]) -> int:
    """When the first device began with a step; -1: none did."""
    return min((box.slice.start for box in boxes if box.slice.name == "forward"), default=-1)


def _row(side: str, step: int, boxes: list[Box]) -> StepRow:
    """A step's boxes on as few lanes as hold them without overlap: host, thread, device."""
    groups: dict[str, list[list[Box]]] = {"host": [], "thread": [], "device": []}
    for box in boxes:
        name = box.slice.lane
        where = "thread" if name.endswith("thread") else "host" if is_host(name) else "device"
        room = (lane for lane in groups[where] if lane[-1].slice.end <= box.slice.start)
        if (found := next(room, None)) is None:
            groups[where].append(found := [])
        found.append(box)
    moved = []
    for where, packed in groups.items():
        for number, found in enumerate(packed):
            words = (side, f"step {step}", "thread" * (where == "thread"), "also" * bool(number))
            lane = Lane(f"{side}step{step}{where}{number or ''}", " ".join(filter(None, words)),
                        "device" if where == "device" else "host")  # fmt: skip
            moved += [Box(box.slice, lane, box.step) for box in found]
    return StepRow(side, step, tuple(dict.fromkeys(box.lane for box in moved)), tuple(moved))


def together(before: StepRow, row: StepRow) -> int:
    """Nanoseconds in which two steps were both on their way."""
    return max(0, min(before.end, row.end) - max(before.start, row.start))


def early(before: StepRow, row: StepRow) -> int:
    """Nanoseconds by which the host began a step before the device was done with the one before."""
    return before.device_span[1] - row.start


def rhythm(rows: Sequence[StepRow]) -> str:
    """One sentence on all of them, with the least and the most where they differ."""
    sides = {row.side: [other for other in rows if other.side == row.side] for row in rows}
    pairs = [pair for mine in sides.values() for pair in pairwise(mine)]
    done, host = "the device is done with the one above", "the host"
    if len(sides) > 1:
        done, host = "its own device is done with the step before", "a host"
    ahead = sorted(time for time in (early(*pair) for pair in pairs) if time > 0)
    if not pairs:
        return "one step"
    if not ahead:
        return f"{'each' if len(sides) > 1 else 'the'} host begins a step only when {done}"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    return f"{host} begins {every} {times} ms before {done}"


def _moments(view: View, rows: list[StepRow]) -> Iterator[list[str]]:
    """A line of the table for each step."""
    for before, row in zip([None, *rows], rows, strict=False):
        launches = [b.slice.end for b in row.boxes if b.slice.name.startswith("launch")]
        device = " to ".join(ms(time - view.start) for time in row.device_span)
        is_same = before is not None and before.side == row.side
        common = f"{ms(together(before, row))} ms" if before and is_same else ""
        launched = ms(max(launches) - view.start) if launches else ""
        yield [row.name, ms(row.start - view.start), launched, device,
               ms(row.end - view.start), common]  # fmt: skip
