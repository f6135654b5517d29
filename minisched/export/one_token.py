"""One token's way through each relay: to the next forward pass, and to the client.

A relay has three rows: the device, the cell that the token waits in, and the way over the host. 0
is when the device begins the step that samples the token, so that all relays have one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..loops.design import LOOPS
from ..trace import Mark, Slice, Trace
from .layout import settled
from .scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene
from .units import ms
from .views.marks import NothingToShow, lacking

AFTER = 3_000_000  # nanoseconds of the next pass that are shown
LEGEND = {
    "forward": "forward", "sample": "sample", "promised": "a cell that is to hold the token",
    "stored": "a cell that holds the token", "read": "the next step takes it from there",
    "copy": "copy", "fill": "fill", "process": "process", "output": "output", "prepare": "prepare",
    "launch": "launch", "end": "the client has it",
    "arrow token": "the token, to and from its cell", "arrow copy": "its copy to the host",
}  # fmt: skip


@dataclass(frozen=True)
class TokenWay:
    """A token of one request: where it waits, and the ops and phases on its way.

    Moments are the run's own nanoseconds. ``promised`` is when somebody reserved the cell for it,
    ``stored`` when it was there, ``read`` when the next step took it, and ``gone`` when the cell
    got the next token (or the run ended).
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
        """When its step began on the device."""
        return self.device[0].start

    @property
    def waits(self) -> int:
        """Nanoseconds from the end of its sampling to the next pass that takes it as input."""
        return self.device[-1].start - self.device[-2].end

    @property
    def goes_over_the_host(self) -> bool:
        """Whether the next step's input comes from the host."""
        return self.relay in ("host", "fill_host")


