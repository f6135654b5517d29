"""The poster: how far ahead each design is, in families of designs that draw the same picture.

A colour is a step (``by_step.py``). Designs with the same run-ahead differ in where the token is,
which ``one_token.py`` shows. A family shows one design, for a time that holds whole periods: from
a step of a request on, and long enough for a whole burst of ``multi_step``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ..checks.history import many
from ..checks.overlap import forward_lanes, forwards, measure
from ..trace import Slice, Trace
from .by_step import Strip, blocks
from .layout import DECODES, around_a_gap, make_view
from .runs import TIE
from .scene import Lanes, Part, Scene
from .units import ms

MIN_PERIODS = 2


class Kind(NamedTuple):
    """The common properties of designs of one family, read off their runs."""

    devices: int
    burst: int  # steps planned one after the other
    turns: int  # steps from one of a request to its next one
    most_steps: int  # in work at one moment
    over_the_host: bool
    has_breaks: bool = False  # the device idles only where the batch changes

    @property
    def words(self) -> str:
        """Return the kind in a line."""
        if self.devices > 1:
            return f"{self.devices} stages: a step runs in each of them, in order"
        if self.burst > 1:
            return f"{self.burst} steps planned together"
        if self.turns > 1:
            return f"{self.turns} batches take turns: a request is in one step of {self.turns}"
        if self.most_steps < 2:
            return "one step at a time"
        ahead = f"{many(self.most_steps - 1, 'step')} ahead"
        ahead += ", the token over the host" * self.over_the_host
        return ahead + " while the batch stays the same" * self.has_breaks


class Period(NamedTuple):
    """A run with a settled stretch: its family, and the strip of one whole period."""

    trace: Trace
    kind: Kind
    start: int  # of the period
    period: int  # nanoseconds


def poster(traces: Sequence[Trace], loops: Sequence[str] = ()) -> Scene:
    """Draw all runs of one workload in families, the fastest family first.

    ``loops``: draw the families of these loops alone, and two periods of each. A run in which no
    request takes some consecutive steps is left out, and a note names it.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a poster needs at least one trace, but got 0.")
    found = [(trace, settled_in(trace)) for trace in traces]
    known = [settled for _, settled in found if settled]
    missing = [trace.loop for trace, settled in found if not settled]
    times = {trace.loop: max(1, measure(trace).makespan_ns) for trace in traces}
    base = times[traces[0].loop]
    families: dict[Kind, list[Period]] = {}
    for one in sorted(known, key=lambda one: times[one.trace.loop]):
        families.setdefault(one.kind, []).append(one)
    fastest = f"{len(known)} designs are {many(len(families), 'picture')}; the fastest"
    if loops:
        fastest = f"The fastest of {len(known)} designs"
        kinds = {one.kind for one in known if one.trace.loop in loops}
        families = {kind: members for kind, members in families.items() if kind in kinds}
    drawn = [one.period for members in families.values() for one in members]
    length = (2 if loops else 1) * max(drawn, default=1)
    parts = [
        Part(kind.words, gain(members, times, traces[0].loop), [strip_of(members[0], length)])
        for kind, members in families.items()
    ]
    notes, title = [], "no run has settled steps"
    if known:
        least = min(times[one.trace.loop] for one in known)
        best = [one.trace.loop for one in known if times[one.trace.loop] <= TIE * least]
        title = f"{fastest} is {base / least:.2f} times as fast as {traces[0].loop}"
        notes.append(f"The fastest, within 1 %: {', '.join(best)}.")
    if missing:
        notes.append(f"Without settled steps, so not shown: {', '.join(missing)}.")
    about = f"{traces[0].what_ran}; a colour is a step; {ms(length)} ms"
    return Scene(title, f"{about} of each", parts, notes=notes)


def gain(members: Sequence[Period], times: Mapping[str, int], first: str) -> str:
    """Write the loops of a family, and how many times as fast as the first run they are."""
    base = times[first]
    factors = [base / times[one.trace.loop] for one in members]
    least, most = f"{min(factors):.2f}", f"{max(factors):.2f}"
    names = ", ".join(one.trace.loop for one in members)
    times_as = most if least == most else f"{least} to {most}"
    return f"{names}; {times_as} times as fast as {first}"


def strip_of(one: Period, length: int) -> Lanes:
    """Return the lanes of a run from the start of its period on."""
    end = min(one.start + length, one.trace.end)
    return Strip(make_view(one.trace, one.start, end)).lanes(length)


def settled_in(trace: Trace) -> Period | None:
    """Return the period in the middle of the longest stretch with the same requests."""
    passes = [item for item in forwards(trace) if item.mode in DECODES]
    counts = Counter(rid for item in passes for rid in item.rids)
    most = max(counts, key=lambda name: (counts[name], name), default="")
    alike = groupby((item for item in passes if most in item.rids), lambda item: item.rids)
    stretch = max((list(items) for _, items in alike), key=len, default=list[Slice]())
    firsts = [at for at, item in enumerate(stretch) if not at or item.step != stretch[at - 1].step]
    stretch = [stretch[at] for at in firsts]  # a pipeline's stages run one step each
    if len(stretch) <= MIN_PERIODS:
        return None
    whole = Strip(make_view(trace, stretch[0].start, stretch[-1].start))
    turns = max(1, round((stretch[-1].step - stretch[0].step) / (len(stretch) - 1)))
    burst = longest_burst(whole)
    is_ahead = whole.most_steps > 1
    over = is_ahead and bool(whole.goes_over_the_host)
    broken = around_a_gap(trace, MIN_PERIODS)
    breaks = is_ahead and turns == 1 and not whole.view.bubbles and bool(broken.bubbles)
    kind = Kind(len(forward_lanes(trace)), burst, turns, whole.most_steps, over, breaks)
    if len(stretch) <= burst + 1:
        return None
    at = begin_of(trace, stretch, burst)
    period = stretch[at + burst].start - stretch[at].start
    return Period(trace, kind, broken.start if breaks else stretch[at].start, period)


def longest_burst(strip: Strip) -> int:
    """Return how many steps the host plans before it reads one."""
    host = [one for one in strip.blocks if one.verb != "run"]
    runs = groupby(host, lambda one: one.verb)
    return max(
        (len({one.step for one in some}) for verb, some in runs if verb == "plan"), default=1
    )


def begin_of(trace: Trace, stretch: Sequence[Slice], burst: int) -> int:
    """Return the place near the middle of a stretch where a period begins: the first of a burst."""
    middle = (len(stretch) - burst - 1) // 2
    if burst == 1:
        return middle
    plans = [one.start for one in blocks(trace) if one.verb == "plan"]
    places: list[int] = [*range(max(1, middle), len(stretch) - burst), *range(1, middle)]
    for at in places:
        before, begin = stretch[at - 1].end, stretch[at].start
        if any(before <= start <= begin for start in plans):  # planned while the device idles
            return at
    return middle
