"""The work of loops over time, by phase.

All pictures are lanes of a ``View`` (``layout.py``). Several runs stand one below the other on one
time axis, and the first of them is the baseline that speed-ups refer to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..checks.causes import waits
from ..checks.history import many
from ..checks.overlap import measure
from ..trace import Mark, Slice, Trace
from ..trace.events import is_host
from .layout import View, lane_name, lane_side, shown, steady_views, wrong_words
from .looks import ARROWS, LOOKS, PHASES, SHARES
from .scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, about_run
from .units import brief_ms, busy, ms

LEGEND = {
    **{name: name for name in PHASES},
    "waiting": "waiting",
    "prompt": "tokens of a prompt",
    "again": "computed once more",
    "decode": "one token decoded",
    "wasted": "its token is dropped",
    "other": "another phase",
    "bubble": "the device idles",
    "waited": "the device waits for what a step needs",
    "flag": "the host lets an op wait",
    **{f"arrow {kind}": words for kind, words in ARROWS.items()},
}
TIE = 1.01  # runs with times that differ by less than 1 % are equally fast
MOST_NAMES = 3  # of loops; more would fill the title

# -- Work over time: a few settled steps of one run, or the same of several ------------------------


def timing(trace: Trace, count: int = 3) -> Scene:
    """Draw ``count`` settled steps of a run; 0: the whole run.

    Raises:
        NothingToShow: no step ran.
    """
    return side_by_side([shown(trace, count)])


def compare(traces: Sequence[Trace], steps: int = 3, title: str = "") -> Scene:
    """Draw ``steps`` settled steps of each run; 0: the whole runs.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a picture needs at least one trace, but got 0.")
    return side_by_side(steady_views(traces, steps), title)


def side_by_side(
    views: Sequence[View], title: str = "", names: Sequence[tuple[str, str]] = ()
) -> Scene:
    """Draw a view of each run, with its device's busy share, or a note from ``names``."""
    base, parts = views[0], list[Part]()
    end = max(view.duration for view in views)
    for view in views:
        report = measure(view.trace)
        last = f"s {view.first_step} to {view.last_step}"
        shown = last if view.last_step > view.first_step else f" {view.first_step}"
        what = f"step{shown} of {report.steps}: {ms(view.duration)} ms; " * (not is_whole(view))
        note = f"{what}whole run: {ms(report.makespan_ns)} ms, {busy(report)}"
        if view is not base and report.makespan_ns:
            note += f", speed-up {base.trace.end / report.makespan_ns:.2f}×"
        lanes = lanes_of(view, end)
        heading, note = names[len(parts)] if names else (report.loop, note)
        parts.append(Part(heading, note, [lanes]))
    first = "this step" if base.first_step == base.last_step else "the first of these steps"
    zero = "" if is_whole(base) else f"0 is when the device starts {first}"
    both = f"{base.trace.what_ran}, {base.trace.clock_words}"
    about = about_run(base.trace) if len(views) == 1 else both
    return Scene(title or _title(views), "; ".join(filter(None, (about, zero))), parts, LEGEND,
                 [line for view in views for line in wrong_tokens(view)])  # fmt: skip


def is_whole(view: View) -> bool:
    """Return whether a view contains the whole run."""
    return view.start == 0 and view.end == view.trace.end


def finding(view: View) -> str:
    """Write how long the devices idle in the time shown, and why, from this run's figures."""
    forwards = [item for item in view.slices if item.name == "forward"]
    devices = {item.lane for item in forwards}
    spans = [view.clip(item.start, item.end) for item in view.bubbles]
    idle = sum(end - start for start, end in spans)
    steps = len({item.step for item in forwards})
    reasons = ", ".join(dict.fromkeys(item.cause for item in view.bubbles if item.cause))
    why = f", waiting for {reasons}" if reasons else ""
    if len(devices) > 1:
        share = 100 * idle / (len(devices) * max(1, view.duration))
        return f"{len(devices)} devices, idle {share:.0f} % of this time{why}"
    if not idle:
        shown = f"in these {steps} steps" if steps > 1 else "in this step"
        turns = turns_of(view)
        rare = f", but a request is in only one of {turns} steps" if turns > 1 else ""
        return f"the device never idles {shown}{rare}"
    if is_whole(view) or steps < 2:
        return f"the device idles {ms(idle)} of {ms(view.duration)} ms{why}"
    return f"the device idles {ms(idle // steps)} of {ms(view.duration // steps)} ms a step{why}"


def turns_of(view: View) -> int:
    """Return the number of batches that take turns: a request is in one of this many steps."""
    batches = [set(item.rids) for item in view.slices if item.name == "forward"]
    for turns, batch in enumerate(batches[1:], 1):
        if batch & batches[0]:
            return turns
    return len(batches)


def loops_shown(traces: Sequence[Trace]) -> str:
    """Return the loops by name, or their number where the names would fill the line."""
    if len(traces) > MOST_NAMES:
        return f"{len(traces)} loops side by side"
    return " against ".join(trace.loop for trace in traces)