def way_of(trace: Trace) -> TokenWay:
    """The way of the first request's token of a step amid the longest settled stretch.

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
    marked, promised, stored, read, gone = this.step, 0, sample.end, after.start, trace.end
    if relay == "host":
        names += [("prepare", after.step), ("launch", after.step)]
        promised, stored, read = process.end, process.end, one["prepare", after.step].start
    elif relay == "fill_host":
        names += [("fill", after.step), ("launch", after.step)]
        stored, gone = one["fill", after.step].end, after.end
    elif relay in ("pool", "prev_sampled", "fill_device"):
        gone = one["sample", after.step].end
    if relay in ("fill_host", "fill_device", "prev_sampled", "chain"):
        marked = after.step  # the step that reads says where
    cell = "the host's list of its tokens"
    if relay in CELLS:
        name, words = CELLS[relay]
        at = (item for item in trace.marks if item.name == name)
        mark = next((item for item in at if item.attrs.get("step") == marked), None)
        if mark is None:
            raise NothingToShow(f"{trace.loop}: no {name} was marked at step {marked}.")
        cell, promised = words(mark), mark.time
    if relay in ("prev_sampled", "chain", "fill_device"):
        promised = one["launch", this.step].start  # with the step's own output
    host = sorted((one[name] for name in names), key=lambda item: item.start)
    device = this, sample, after
    return TokenWay(trace, relay, cell, device, tuple(host), promised, stored, read, gone)


def first_of(mark: Mark, name: str) -> int:
    """The first of a mark's numbers.

    Raises:
        NothingToShow: there is none.
    """
    words = str(mark.attrs.get(name, "")).split()
    if not words or not words[0].isdecimal():
        raise lacking(mark, f"{name} as whole numbers")
    return int(words[0])


CELLS: dict[str, tuple[str, Callable[[Mark], str]]] = {  # a relay's mark, and the cell it tells of
    "ring": ("future slots", lambda mark: f"slot {first_of(mark, 'slots')} of the ring"),
    "pool": ("future slots", lambda mark: f"the cell of row {first_of(mark, 'slots')}"),
    "token_pool": ("token pool", lambda mark: f"row {first_of(mark, 'rows')}, position "
                   f"{first_of(mark, 'writes')}"),
    "prev_sampled": ("prev sampled", lambda mark: f"prev_sampled[{first_of(mark, 'sources')}]"),
    "chain": ("lazy tokens", lambda mark: f"array of step {mark.attrs['source']}, place "
              f"{first_of(mark, 'places')}"),
    "fill_device": ("placeholder fill", lambda mark: f"last tokens, row {first_of(mark, 'rows')}"),
    "fill_host": ("placeholder fill", lambda mark: f"-1 in row {first_of(mark, 'rows')}, host"),
}  # fmt: skip


def one_token(traces: Sequence[Trace], title: str = "", names: Sequence[str] = ()) -> Scene:
    """A token's way in each run, one above the other; ``names`` stand in place of the relays'.

    Raises:
        NothingToShow: a run has no settled steps, or its relay left no mark.
    """
    ways = [way_of(trace) for trace in traces]
    end = max(way.device[-1].start - way.start for way in ways) + AFTER
    end = max([end, *(way.host[-1].end - way.start + AFTER // 6 for way in ways)])
    rows, links = list[LaneRow](), list[LaneLink]()
    for way, name in zip(ways, names or [way.relay for way in ways], strict=True):
        links += links_of(way, len(rows), end)
        rows += rows_of(way, name, end)
    about = f"{traces[0].what_ran}; 0 is when the device begins the step that samples the token"
    return Scene(
        title or finding(ways),
        about,
        [Part("One token of one request, on one scale", "", [Lanes(rows, end, links=links)])],
        LEGEND,
        ["Below each relay: the loop, and how long a token waits from its sampling to the next "
         "forward pass. The diamond is where the next step takes it."],
    )  # fmt: skip


def finding(ways: Sequence[TokenWay]) -> str:
    """How long tokens wait on the device, and how long over the host."""
    stay, leave = ([way.waits for way in ways if way.goes_over_the_host is over]
                   for over in (False, True))  # fmt: skip
    said = []
    for where, times in (("on the device", stay), ("over the host", leave)):
        least, most = (ms(choose(times, default=0)) for choose in (min, max))
        said += [f"{least if least == most else f'{least} to {most}'} ms {where}"] if times else []
    return f"A token waits for its next forward pass: {', '.join(said)}"


def rows_of(way: TokenWay, group: str, end: int) -> list[LaneRow]:
    """Device, cell, and the way to the client."""
    note = f"{way.trace.loop.partition(':')[0]}, waits {ms(way.waits)} ms"
    cell = [LaneItem("promised", *clip(way, way.promised, way.stored, end), "promised"),
            LaneItem("stored", *clip(way, way.stored, way.gone, end), "holds the token"),
            LaneItem("read", *clip(way, way.read, way.read, end),
                     about=f"step {way.device[-1].step} takes it")]  # fmt: skip
    host = [span(way, item, end) for item in way.host]
    told = next(item for item in way.host if item.name == "output").end
    host.append(LaneItem("end", *clip(way, told, told, end), about="the client has it"))
    drawn = [("device", [span(way, item, end) for item in way.device]), (way.cell, cell),
             ("copy, host", host)]  # fmt: skip
    return [LaneRow(name, spans, "", group, note) for name, spans in drawn]


def links_of(way: TokenWay, first: int, end: int) -> Iterator[LaneLink]:
    """From the sampling to the copy, and from whoever has the token into the cell and out of it."""
    device, cell, host = first, first + 1, first + 2

    def at(row: int, time: int) -> tuple[int, int]:
        return row, clip(way, time, time, end)[0]

    sampled, after = way.device[-2].end, way.device[-1].start
    copied = next(item for item in way.host if item.name == "copy")
    yield LaneLink("copy", at(device, sampled), at(host, copied.start), "the token, copied")
    if way.goes_over_the_host:
        yield LaneLink("token", at(host, way.stored), at(cell, way.stored), "the token")
    if way.relay == "host":
        yield LaneLink("token", at(cell, way.read), at(host, way.read), "the token, as input")
        launched = next(item for item in way.host if item.name == "launch")
        yield LaneLink("token", at(host, launched.end), at(device, after), "the token, as input")
    else:
        yield LaneLink("token", at(cell, way.read), at(device, after), "the token, as input")


def span(way: TokenWay, item: Slice, end: int) -> LaneItem:
    """A phase or an op, counted from the way's start."""
    return LaneItem(item.name, *clip(way, item.start, item.end, end), f"{item.name} {item.step}",
                    str(item.step))  # fmt: skip


def clip(way: TokenWay, since: int, until: int, end: int) -> tuple[int, int]:
    """A stretch of the run from the way's start on, as far as it is shown."""
    first, last = (min(max(time - way.start, 0), end) for time in (since, until))
    return first, last
