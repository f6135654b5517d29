"""One token's way through each relay: to the next forward pass, and to the client.

A relay has three rows: the device, the cell in which the token waits, and the way over the host.
Time 0 is the start of the step that samples the token, so all relays have one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from ..loops.design import LOOPS
from ..trace import Slice, Trace
from ..trace.marks import in_file
from .by_step import READ
from .layout import settled
from .scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene
from .units import brief_ms, ms
from .views.marks import NothingToShow

BEFORE, AFTER = 2_500_000, 3_000_000  # nanoseconds before and after a token's wait that are shown
LEGEND = {
    "promised": "promised", "stored": "holds the token", "end": "the client has it",
    "read": "the next step takes it from there", "arrow token": "the token, to and from its cell",
}  # fmt: skip
VERBS = {"process": "read", "prepare": "plan"}  # as in ``by_step``: by a box's first phase


@dataclass(frozen=True)
class TokenWay:
    """A token of one request: its cell, and the ops and phases on its way.

    Times are the run's own nanoseconds. ``promised`` is the time when a step reserved the cell, and
    ``stored`` when the token was written. ``read`` is the time when the next step read it. ``gone``
    is when the cell received the next token, or the end of the run.
    """

    trace: Trace
    relay: str
    cell: str
    device: tuple[Slice, ...]  # forward and sample of its step, and the next forward
    host: tuple[Slice, ...]
    promised: int
    stored: int
    read: int
    gone: int

    @property
    def start(self) -> int:
        """Return the time when its step began on the device."""
        return self.device[0].start

    @property
    def waits(self) -> int:
        """Return the nanoseconds from the end of its sampling to the next pass that reads it."""
        return self.device[-1].start - self.device[-2].end

    @property
    def times(self) -> tuple[tuple[str, int, int], ...]:
        """Return its ops and phases with their times from the start of its step on."""
        items = [*self.device, *self.host]
        return tuple((it.name, it.start - self.start, it.end - self.start) for it in items)

    @property
    def goes_over_the_host(self) -> bool:
        """Return whether the next step's input comes from the host."""
        return self.relay in ("host", "fill_host")


CELLS = {  # a relay's mark, and its attribute for the cell; of several numbers the first
    "ring": ("future slots", "slot {slots} of the ring"),
    "pool": ("future slots", "the cell of row {slots}"),
    "token_pool": ("token pool", "row {rows}, position {writes}"),
    "prev_sampled": ("prev sampled", "prev_sampled[{sources}]"),
    "request_state": ("request state", "slot {slots}, last sampled"),
    "chain": ("lazy tokens", "array of step {source}, place {places}"),
    "fill_device": ("placeholder fill", "last tokens, row {rows}"),
    "fill_host": ("placeholder fill", "-1 in row {rows}, host"),
}


