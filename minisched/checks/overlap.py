"""How much of a run overlapped: read off the trace's intervals, never off wall time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..trace import Slice, Trace
from ..trace.events import is_copy, is_forward, is_host

# -- Plays the lanes of a run again: each item starts as soon as what it comes after has happened
#
# An item is one of four: ``run`` takes time (after it was launched, if anybody launches it),
# ``wait`` holds its lane until another item has ended or was said, ``launch`` lets another one
# start, ``say`` is what others wait for.


@dataclass(slots=True)  # there are a million of them in a large trace
class Item:
    """One thing that a lane does; times in nanoseconds.

    What the rest does not explain (``calibrate``): ``lane_lag`` and ``launch_lag`` are how much
    earlier than its lane was free, or than its launch was over, it started (0 or less; on a wall
    clock an op starts while its launch still runs); ``delay`` is how much later than all of them.
    ``release`` is when it could start at the earliest, for what came from outside.
    """

    kind: str
    id: int
    duration: int = 0
    lane_lag: int = 0
    launch_lag: int = 0
    delay: int = 0
    release: int = 0


Lanes = dict[str, list[Item]]


class ReplayMoment(NamedTuple):
    """A time, and the ``run`` item that it is the end of (0: the beginning)."""

    time: int
    after: int


class Ran(NamedTuple):
    """When an item ran; ``after`` is the one that held it back last, until ``ready``."""

    start: int
    end: int
    after: int
    ready: int


Start = Callable[[Item, ReplayMoment, ReplayMoment], int]


def replay(lanes: Lanes) -> dict[int, Ran]:
    """When each ``run`` item runs, by id."""
    return _walk(lanes, as_calibrated).ran


def replayed_end(lanes: Lanes) -> int:
    """When the last item ends; of a large trace it takes half the memory of all that ``replay``."""
    return _walk(lanes, as_calibrated, keeps=False).end


def as_calibrated(item: Item, lane: ReplayMoment, launch: ReplayMoment) -> int:
    """When an item starts, of which ``calibrate`` knows what held it back."""
    ready = max(lane.time + item.lane_lag, launch.time + item.launch_lag)
    return max(ready + item.delay, item.release)


def calibrate(lanes: Lanes, recorded: Mapping[int, Slice]) -> None:
    """Set lags, delays and releases so that a replay gives what was recorded."""

    def start(item: Item, lane: ReplayMoment, launch: ReplayMoment) -> int:
        was = recorded[item.id]
        item.lane_lag = min(0, was.start - lane.time)
        item.launch_lag = min(0, was.start - launch.time)
        late = was.start - max(lane.time + item.lane_lag, launch.time + item.launch_lag)
        if was.name == "receive":
            item.release = was.start if late else 0
        else:
            item.delay = late
        return was.start

    _walk(lanes, start, keeps=False)


def _walk(lanes: Lanes, start: Start, keeps: bool = True) -> _Stage:
    """Take items lane by lane, each as soon as what it comes after is known."""
    players = [_Player(items) for items in lanes.values()]
    every = [item for items in lanes.values() for item in items]
    stage = _Stage(
        start,
        will_end={item.id for item in every if item.kind in ("run", "say")},
        will_launch={item.id for item in every if item.kind == "launch"},
        keeps=keeps,
    )
    while any([stage.play(player) for player in players]):
        pass
    return stage


class _Player:
    """A lane: what it has yet to do, and since when it could."""

    def __init__(self, items: list[Item]) -> None:
        self.queue = deque(items)
        self.ready = ReplayMoment(0, 0)


class _Stage:
    """What has happened so far; ``keeps`` says whether anybody asks what ran when."""

    def __init__(
        self, start: Start, will_end: set[int], will_launch: set[int], keeps: bool
    ) -> None:
        self.start, self.will_end, self.will_launch = start, will_end, will_launch
        self.keeps, self.end = keeps, 0
        self.launched: dict[int, ReplayMoment] = {}
        self.ended: dict[int, ReplayMoment] = {}
        self.ran: dict[int, Ran] = {}

    def play(self, player: _Player) -> bool:
        """Let a lane go on as far as it can; says whether it did anything."""
        before = len(player.queue)
        while player.queue and self._may(player.queue[0]):
            self._take(player.queue.popleft(), player)
        return len(player.queue) < before

    def _may(self, item: Item) -> bool:
        if item.kind == "run":
            return item.id not in self.will_launch or item.id in self.launched
        return item.kind != "wait" or item.id not in self.will_end or item.id in self.ended

    def _take(self, item: Item, player: _Player) -> None:
        if item.kind == "run":
            self._run(item, player)
        elif item.kind == "launch":
            self.launched[item.id] = player.ready
        elif item.kind == "say":
            self.ended[item.id] = player.ready
        elif (ended := self.ended.get(item.id)) and ended.time > player.ready.time:
            player.ready = ended

    def _run(self, item: Item, player: _Player) -> None:
        lane, launch = player.ready, self.launched.get(item.id, ReplayMoment(0, 0))
        start = self.start(item, lane, launch)  # may set the lags
        by_lane, by_launch = lane.time + item.lane_lag, launch.time + item.launch_lag
        after = launch.after if by_launch > by_lane else lane.after
        if self.keeps:
            self.ran[item.id] = Ran(start, start + item.duration, after, max(by_lane, by_launch))
        self.end = max(self.end, start + item.duration)
        self.ended[item.id] = player.ready = ReplayMoment(start + item.duration, item.id)


# -- What each lane does, in its own order, and how long it takes: a recorded run as a program -----
#
# ``replay.py`` plays it again. Unchanged it takes exactly as long as it was recorded to; with an
# item changed, it says what the run would have taken (``what_if.py``).

WAIT = "wait"  # a slice of this name only says that its lane was blocked


@dataclass
class Course:
    """Items by lane, and the slices that ``run`` items are; what was recorded is never changed.

    ``is_ordered`` says whether the trace told what each lane did (``trace/recorder.py``); if not,
    edges have to do, and some of what held an op back may be missing.
    """

    slices: dict[int, Slice]
    lanes: Lanes
    is_ordered: bool
    end: int
    index: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    @cached_property
    def ran(self) -> dict[int, Ran]:
        """When everything runs, as it was recorded."""
        return replay(self.lanes)

    def first_at(self, lane: str, start: int) -> int:
        """The slice that a lane starts with at a moment; 0: none."""
        if not self.index:
            for name, items in self.lanes.items():
                for item in items:
                    if item.kind == "run":
                        at = (name, self.slices[item.id].start)
                        self.index.setdefault(at, []).append(item.id)
        return next(iter(self.index.get((lane, start), [])), 0)


def course_of(trace: Trace) -> Course:
    """The course of a recorded run."""
    slices = {item.id: item for item in trace.slices if not is_blocked(item)}
    lanes = from_program(trace, slices) if trace.program else from_edges(trace, slices)
    calibrate(lanes, slices)
    return Course(slices, lanes, bool(trace.program), trace.end)


def is_blocked(item: Slice) -> bool:
    """Whether a slice is a thread of the host that waits."""
    return item.name == WAIT and is_host(item.lane)


def run(item: Slice) -> Item:
    """The item that a slice is."""
    return Item("run", item.id, item.duration)


def from_program(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """From what each lane said that it did; slices of the host come before what they did."""
    started = {act.op for act in trace.program if act.kind == "begin"}
    own: defaultdict[str, list[Slice]] = defaultdict(list)  # in order of time, the newest first
    for item in sorted(slices.values(), key=lambda item: (item.start, item.id), reverse=True):
        if item.id not in started:
            own[item.lane].append(item)
    lanes: Lanes = defaultdict(list)
    done: set[int] = set()
    for act in trace.program:
        lane = slices[act.during].lane if act.during in slices else act.lane
        is_own = act.during in slices and act.during not in started
        while is_own and act.during not in done and own[lane]:
            done.add(own[lane][-1].id)
            lanes[lane].append(run(own[lane].pop()))
        if act.kind == "begin" and act.op in slices:
            lanes[slices[act.op].lane].append(run(slices[act.op]))
        elif act.kind in ("launch", "wait", "say"):
            lanes[lane].append(Item(act.kind, act.op))
    for lane, rest in own.items():
        lanes[lane] += [run(item) for item in reversed(rest)]
    return lanes


def from_edges(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """From intervals and edges alone: a lane does one thing after the other."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    for edge in trace.edges:
        if edge.src in slices and slices[edge.src].start <= slices_start(slices, edge.dst):
            sources[edge.dst].append(edge.src)
    lanes: Lanes = defaultdict(list)
    for item in in_time(slices.values()):
        lanes[item.lane] += [Item("wait", src) for src in sources[item.id]]
        lanes[item.lane].append(run(item))
    return lanes


