"""A colour is a step: the picture of how far a host is ahead of its device.

The host has two verbs: it *plans* a step (schedule, prepare, launch) and it *reads* one (process,
output). The device *runs* it. Every box has the colour of its step, so the number of colours at one
moment is the number of steps in work: one in serial, two or more with overlap. It needs no legend.
The phases are the detailed form (``runs.py``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..checks.history import kept, many
from ..checks.identity import differences
from ..trace import Trace
from ..trace.events import is_forward, is_host, lane_words
from ..trace.sides import PAIR
from .layout import (
    View,
    around_a_gap,
    lane_side,
    make_view,
    shown,
    slices_of,
    steady_views,
)
from .looks import STEPS
from .runs import finding, turns_of
from .scene import Data, LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, about_run
from .units import brief_ms, ms

READ = ("process", "output", "postprocess")
PARTS = ("fill", "launch", "send")  # a block of one of these alone has its name
NOTHING = ("wait", "receive")  # of the host, with no step
LEAST = 0.015  # of a picture: the rest of a block that it cuts is left out below this
NARROW = 0.03  # of a picture: a box has no room for words below this
LATE = "a narrow box launches the sampling of its step"
TWO_BATCHES = "odd and even steps are two batches"
APART = 0.1  # of a box's length: phases that are nearer are one box


@dataclass(frozen=True)
class StepBlock:
    """The work of a lane for one step, from ``start`` to ``end`` in nanoseconds."""

    lane: str
    verb: str  # plan, read or run
    step: int
    start: int
    end: int
    does: str = ""  # the verb, or one of PARTS if the block is only that


@kept
def blocks(trace: Trace) -> list[StepBlock]:
    """Return the blocks of all lanes, by time; phases of one verb and step are one block."""
    found: dict[str, list[StepBlock]] = defaultdict(list)
    for item in slices_of(trace):
        if not item.step or not item.duration or item.name in NOTHING:
            continue
        if not (is_host(item.lane) or is_forward(item.lane)):
            continue
        verb = "run" if is_forward(item.lane) else "read" if item.name in READ else "plan"
        does = item.name if item.name in PARTS else verb
        does = "launch" if verb == "plan" and item.lane.endswith("thread") else does
        found[item.lane].append(StepBlock(item.lane, verb, item.step, item.start, item.end, does))
    every = [one for some in found.values() for one in joined(some)]
    planned = {one.step for one in every if one.does == "plan"}
    every = [one if one.step in planned else replace(one, does=one.verb) for one in every]
    return sorted(every, key=lambda one: one.start)


def joined(blocks: Iterable[StepBlock]) -> list[StepBlock]:
    """Return the blocks of a lane with neighbours of one verb and step as one."""
    found = list[StepBlock]()
    for one in blocks:
        if found and is_one(found[-1], one):
            before = found.pop()
            does = one.does if one.does == before.does else one.verb
            one = replace(before, end=max(before.end, one.end), does=does)
        found.append(one)
    return found


def is_one(before: StepBlock, after: StepBlock) -> bool:
    """Return whether two neighbours on a lane are one block."""
    gap = after.start - before.end
    return (before.verb, before.step) == (after.verb, after.step) and (
        gap <= APART * (after.end - before.start)
    )


def is_drawn(one: StepBlock, view: View) -> bool:
    """Return whether a view shows a block: the whole, or more than the rest of one."""
    is_whole = view.start <= one.start and one.end <= view.end
    shown = min(one.end, view.end) - max(one.start, view.start)
    return shown > (0 if is_whole else LEAST * view.duration)


def step_box(one: StepBlock, start: int, end: int) -> LaneItem:
    """Return the box of a block in a picture from ``start`` to ``end``.

    A prefill side counts its own steps, so these boxes are grey.
    """
    is_prefill = side_of(one.lane) == PAIR[0]
    verb = "prompt" if is_prefill and one.verb == "run" else one.does or one.verb
    words = f"{verb} {one.step}"
    return LaneItem(
        f"step {one.step % len(STEPS)}",
        max(one.start, start) - start,
        min(one.end, end) - start,
        words,
        str(one.step) if one.verb == "run" else verb,
        f"{words}, {ms(one.end - one.start)} ms",
        {"step": one.step, "start": one.start, "end": one.end},
        is_prefill,
    )


def burst_named(spans: Sequence[LaneItem], length: int) -> list[LaneItem]:
    """Return boxes; the last of some narrow ones of one verb has the words of all of them."""
    found, first = list[LaneItem](), 0
    for at, item in enumerate(spans):
        before = found[-1] if found else item
        verb, _, number = item.label.partition(" ")
        if not (before.end == item.start and before.label.startswith(f"{verb} ")):
            first = at
        words = f"{verb} {spans[first].label.partition(' ')[2]} to {number}"
        is_narrow = at > first and spans[first].duration < NARROW * length
        found.append(replace(item, label=words) if is_narrow else item)
    return found


def of_one(trace: Trace, count: int = 3, has_gap: bool = False) -> Scene:
    """Draw ``count`` settled steps of a run; 0: the whole run. ``has_gap``: around an idle time.

    Raises:
        NothingToShow: no step ran.
    """
    view = around_a_gap(trace, count) if has_gap else shown(trace, count)
    strip = Strip(view)
    if LATE in strip.reasons:  # the first such launch is narrow and needs room for its words
        before = max(0, view.start - view.duration // (4 * max(1, count)))
        strip = Strip(make_view(trace, before, view.end, view.first_step, view.last_step))
    about = "; ".join([about_run(trace), "a colour is a step", *strip.reasons])
    about += "; an arrow brings a prompt's KV" * bool(strip.beside_prompts)
    lanes = strip.lanes(strip.view.duration)
    part = Part(trace.loop, strip.note, [replace(lanes, rows=[*lanes.rows, *strip.batches()])])
    return Scene(strip.beside_prompts or finding_of(strip), about, [part])


def finding_of(strip: Strip) -> str:
    """Write what the steps shown of one scheduler's run have in common."""
    view, loop, ahead = strip.view, strip.loop, strip.ahead
    steps, gaps = len({one.step for one in strip.of("run")}), [it.duration for it in view.bubbles]
    devices = {one.lane for one in strip.of("run")}
    if len(devices) > 1:
        return f"{len(devices)} steps run at one moment, one in each stage"
    after = [one.step for gap in view.bubbles for one in strip.of("run") if one.start >= gap.end]
    if ahead and after and len(gaps) == 1 < steps:  # a measured run may end with its gap
        order = f"step {after[0]} is planned after step {after[0] - 1} is read"
        return f"{loop}: {order}, so the device idles {ms(gaps[0])} ms"
    if ahead and gaps:
        return f"{ahead}; the device idles {ms(sum(gaps) // steps)} ms"
    if ahead:
        turns, thread = turns_of(view), any(lane.endswith("thread") for lane in strip.names)
        if turns > 1 and strip.step_ns:
            often = f"a request is in one of {turns} steps"
            return f"{loop}: {often}, so its tokens come every {ms(turns * strip.step_ns)} ms"
        return ahead + "; a thread launches it" * thread
    if 1 <= len(gaps) < steps:
        idle = ms(sum(gaps) // len(gaps))
        return f"{loop}: the device idles {idle} ms after every {steps // len(gaps)} steps"
    stays = ", although the token stays" if strip.goes_over_the_host is False and gaps else ""
    return f"{loop}: {finding(view)}{stays}"


def by_step(traces: Sequence[Trace], periods: int = 2) -> Scene:
    """Draw runs of one workload for as long as the first takes for ``periods`` settled steps.

    A run alone is drawn by ``of_one``.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a picture needs at least one trace, but got 0.")
    if len(traces) == 1:
        return of_one(traces[0], periods)
    views = steady_views(traces, periods)
    length = max(view.duration for view in views)
    strips = [
        Strip(make_view(view.trace, view.start, min(view.start + length, view.trace.end)))
        for view in views
    ]
    steps = [f"{strip.loop} has {many(strip.most_steps, 'step')} at one moment" for strip in strips]
    about = f"A colour is a step. {', '.join(steps)}"
    if len(traces) == 2 and not differences(*traces):
        about += ". Both runs gave the same tokens"
    loops, most = ", ".join(strip.loop for strip in strips), many(strips[-1].most_steps, "step")
    parts = [Part(strip.loop, strip.note, [strip.lanes(length)]) for strip in strips]
    return Scene(strips[-1].ahead or f"{loops}: {most} at one moment", about, parts)


def side_of(lane: str) -> str:
    """Return ``prefill`` or ``decode``, of two schedulers; otherwise the empty string."""
    return next((side for side in PAIR if lane.startswith(side)), "")


class Strip:
    """A stretch of a run, drawn by step."""

    def __init__(self, view: View) -> None:
        self.view, self.loop = view, view.trace.loop
        self.blocks = [one for one in blocks(view.trace) if is_drawn(one, view)]
        self.names = [lane for lane in view.lanes if any(one.lane == lane for one in self.blocks)]
        self.at = {lane: number for number, lane in enumerate(self.names)}

    def of(self, verb: str, step: int = 0) -> list[StepBlock]:
        """Return the blocks of a verb, of one step or of all."""
        return [one for one in self.blocks if one.verb == verb and step in (0, one.step)]

    @property
    def most_steps(self) -> int:
        """Return the most steps that are in work at one moment: planned, run or read."""
        moments = {max(one.start, self.view.start) for one in self.blocks}
        at = [{one.step for one in self.blocks if one.start <= now < one.end} for now in moments]
        return max(map(len, at), default=0)

    @property
    def goes_over_the_host(self) -> bool | None:
        """Return whether a token goes over the host to its next step; None: none was seen."""
        return not all(self.ways.values()) if self.ways else None

    @property
    def ways(self) -> dict[int, bool]:
        """Return whether the token of each step stays on the device, by step."""
        found: dict[int, bool] = {}
        for arrow in self.view.arrows:
            if arrow.brings == "token":
                step = arrow.src.step
                found[step] = arrow.stays and found.get(step, True)
        return found

    @property
    def step_ns(self) -> int | None:
        """Return the nanoseconds from step to step, if two of them begin here."""
        lane = [name for name in self.names if is_forward(name)][-1:]
        starts = {
            one.start
            for one in blocks(self.view.trace)
            if one.lane in lane and self.view.start <= one.start <= self.view.end
        }
        return (max(starts) - min(starts)) // (len(starts) - 1) if len(starts) > 1 else None

    @property
    def beside_prompts(self) -> str:
        """Write how evenly decode steps follow each other on a device of their own, if they do."""
        prompts, decodes = (
            [one for one in self.of("run") if side_of(one.lane) == side] for side in PAIR
        )
        gaps = [after.start - before.start for before, after in pairwise(decodes)]
        if not prompts or not gaps:
            return ""
        times = " to ".join(dict.fromkeys(ms(choose(gaps)) for choose in (min, max)))
        beside = [
            one for one in prompts if one.end > decodes[0].start and one.start < decodes[-1].end
        ]
        if not beside:
            return ""
        steps = many(len(beside), "step")
        return f"Decode goes on beside {steps} with prompts: a step every {times} ms"

    @property
    def ahead(self) -> str:
        """Write what the host does while the device runs a step; empty if it does nothing then."""
        for run in self.of("run"):
            own = self.of("plan", run.step)
            is_late = any(run.start <= one.start < one.end <= run.end for one in own)
            inside = {
                one.verb: one.step
                for one in self.blocks
                if one.verb != "run"
                and run.start <= one.start
                and one.end <= run.end
                and side_of(one.lane) == side_of(run.lane)
            }
            if inside.keys() == {"plan", "read"}:
                both = f"reads {inside['read']} and plans {inside['plan']}"
                first = "launches its sampling, " * is_late
                return f"While the device runs step {run.step}, the host {first}{both}"
        return ""

    @property
    def note(self) -> str:
        """Write the time of a step, and the way of the token."""
        words = [f"{ms(self.step_ns)} ms a step"] if self.step_ns else []
        ways = self.ways
        over = [step for step, stays in ways.items() if not stays]
        if len(over) in (0, len(ways)):
            way = "goes over the host" if over else "stays on the device"
            words += [f"the token {way}"] * bool(ways)
        else:
            steps = " and ".join(map(str, over))
            words.append(f"the token of step {steps} goes over the host, others stay on the device")
        return ", ".join(words)

    @property
    def reasons(self) -> Iterator[str]:
        """Yield the reasons that no box shows: a change of the batch, two batches, the order."""
        gaps, rids = self.view.bubbles, self.rids
        changes = [step for step in rids if step - 1 in rids and rids[step] != rids[step - 1]]
        if "launches its sampling" in self.ahead:
            yield LATE
        if len({one.lane for one in self.of("run")}) > 1:
            return
        if turns_of(self.view) == 2:
            yield TWO_BATCHES
        elif self.ahead and len(gaps) == 1 and changes:
            yield f"the batch changes after step {changes[0] - 1}"
        elif not self.ahead and gaps and self.goes_over_the_host is False:
            yield "the host reads a step before it plans the next"

    @property
    def rids(self) -> dict[int, tuple[str, ...]]:
        """Return the requests of each step."""
        return {item.step: item.rids for item in self.view.slices if item.name == "forward"}

    def batches(self) -> Iterator[LaneRow]:
        """Yield a lane for each of two batches that take turns: its steps in flight."""
        if TWO_BATCHES not in self.reasons or len({*self.rids.values()}) != 2:
            return
        view, rows = self.view, dict[tuple[str, ...], list[LaneItem]]()
        for step, ran in {one.step: one for one in self.of("run")}.items():
            own = [one for one in blocks(view.trace) if one.step == step]
            plans = [one.end for one in own if one.verb == "plan" and one.end <= ran.start]
            launched = max(plans, default=ran.start)  # a phase that takes no time has no block
            read = min((one.start for one in own if one.verb == "read"), default=ran.end)
            box = step_box(StepBlock("", "in flight", step, launched, read), view.start, view.end)
            spans = rows.setdefault(self.rids[step], [])
            spans.append(replace(box, label=f"step {step} in flight"))
        for rids, spans in sorted(rows.items()):
            ends = [item.end for item in spans if item.end < view.duration]
            for start, end in [*pairwise(ends)][:1]:
                spans.append(LaneItem("span", start, end, f"{ms(end - start)} ms"))
            yield LaneRow(f"batch {', '.join(rids)}", spans)

    def lanes(self, length: int) -> Lanes:
        """Return the hosts, then the devices, with the way of one token."""
        view, sides = self.view, Counter(map(lane_side, self.names))
        rows = []
        for lane in self.names:
            spans = burst_named(
                [step_box(one, view.start, view.end) for one in self.blocks if one.lane == lane],
                length,
            )
            spans += [
                LaneItem(
                    "bubble", *view.clip(idle.start, idle.end),
                    f"idle {brief_ms(idle.duration)}", brief_ms(idle.duration),
                    f"idle {ms(idle.duration)} ms",
                )
                for idle in view.bubbles
                if idle.lane == lane
            ]  # fmt: skip
            side = lane_side(lane)
            name = "thread" if lane.endswith("thread") else lane_words(lane)
            rows.append(LaneRow(side if sides[side] == 1 else name, spans))
        return Lanes(
            rows, length, 0, [*self._token(), *self._handed(), *self._transfers()], across="ms"
        )

    def _handed(self) -> Iterator[LaneLink]:
        """Yield an arrow from a host to the thread that launches a step, for the first step."""
        for one in self.of("plan"):
            plans = [before for before in self.of("plan", one.step) if before.lane != one.lane]
            if one.lane.endswith("thread") and plans:
                src = self.at[plans[-1].lane], plans[-1].end - self.view.start
                yield LaneLink("launch", src, (self.at[one.lane], one.start - self.view.start))
                return

    def _transfers(self) -> Iterator[LaneLink]:
        """Yield an arrow for each prompt's KV, from its step to the host that receives it."""
        view = self.view
        for arrow in view.arrows:
            if arrow.brings == "transfer" and arrow.dst.lane in self.at:
                prompts = (one for one in self.of("run") if side_of(one.lane) == PAIR[0])
                ran = [one for one in prompts if one.end <= arrow.start]
                src = self.at[ran[-1].lane], ran[-1].end - view.start
                dst = self.at[arrow.dst.lane], arrow.end - view.start
                yield LaneLink("transfer", src, dst)

    def _token(self) -> Iterator[LaneLink]:
        """Yield the arrows of one token of each way, from the end of its step to the next step."""
        zero, end, seen = self.view.start, self.view.end, set[bool]()
        for arrow in self.view.arrows:
            ran, after = self.of("run", arrow.src.step), self.of("run", arrow.dst.step)
            if arrow.brings != "token" or arrow.stays in seen or not ran or not after:
                continue
            source = max(ran, key=lambda one: one.end)
            target = min(after, key=lambda one: one.start)
            if source.start < zero or target.start > end or target.start < source.end:
                continue
            src = self.at[source.lane], source.end - zero
            dst = self.at[target.lane], target.start - zero
            data: Data = {"kind": "token", "step": source.step}
            plan = self.of("plan", target.step)
            fills = [one for one in plan if one.does == "fill"]
            read = fills or self.of("read", source.step)
            if not arrow.stays and read and plan:
                to = self.at[read[0].lane], read[0].start - zero
                end_of_plan = min(plan[-1].end, target.start)  # a launch may return later
                back = self.at[plan[-1].lane], end_of_plan - zero
                yield LaneLink("token", src, to, about=arrow.meaning, data=data)
                yield LaneLink("token", back, dst, about=arrow.meaning, data=data)
            else:
                yield LaneLink("token", src, dst, about=arrow.meaning, data=data)
            seen.add(arrow.stays)