def way_of(trace: Trace) -> TokenWay:
    """Return the way of the first request's token, amid the longest settled stretch.

    Raises:
        NothingToShow: no two settled steps follow one another, or the relay left no mark.
    """
    loop, _, relay = trace.loop.partition(":")
    relay = relay or LOOPS[loop].relays[0]
    stretch = settled(trace)
    if len(stretch) < 3:
        raise NothingToShow(f"{trace.loop}: no two settled decode steps follow one another.")
    this, after = list(pairwise(stretch))[len(stretch) // 2 - 1]
    both = [item for item in trace.slices if item.step in (this.step, after.step)]
    one = {(item.name, item.step): item for item in reversed(both)}
    sample, process = one["sample", this.step], one["process", this.step]
    names = [("copy", this.step), ("process", this.step), ("output", this.step)]
    cell, promised, stored, read, gone = "", 0, sample.end, after.start, trace.end
    if relay in CELLS:
        name, words = CELLS[relay]
        # the cell is in the reading step's mark; in these relays in that of the writing step
        step = this.step if relay in ("ring", "pool", "token_pool") else after.step
        marks = (mark for mark in trace.marks
                 if mark.name == name and mark.attrs.get("step") == step)  # fmt: skip
        if (mark := next(marks, None)) is None:
            raise NothingToShow(f"{trace.loop}: no {name} was marked at step {step}.")
        first = {name: str(value).partition(" ")[0] for name, value in in_file(mark).items()}
        cell, promised = words.format_map(first), mark.time
    if relay in ("prev_sampled", "request_state", "chain", "fill_device"):
        promised = one["launch", this.step].start  # with the step's own output
    if relay in ("pool", "prev_sampled", "request_state", "fill_device"):
        gone = one["sample", after.step].end
    elif relay == "host":
        names += [("prepare", after.step), ("launch", after.step)]
        cell, promised, stored = "the host's list of its tokens", process.end, process.end
        read = one["prepare", after.step].start
    elif relay == "fill_host":
        names += [("fill", after.step), ("launch", after.step)]
        stored, gone = one["fill", after.step].end, after.end
    host = sorted((one[name] for name in names), key=lambda item: item.start)
    device = this, sample, after
    return TokenWay(trace, relay, cell, device, tuple(host), promised, stored, read, gone)


def one_token(traces: Sequence[Trace]) -> Scene:
    """Draw a token's way in each run, one run below the other.

    Raises:
        NothingToShow: a run has no settled steps, or its relay left no mark.
    """
    ways = [way_of(trace) for trace in traces]
    end = max(way.device[-1].start - way.start for way in ways) + AFTER
    end = max([end, *(way.host[-1].end - way.start + AFTER // 6 for way in ways)])
    rows, links = list[LaneRow](), list[LaneLink]()
    for _, some in groupby(ways, lambda way: way.times):
        way, *more = some
        own = rows_of(way, end)
        if more:  # they differ in the cell alone
            device, host = (replace(row, group="", group_note="") for row in own[::2])
            links += links_of(way, len(rows))[1:]
            rows += [device, *cells_together([way, *more], end), host]
        else:
            links += links_of(way, len(rows))
            rows += own
    about = f"{traces[0].what_ran}; 0 is when the device begins the step that samples the token"
    return Scene(
        finding(ways),
        about,
        [Part("One token of one request, on one scale", "", [Lanes(rows, end, links=links)])],
        LEGEND,
        ["The next token is stored in a new cell, or it replaces this one."],
    )


def finding(ways: Sequence[TokenWay]) -> str:
    """Write how long tokens wait on the device, and how long over the host."""
    times_of = []
    for where, is_over in (("on the device", False), ("over the host", True)):
        times = [way.waits for way in ways if way.goes_over_the_host is is_over]
        if times:
            ends = " to ".join(dict.fromkeys(ms(choose(times)) for choose in (min, max)))
            times_of.append(f"{ends} ms {where}")
    return f"A token waits for its next forward pass: {', '.join(times_of)}"


def token_lanes(traces: Sequence[Trace]) -> Scene:
    """Draw the device and a token's place in each run: the form for a slide.

    Time 0 is the end of the token's sampling.
    """
    ways, parts = [way_of(trace) for trace in traces], list[Part]()
    end = max(way.waits for way in ways) + AFTER
    for way in ways:
        zero, waits = way.device[-2].end, f"{ms(way.waits)} ms"
        names = [it.name for it in way.host if it.end <= way.stored]
        device = [(it.name, it.start, it.end, it.label, it.name) for it in way.device]
        device.append(("bubble", zero, zero + way.waits, f"waits {waits}", waits))
        token = [
            ("process", zero, way.stored, ", ".join(names), "host"),
            ("stored", way.stored, way.gone, way.cell, ""),
        ]
        rows = [
            LaneRow(name, [
                LaneItem(kind, max(since - zero, -BEFORE), min(until - zero, end), label, brief)
                for kind, since, until, label, brief in items if until > since
            ])
            for name, items in (("device", device), ("token", token))
        ]  # fmt: skip
        links, where = [LaneLink("token", (0, 0), (0, 0))], "on the device"
        if way.goes_over_the_host:
            there, back = (0, 0), (1, way.waits)
            links = [LaneLink("token", there, (1, 0)), LaneLink("token", back, (0, way.waits))]
            where = "over the host"
        heading = f"{way.trace.loop}: the token waits {waits} {where}"
        parts.append(Part(heading, "", [Lanes(rows, end, -BEFORE, links)]))
    about = f"{traces[0].what_ran}; 0 is the end of the token's sampling"
    return Scene(finding(ways), about, parts)


def rows_of(way: TokenWay, end: int) -> list[LaneRow]:
    """Return device, cell, and the way to the client."""

    def item(kind: str, since: int, until: int, label: str = "", brief: str = "") -> LaneItem:
        """Return an item of the token's way, cut to the picture."""
        start, stop = (min(max(time - way.start, 0), end) for time in (since, until))
        return LaneItem(kind, start, stop, label, brief)

    this, sample, after = way.device
    device, host = [item("forward", this.start, sample.end, "run N")], list[LaneItem]()
    device.append(item("forward", after.start, after.end, "run N+1"))
    for _, some in groupby(way.host, lambda it: (it.name in READ, it.name == "copy", it.step)):
        first, *_, last = [*(phases := list(some)), phases[-1]]
        verb, number = VERBS.get(first.name, first.name), "N" + "+1" * (first.step > this.step)
        host.append(item(first.name, first.start, last.end, f"{verb} {number}", verb))
    if way.waits:
        waits = brief_ms(way.waits)
        device.append(item("bubble", sample.end, after.start, f"waits {waits}", waits))
    told = next(it.end for it in way.host if it.name == "output")
    cell = [
        item("promised", way.promised, way.stored, "promised"),
        item("stored", way.stored, way.gone, "holds the token"),
        item("read", way.read, way.read),
    ]
    note = f"{way.trace.loop.partition(':')[0]}, waits {ms(way.waits)} ms"
    drawn = {"device": device, way.cell: cell, "copy, host": [*host, item("end", told, told)]}
    return [LaneRow(name, spans, "", way.relay, note) for name, spans in drawn.items()]


def cells_together(ways: Sequence[TokenWay], end: int) -> list[LaneRow]:
    """Return a row for the relays that keep a token's cell, and one for those that reuse it."""
    found = dict[str, tuple[LaneRow, list[str]]]()
    for way in ways:
        kept = "a new cell" if way.gone == way.trace.end else "the same cell"
        found.setdefault(kept, (rows_of(way, end)[1], []))[1].append(way.relay)
    note = f"waits {ms(ways[0].waits)} ms"
    return [
        LaneRow(kept, [replace(item, label=", ".join(names), brief=item.label)
                       if item.kind == "stored" else item for item in row.spans],
                "", f"{len(ways)} relays", note)
        for kept, (row, names) in found.items()
    ]  # fmt: skip


def links_of(way: TokenWay, device: int) -> list[LaneLink]:
    """Return the arrows to the copy, into the cell, and out of it.

    ``device`` is the index of the first of the three rows.
    """
    cell, host = device + 1, device + 2
    op = {item.name: item for item in way.host}
    after = (device, way.device[-1].start)
    ways = [("copy", (device, way.device[-2].end), (host, op["copy"].start))]
    if way.goes_over_the_host:
        ways.append(("token", (host, way.stored), (cell, way.stored)))
    if way.relay == "host":
        ways.append(("token", (cell, way.read), (host, way.read)))
        ways.append(("token", (host, op["launch"].end), after))
    else:
        ways.append(("token", (cell, way.read), after))
    return [
        LaneLink(kind, (row, time - way.start), (other, until - way.start))
        for kind, (row, time), (other, until) in ways
    ]