def slices_start(slices: dict[int, Slice], number: int) -> int:
    """When a slice started; one that is not there never comes after anything."""
    return slices[number].start if number in slices else -1


def in_time(slices: Iterable[Slice]) -> list[Slice]:
    """Slices in the order in which they began."""
    return sorted(slices, key=lambda item: (item.start, item.end, item.id))


# -- When each op of a device was launched, and in which calls the host was blocked before ---------


class Launch(NamedTuple):
    """The lane of the host that launched an op, and when it was launched at the latest.

    A profiler saw the ``call`` itself, from ``since`` to ``over``: a device can begin an op before
    it returns. Of other launches no more is known than that time.
    """

    lane: str
    time: int
    since: int
    over: int
    call: str = ""


def launches(trace: Trace) -> dict[int, Launch]:
    """The launch of each op, by id: from the program, and from edges where that says nothing.

    A launch is over when its slice is; an op that started before was launched by its start.
    """
    slices = {item.id: item for item in trace.slices}
    by = {edge.dst: edge.src for edge in trace.edges if edge.kind == "launch"}
    by |= {act.op: act.during for act in trace.program if act.kind == "launch" and act.during}
    return {
        op: _launch(slices[src], slices[op])
        for op, src in by.items()
        if op in slices and src in slices
    }