def _title(views: Sequence[View]) -> str:
    """Return the title of a comparison."""
    loops, base, last = loops_shown([view.trace for view in views]), views[0], views[-1]
    if len(views) == 1:
        return f"{loops}: {finding(base)}"
    rows = max((len(item.rids) for item in base.slices), default=0)
    count = base.last_step - base.first_step + 1
    what = f"the same {count} decode steps of {many(rows, 'request')}"
    what = "the whole run" if is_whole(base) else what
    is_apart = max(base.duration, last.duration) > TIE * min(base.duration, last.duration)
    # one run's measured times contain noise, so no title rests on them
    if len(views) == 2 and not is_whole(base) and is_apart and base.trace.clock == "virtual":
        return f"{loops}: {what} in {ms(last.duration)} instead of {ms(base.duration)} ms"
    return f"{loops}: {what}"


def lanes_of(view: View, duration: int) -> Lanes:
    """Return boxes, idle stretches, arrows and waits; the axis is ``duration`` nanoseconds long."""
    spans: dict[str, list[LaneItem]] = {lane: [] for lane in view.lanes}
    idle_ns = [item.duration for item in view.bubbles]
    # in a long profile, gaps thinner than a line would be invisible
    is_seen = max(idle_ns, default=0) >= duration / 1000 or sum(idle_ns) >= duration / 100
    for idle in view.bubbles if is_seen else ():
        length, cause = f"{ms(idle.duration)} ms", f" for {idle.cause}" * bool(idle.cause)
        about = f"bubble: {lane_name(idle.lane).lower()} waits {length}{cause}"
        length = brief_ms(idle.duration)
        spans[idle.lane].append(
            LaneItem("waited" if idle.cause else "bubble", *view.clip(idle.start, idle.end),
                     f"{idle.cause or 'idle'} {length}", length, about)
        )  # fmt: skip
    for item in view.slices:
        if item.duration:
            spans[item.lane].append(span_of(view, item))
    for item, wrong in wrong_of(view):
        first, *more = wrong.split("; ")  # the arrow lists all of them
        ends = view.clip(item.start, item.end)
        spans[item.lane].append(LaneItem("said", *ends, f"{first} …" if more else first))
    for mark in waits_of(view):
        side = str(mark.attrs.get("side", ""))
        hosts = (lane for lane in view.lanes if is_host(lane) and lane.startswith(side))
        time = view.clip(mark.time, mark.time)[0]
        spans[next(hosts, view.lanes[0])].append(flag_of(mark, time))
    rows = [
        LaneRow(lane_name(lane), spans[lane], "" if lane.endswith("host") else lane_side(lane))
        for lane in view.lanes
    ]
    start, _ = view.clip(view.start, view.start)
    at = {lane: number for number, lane in enumerate(view.lanes)}
    links = links_of(view, {item.id: at.get(item.lane, 0) for item in view.slices})
    return Lanes(rows, start + duration, start, links)


def links_of(view: View, rows: Mapping[int, int]) -> list[LaneLink]:
    """Return an arrow for each visible edge; ``rows`` maps a slice's id to its row."""
    return [
        LaneLink(
            arrow.brings if arrow.brings in ARROWS else "launch",
            (rows[arrow.src.id], view.clip(arrow.start, arrow.start)[0]),
            (rows[arrow.dst.id], view.clip(arrow.end, arrow.end)[0]),
            arrow.meaning,
            {"kind": arrow.kind, "src": arrow.src.id, "dst": arrow.dst.id},
        )
        for arrow in view.arrows
    ]


def waits_of(view: View) -> list[Mark]:
    """Return the waits that were decided in the time shown."""
    return [mark for mark in waits(view.trace) if view.start <= mark.time <= view.end]


def wrong_of(view: View) -> Iterator[tuple[Slice, str]]:
    """Yield each slice that read a token other than the newest one, and the error."""
    found = wrong_words(view.trace)
    for item in view.slices:
        if item.id in found:
            yield item, "; ".join(dict.fromkeys(found[item.id].values()))


def wrong_tokens(view: View) -> Iterator[str]:
    """Yield a sentence for each slice that read a wrong token, with the token's source."""
    for item, wrong in wrong_of(view):
        sources = [one.src.label for one in view.arrows if one.wrong and one.dst is item]
        came_from = f", from {', '.join(sources)}" if sources else ""
        yield f"wrong token for {item.label}: {wrong}{came_from}"


def span_of(view: View, item: Slice, label: str = "") -> LaneItem:
    """Return a slice that takes time; its step alone labels it where its name has no room."""
    about = [item.label, f"{ms(item.start)} to {ms(item.end)} ms", f"{ms(item.duration)} ms"]
    about += [item.mode, " ".join(item.rids)] if item.rids else []
    return LaneItem(
        item.name if item.name in LOOKS else "other",
        *view.clip(item.start, item.end),
        label or item.label,
        "" if label or item.name in ("wait", *SHARES) else str(item.step or ""),
        ", ".join(about),
        {"id": item.id, "start": item.start, "end": item.end, "step": item.step},
    )


def flag_of(mark: Mark, time: int) -> LaneItem:
    """Return the flag where a wait was decided."""
    about = "{op} {step} waits for {reason} at {ms} ms".format(**mark.attrs, ms=ms(mark.time))
    return LaneItem("flag", time, time, about=about, data={"mark": "wait"})