def _launch(item: Slice, op: Slice) -> Launch:
    time, call = min(item.end, op.start), str(item.attrs.get("call", ""))
    return Launch(item.lane, time, item.start if call else time, item.end, call)


class Blocked:
    """The slices in which threads of the host were blocked."""

    def __init__(self, trace: Trace) -> None:
        self.on: defaultdict[str, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            if item.name == WAIT and is_host(item.lane):
                self.on[item.lane].append(item)
        self.ends = {lane: [item.end for item in items] for lane, items in self.on.items()}

    def before(self, launch: Launch, since: int) -> Slice | None:
        """What a lane was blocked in last before a launch, if that lasted until ``since``."""
        at = bisect_right(self.ends.get(launch.lane, []), launch.time) - 1
        if at < 0 or self.ends[launch.lane][at] < since:
            return None
        return self.on[launch.lane][at]


def call_of(item: Slice) -> str:
    """What blocked the host: ``cudaStreamSynchronize (aten::item)``; in our traces, a copy."""
    call = str(item.attrs.get("call", "the wait for a step's tokens"))
    within = item.attrs.get("within", "")
    return f"{call} ({within})" if within else call


# -- What a bubble is, in a sentence ---------------------------------------------------------------

WHY = {
    "host": "{where} is busy with {what}",
    "token": "the tokens of the step before come over the host ({what})",
    "copy": "the host waits for {what} before it goes on",
    "mask": "{where} is busy with {what}: what a grammar or penalties let it sample",
    "upload": "prompts are on their way to the device ({what})",
    "transfer": "KV is on its way from another device ({what})",
    "stage": "{where} has it first ({what})",
    "memory": "nobody can be admitted until memory or a row comes back ({what})",
    "arrival": "nobody is there to be served",
    "message": "its scheduler sleeps until the other one says something",
    "latency": "it has been launched, and the device takes that long to begin",
    "unknown": "nothing recorded explains it",
    "host wait": "the host launches it only afterwards ({what})",
    "kernel wait": "it has been launched, and the device takes that long to begin",
    "other": "it has been launched, and nothing recorded says what it waits for",
    "grammar": "its mask has to see a token first ({what})",
    "penalty": "its penalties have to see a token first ({what})",
    "prefill": "two prefills in a row may not overlap ({what})",
    "speculation": "its drafts have to see a token first ({what})",
}
MOST = 48  # letters of a name in a sentence
LESS = re.compile(r"<[^<>]*>|\(anonymous namespace\)::|\[clone [^\]]*\]")


def milliseconds(nanoseconds: int) -> str:
    """A time to read: ``2.2 ms``, to a thousandth of a millisecond."""
    return f"{round(nanoseconds / 1e6, 3):g} ms"


def sentence(lane: str, ns: int, cause: str, item: Slice | None, op: Slice | None) -> str:
    """``forward idles for 2.2 ms before forward 5: the host is busy with process 4.``"""
    what = _named(item) if item else "nothing that was recorded"
    where = (f"the {item.lane}" if item else "nobody").replace("the stage", "stage")
    why = WHY.get(cause, "it has to wait: " + cause).format(what=what, where=where)
    before = f" before {_named(op)}" if op else ""
    return f"{lane} idles for {milliseconds(ns)}{before}: {why}."


def _named(item: Slice) -> str:
    return f"{item.name} {item.step}" if item.step else item.name


def kernel_named(op: Slice) -> str:
    """What an op is called: its kernel, without return type, templates and arguments, if long."""
    name, before = str(op.attrs.get("kernel", op.name)), ""
    while len(name) > MOST and before != name:
        before, name = name, LESS.sub("", name)
    if len(name) > MOST:
        name = name.split("(")[0].strip().rpartition(" ")[2].rpartition("::")[2] or name
    return shortened(name)


def shortened(name: str) -> str:
    """A name that fits into a sentence, perhaps with an ellipsis in its middle."""
    tail = MOST // 3
    return name if len(name) <= MOST else f"{name[: MOST - tail - 1]}…{name[-tail:]}"


def with_short_names(
    sentences: Iterable[str], names: Sequence[str], untouched: str
) -> Iterator[str]:
    """The sentences with such names made short, and behind them what each of these stands for.

    One sentence stays as it is: it tells of such names.
    """
    whole = sorted((name for name in names if len(name) > MOST), key=len, reverse=True)
    told: dict[str, None] = {}
    for sentence_ in sentences:
        for name in whole if sentence_ != untouched else ():
            if name in sentence_:
                sentence_ = sentence_.replace(name, shortened(name))
                told[name] = None
        yield sentence_
    if told:
        yield "; ".join(f"{shortened(name)} is {name}" for name in told) + "."


# -- One workload through two pipelines, line by line: what a second layer costs -------------------

BOOKS = ("ledger", "context")  # marks; whoever keeps a book of requests records it under its name


class ComparedRow(NamedTuple):
    """One line of the comparison: what is compared, its unit, and a value for each run."""

    name: str
    unit: str
    values: tuple[float, ...]


def compare_pipelines(traces: Sequence[Trace]) -> list[ComparedRow]:
    """The lines of ``mindie_pipeline_refactor_compare``, a column for each trace.

    All of it is read from the traces, which have to be of one workload. ``host work`` is that of
    all host threads together, without what they wait. ``books`` counts what is kept on requests
    beside the scheduler's own state: the ledger of placeholders, the plugin's context.
    """
    reports = [measure(trace) for trace in traces]

    def row(name: str, unit: str, *values: float) -> ComparedRow:
        return ComparedRow(name, unit, values)

    return [
        row("steps", "", *(report.steps for report in reports)),
        row("makespan", "ms", *(in_ms(report.makespan_ns) for report in reports)),
        row("device busy", "%", *(round(report.device_busy_percent, 1) for report in reports)),
        row("host work", "ms", *(in_ms(report.host_busy_ns) for report in reports)),
        row("host work a step", "ms", *map(host_work_of_a_step, reports)),
        row("wasted rows", "", *(report.wasted_rows for report in reports)),
        row("host threads", "", *map(host_threads, traces)),
        row("books of requests", "", *map(books_kept, traces)),
    ]


def in_ms(nanoseconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(nanoseconds / 1e6, 2)


def host_work_of_a_step(report: OverlapReport) -> float:
    """Milliseconds of host work for each step."""
    return in_ms(report.host_busy_ns / max(1, report.steps))


def host_threads(trace: Trace) -> int:
    """Threads of the host that ran something."""
    return len({item.lane for item in trace.slices if is_host(item.lane)})


def books_kept(trace: Trace) -> int:
    """Books of requests that were recorded."""
    return len({mark.name for mark in trace.marks if mark.name in BOOKS})


# -- When a GPU idles in a profiler's trace, and what for: one definition for every sentence on it
#
# It idles, between the first thing it runs and the last, while neither a kernel nor a copy runs on
# any of its streams. Each such gap is charged to what the op that ends it had waited for, as
# Holistic Trace Analysis does (``get_temporal_breakdown``, ``get_idle_time_breakdown``), by its
# names:
#
# - ``host wait``: its launch began only after the gap had begun: the host was late;
# - ``kernel wait``: it had been launched before, and the gap lasts less than 0.03 ms: the device
#   takes that long from one op to the next;
# - ``other``: it had been launched before and waited longer: for another stream, or for work of
#   which the trace says nothing.
#
# On one stream the figures are that tool's to the nanosecond, if it doesn't round; rounding to
# whole microseconds, as it does unless told otherwise, makes each of its gaps longer by up to 2.
# Over all streams there is one thing more to know: what was launched in a gap and begins long after
# its launch was late only until then. The rest of such a gap is ``other``.

HOST_WAIT, KERNEL_WAIT, OTHER = "host wait", "kernel wait", "other"
SHORT = 30_000  # nanoseconds of a kernel wait at most; that tool's own default
MOST_NAMED = 3  # gaps in sentences


class Gap(NamedTuple):
    """A piece of idle time in nanoseconds, its cause, and the op that ends the gap it is of.

    ``since`` is when that op's launch began, if that is known.
    """

    start: int
    end: int
    cause: str
    op: Slice
    launch: Launch | None

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def idle_gaps(ops: Iterable[Slice], known: Mapping[int, Launch]) -> list[Gap]:
    """Where none of some ops runs, from the first of them to the last, in order of time.

    ``ops`` are those of a device, or of one of its streams.
    """
    ops = in_time(item for item in ops if item.duration)
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = []
    for start, end in gaps(union(ops)):
        op = first[end]
        launch = known.get(op.id)
        if launch is None or launch.since <= start:
            found.append(Gap(start, end, KERNEL_WAIT if end - start < SHORT else OTHER, op, launch))
            continue
        late = end if end - launch.since < SHORT else launch.since
        found.append(Gap(start, late, HOST_WAIT, op, launch))
        if late < end:
            found.append(Gap(late, end, OTHER, op, launch))
    return found


def device_gaps(trace: Trace, lane: str, known: Mapping[int, Launch] | None = None) -> list[Gap]:
    """When the device of a forward lane idled; ``known`` are the launches, if they are there."""
    known = launches(trace) if known is None else known
    lanes = streams_of(trace, lane)
    return idle_gaps((item for item in trace.slices if item.lane in lanes), known)


def idle_words(trace: Trace) -> Iterator[str]:
    """When each device idled and what for, the definition first; then the longest gaps."""
    known = launches(trace)
    lanes = sorted({item.lane for item in trace.slices if is_forward(item.lane)})
    whole, causes, counts = 0, Counter[str](), Counter[str]()
    alike: defaultdict[tuple[str, str, str], list[Gap]] = defaultdict(list)
    for lane in lanes:
        found = device_gaps(trace, lane, known)
        whole += span(device_runs(trace, lane))
        for gap in found:
            causes[gap.cause] += gap.duration
            counts[gap.cause] += 1
            if gap.cause != KERNEL_WAIT:
                alike[lane, gap.cause, kernel_named(gap.op)].append(gap)
    idle = causes.total()
    if not whole:
        return
    parts = ", ".join(
        f"{cause} {milliseconds(ns)} in {counted(counts[cause])}"
        for cause, ns in causes.most_common()
    )
    of = "" if len(lanes) == 1 else f" of {len(lanes)} devices, added up"
    yield (
        "Idle is a device while neither a kernel nor a copy runs on any of its streams, from its "
        f"first to its last: {milliseconds(idle)} of {milliseconds(whole)}{of} "
        f"({100 * idle / whole:.1f} %){': ' + parts if parts else ''}."
    )
    yield from _meanings(causes)
    said: list[str] = []
    for (lane, *_), found in sorted(alike.items(), key=lambda item: -_total(item[1])):
        if _total(found) < SHORT or not MOST_NAMED - len(said):
            break
        said.append(gap_words(trace, found, lane))
        if len(found) == 1 and found[0].cause == OTHER and 2 * _total(found) > idle:
            rest, left = idle - _total(found), whole - _total(found)
            said[-1] += f" Without it: {milliseconds(rest)} of {milliseconds(left)} idle"
            said[-1] += f" ({100 * rest / left:.1f} %)."
    yield from said


def _total(found: list[Gap]) -> int:
    return sum(gap.duration for gap in found)


def _meanings(causes: Mapping[str, int]) -> Iterator[str]:
    said = {
        HOST_WAIT: "host wait is until what ends the gap has been launched",
        KERNEL_WAIT: "kernel wait is less than 0.03 ms from one op to the next, launched before",
        OTHER: "other is longer, and launched before",
    }
    if parts := [said[cause] for cause in said if cause in causes]:
        text = "; ".join(parts)
        yield f"{text[0].upper()}{text[1:]}."


def gap_words(trace: Trace, found: list[Gap], lane: str) -> str:
    """Gaps before ops of one name: how long, before what, and why the longest of them was.

    ``lane`` is the forward lane of their device.
    """
    device = device_named(trace, lane)
    where = "" if device == "the device" else f" on {device}"
    gap = max(found, key=lambda item: item.duration)
    many = f" in {counted(len(found))}, up to {milliseconds(gap.duration)}," if found[1:] else ""
    start = (
        f"{milliseconds(_total(found))}{many}{where} before {kernel_named(gap.op)} ({gap.cause}): "
    )
    if gap.launch is None:
        return f"{start}the trace does not say when that was launched."
    if gap.cause == HOST_WAIT:
        return f"{start}the host {_host_was(trace, gap)} before it launched that."
    if gap.launch.over > gap.start and gap.launch.over - gap.launch.since >= SHORT:
        return f"{start}the host was still in {gap.launch.call}, which launched that."
    early = milliseconds(gap.op.start - gap.launch.since)
    is_first = all(item.start >= gap.op.start for item in trace.on(lane))
    cut = "an earlier step that was cut off, " if is_first else ""
    return (
        f"{start}launched {early} before it began. The trace does not hold what it waited for: "
        f"{cut}an event, or another process."
    )


def _host_was(trace: Trace, gap: Gap) -> str:
    """What the launching thread did for most of a host wait."""
    assert gap.launch is not None
    did: Counter[str] = Counter()
    for item in trace.on(gap.launch.lane):
        ns = length(intersection(((item.start, item.end),), ((gap.start, gap.end),)))
        did[_doing(item)] += ns
    if not did or not (top := did.most_common(1)[0])[1]:
        return "was at something that was not recorded"
    return top[0]


def _doing(item: Slice) -> str:
    if item.name == WAIT:
        return f"was blocked in {call_of(item)}"
    if item.name == "launch":
        return f"was launching other things ({item.attrs.get('call', 'launch')})"
    within = item.attrs.get("within", "")
    is_named = item.name != "work" and not item.name.endswith("…")  # more than that it is a step
    if within and not is_named:
        return f"was busy in {within}"
    return f"was busy with {item.name}" if item.name != "work" else "did work that nothing names"


def host_words(trace: Trace) -> Iterator[str]:
    """How far the host was ahead of the device, and in which call it was blocked."""
    known = launches(trace)
    pairs = [(op, known[op.id]) for op in trace.slices if is_forward(op.lane) and op.id in known]
    said = [_lead_words(pairs)] if pairs else []
    waits = [item for item in trace.slices if item.name == WAIT and is_host(item.lane)]
    blocked: Counter[str] = Counter()
    for item in waits:
        blocked[call_of(item)] += item.duration
    if (total := blocked.total()) >= SHORT:
        call, ns = blocked.most_common(1)[0]
        most = "" if len(blocked) == 1 else f", {milliseconds(ns)} of it"
        threads = len({item.lane for item in waits})
        who = "The host was" if threads == 1 else f"{threads} threads of the host, added up, were"
        said.append(f"{who} blocked for {milliseconds(total)}{most} in {call}.")
    if said:
        yield " ".join(said)


def _lead_words(pairs: list[tuple[Slice, Launch]]) -> str:
    begins = min(op.start for op, _ in pairs)
    last = max(launch.since for _, launch in pairs)
    if last < begins:
        return f"The host had launched all of it {milliseconds(begins - last)} before it began."
    lead = int(median(op.start - launch.since for op, launch in pairs))
    return f"At the median, an op was launched {milliseconds(lead)} before it began."


def counted(gaps: int) -> str:
    """``1 gap``, ``2 gaps``."""
    return "1 gap" if gaps == 1 else f"{gaps} gaps"


Interval = tuple[int, int]  # start and end, in nanoseconds
PRESENT = ("waiting", "running", "kv used")  # counters; one above 0 says that somebody is there
MILLISECOND = 1_000_000


@dataclass(frozen=True)
class OverlapReport:
    """What one run did with its time; all times in nanoseconds.

    ``device_busy_ns`` is the time in which the forward stream ran something. ``host_busy_ns``
    leaves out the slices in which the host only waited, and ``host_hidden_ns`` is the part of it
    during which the device was busy: work that cost no time. A bubble lies between the first and
    the last thing the forward stream ran: time it spent waiting for the host, or for a request
    to arrive. ``unserved_ns`` is the time in which nobody worked at all, because no request was
    there. In a profiler's trace all streams of a device stand for the forward stream. Where a run
    has several devices or host threads, each one's time is added up, and ``bubbles`` are those
    moments at which no device worked.
    """

    loop: str
    steps: int
    tokens: int
    makespan_ns: int
    device_busy_ns: int
    copy_busy_ns: int
    host_busy_ns: int
    host_hidden_ns: int
    bubble_ns: int
    wasted_rows: int
    bubbles: tuple[Interval, ...]
    devices: int = 1
    unserved_ns: int = 0

    @property
    def longest_ns(self) -> int:
        """What the host, the device or the copies did, whichever is the most."""
        return max(self.host_busy_ns, self.device_busy_ns, self.copy_busy_ns)

    @property
    def device_busy_percent(self) -> float:
        """The share of the makespan in which the forward stream was busy; of several, the mean."""
        whole = self.makespan_ns * self.devices
        return 100 * self.device_busy_ns / whole if whole else 0.0

    @property
    def host_hidden_percent(self) -> float:
        """The share of the host's work that ran while the device was busy."""
        return 100 * self.host_hidden_ns / self.host_busy_ns if self.host_busy_ns else 0.0


def measure(trace: Trace, tokens: int = 0) -> OverlapReport:
    """The report on one run; ``tokens`` is what it delivered, which a trace does not say."""
    lanes = {lane: union(trace.on(lane)) for lane in {item.lane for item in trace.slices}}
    devices = [busy for lane, busy in lanes.items() if is_forward(lane)]
    if is_profiled(trace):
        devices = [device_runs(trace, lane) for lane in lanes if is_forward(lane)]
    device, hosts = device_busy(trace), hosts_busy(trace)
    worked = union(item for item in trace.slices if not waits_on_host(item))
    nobody = nobody_there(trace)
    return OverlapReport(
        loop=trace.loop,
        steps=len(steps_in(trace)),
        tokens=tokens,
        makespan_ns=trace.end,
        device_busy_ns=sum(map(length, devices)),
        copy_busy_ns=sum(length(busy) for lane, busy in lanes.items() if is_copy(lane)),
        host_busy_ns=sum(map(length, hosts)),
        host_hidden_ns=sum(length(intersection(host, device)) for host in hosts),
        bubble_ns=sum(length(gaps(busy)) for busy in devices),
        wasted_rows=sum(mark.name == "wasted row" for mark in trace.marks),
        bubbles=gaps(device),
        devices=max(1, len(devices)),
        unserved_ns=length(nobody) - length(intersection(nobody, worked)),
    )


def steps_in(trace: Trace) -> set[tuple[str, int]]:
    """Every step that ran: where it began, and its number."""
    every = [item for item in trace.slices if is_forward(item.lane) and item.name == "forward"]
    later = {item.lane for item in every if item.lane.startswith("stage ")} - {forward_lane(trace)}
    return {(item.lane, item.step) for item in every if item.lane not in later}


def ideal_speedup(serial: OverlapReport) -> float:
    """The most that hiding everything behind the longest could give: M / (idle + max(H, D, C)).

    M is the serial run's makespan, H, D and C what its host, device and copies worked in all, and
    idle the time in which no request was there. A loop that does the same work can't take less:
    each of the three does one thing at a time. One that does less (fewer steps), or does it on
    several devices, can; and on a wall clock, where two runs of the same work differ, any may seem
    to. ``versus_ideal`` says so.
    """
    least = serial.unserved_ns + serial.longest_ns
    return serial.makespan_ns / least if least else 1.0


def speedup_over(serial: OverlapReport, report: OverlapReport) -> float | None:
    """How many times as fast a run was; None where one of the two took no time at all."""
    if not serial.makespan_ns or not report.makespan_ns:
        return None
    return serial.makespan_ns / report.makespan_ns


def versus_ideal(serial: OverlapReport, report: OverlapReport, clock: str) -> str:
    """A speed-up beside its ceiling, in words: ``1.70 x; hiding everything would give 1.75 x``.

    A run above the ceiling gets the reason: on a ``wall`` clock that is noise, on a ``virtual``
    one the run did less work than the serial one, or had more devices to do it.
    """
    speedup, ceiling = speedup_over(serial, report), f"{ideal_speedup(serial):.2f} x"
    if speedup is None:
        return "no time passed, so nothing was faster"
    if not beats_ideal(serial, report):
        return f"{speedup:.2f} x; hiding everything would give {ceiling}"
    above = f"{speedup:.2f} x, more than the {ceiling} that hiding everything could give"
    if clock == "wall":
        return f"{above}, so it is noise: single runs of the same work differ, repeat them"
    return f"{above}, because {_why_above(serial, report)}"


def beats_ideal(serial: OverlapReport, report: OverlapReport) -> bool:
    """Whether a run took less time than the serial one's longest part."""
    return 0 < report.makespan_ns < serial.unserved_ns + serial.longest_ns


def _why_above(serial: OverlapReport, report: OverlapReport) -> str:
    if report.devices > serial.devices:
        return f"it had {report.devices} devices"
    whose, before, now = max(
        ("its host", serial.host_busy_ns, report.host_busy_ns),
        ("its device", serial.device_busy_ns, report.device_busy_ns),
        ("its copies", serial.copy_busy_ns, report.copy_busy_ns),
        key=lambda item: item[1],
    )
    if now >= before:
        return f"{whose} worked in several places at once"
    return (
        f"{whose} had {now / MILLISECOND:.1f} ms of work instead of {before / MILLISECOND:.1f} ms"
    )


def step_intervals(trace: Trace) -> list[int]:
    """Nanoseconds from the start of each step's forward to the start of the next one's."""
    return [after.start - before.start for before, after in pairwise(forwards(trace))]


def forwards(trace: Trace) -> tuple[Slice, ...]:
    """The forward slice of each step, in order of time; on a pipeline, its first stage's."""
    return tuple(item for item in trace.on(forward_lane(trace)) if item.name == "forward")


def forward_lane(trace: Trace) -> str:
    """Where a step begins on the device; of several devices, the first by name."""
    return min((item.lane for item in trace.slices if is_forward(item.lane)), default="forward")


def device_named(trace: Trace, lane: str) -> str:
    """A forward lane in a sentence: ``the device``; of several, ``the decode device``, ``stage 0``.

    Which of them it is, is said only where a run has more than one. A profiler numbers them:
    ``device 0``.
    """
    if len({item.lane for item in trace.slices if is_forward(item.lane)}) < 2:
        return "the device"
    if lane.startswith("device "):
        return lane.removesuffix(" forward")
    return f"the {lane.removesuffix('forward')}device" if lane.endswith("forward") else lane


def is_profiled(trace: Trace) -> bool:
    """Whether a profiler recorded a run: single kernels and copies, on all streams of a device."""
    return any("kernel" in item.attrs for item in trace.slices)


def streams_of(trace: Trace, lane: str) -> set[str]:
    """The lanes on which the device of a forward lane works: in our own runs, that lane."""
    if not is_profiled(trace):
        return {lane}
    device = lane.removesuffix("forward")  # empty: there is only one
    every = {item.lane for item in trace.slices if not is_host(item.lane)}
    return {name for name in every if name.startswith(device)}


def device_runs(trace: Trace, lane: str) -> tuple[Interval, ...]:
    """When the device of a forward lane ran anything."""
    lanes = streams_of(trace, lane)
    return union(item for item in trace.slices if item.lane in lanes)


def span(busy: tuple[Interval, ...]) -> int:
    """Nanoseconds from the first of some intervals to the last: what ``gaps`` are a share of."""
    return busy[-1][1] - busy[0][0] if busy else 0


def device_busy(trace: Trace) -> tuple[Interval, ...]:
    """When any forward stream ran something."""
    return union(item for item in trace.slices if is_forward(item.lane))


def host_busy(trace: Trace) -> tuple[Interval, ...]:
    """When any host thread worked, and did not merely wait."""
    return union(item for item in trace.slices if works_on_host(item))


def hosts_busy(trace: Trace) -> list[tuple[Interval, ...]]:
    """When each host thread worked."""
    lanes = {item.lane for item in trace.slices if works_on_host(item)}
    return [union(filter(works_on_host, trace.on(lane))) for lane in sorted(lanes)]


def works_on_host(item: Slice) -> bool:
    """Whether a slice is work of the host, and not merely waiting."""
    return is_host(item.lane) and not waits_on_host(item)


def waits_on_host(item: Slice) -> bool:
    """Whether in a slice the host did nothing but wait."""
    return is_host(item.lane) and item.name == "wait"


def nobody_there(trace: Trace, side: str = "") -> tuple[Interval, ...]:
    """When no request was waiting, running or holding memory, as the counters of a side say."""
    values = dict.fromkeys([f"{side} {name}".strip() for name in PRESENT], 0)
    found: list[Interval] = []
    since: int | None = None
    for counter in trace.counters:
        if counter.name in values:
            values[counter.name] = counter.value
            if since is not None and since < counter.time:
                found.append((since, counter.time))
            since = None if any(values.values()) else counter.time
    if since is not None and since < trace.end:
        found.append((since, trace.end))
    return tuple(found)


def union(slices: Iterable[Slice]) -> tuple[Interval, ...]:
    """The time covered by any of the slices, as intervals that neither touch nor overlap."""
    merged: list[Interval] = []
    for start, end in sorted((item.start, item.end) for item in slices if item.duration > 0):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def gaps(busy: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The time between intervals."""
    return tuple((before[1], after[0]) for before, after in pairwise(busy))


def intersection(a: tuple[Interval, ...], b: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The time that lies in both; each comes from ``union``, so one pass over both is enough."""
    common, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def length(intervals: tuple[Interval, ...]) -> int:
    """Nanoseconds covered."""
    return sum(end - start for start, end in intervals)
