"""Read from a trace alone: who ended twice, who heard a token behind the end, who read wrongly."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from urllib.parse import unquote

from ...trace import Trace
from ...trace.lanes import is_host
from ..leaks.leaks import moments, sides
from ..leaks.ledger import Ledger
from ..leaks.moment import Moment
from ..offence import Offence


@dataclass(frozen=True)
class Breach:
    """A law that a trace by itself shows to be broken: ``ends``, or ``identity`` for a wrong read.

    ``time`` is in nanoseconds; ``slices`` are those in which it happened, as far as is known.
    """

    law: str
    rid: str
    sentence: str
    time: int = 0
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        return Offence(self.slices, self.sentence)


class Lives:
    """Each request's ends so far; one that comes once more under the same name lives again."""

    def __init__(self, trace: Trace, side: str) -> None:
        self.ends: defaultdict[str, list[tuple[str, Moment]]] = defaultdict(list)
        self.fresh: set[str] = set()  # ended since a step came back: it may carry the last token
        self.came: defaultdict[str, list[int]] = defaultdict(list)
        self.refused: Counter[str] = Counter()  # those of them who came while another one lived
        for item in trace.slices:
            is_mine = is_host(item.lane) and item.lane.startswith(f"{side} " if side else "")
            if is_mine and item.name == "receive":
                for rid in item.rids:
                    self.came[rid].append(item.end if trace.clock == "virtual" else item.start)

    def is_over(self, rid: str, time: int) -> bool:
        """Whether it has ended as often as it has come."""
        came = bisect_right(self.came[rid], time) - self.refused[rid]
        return len(self.ends[rid]) >= max(1, came)

    def end(self, rid: str, reason: str, now: Moment) -> Breach | None:
        """It ends; a breach if it had ended before."""
        is_over = self.is_over(rid, now.time)
        self.ends[rid].append((reason, now))
        if not is_over:
            if reason != "abort":
                self.fresh.add(rid)
            return None
        first, before = self.ends[rid][-2]
        story = f"{rid} ended twice: ({first}) {before}, and again ({reason}) {now}"
        slices = tuple(dict.fromkeys([*before.slices, *now.slices]))
        return Breach("ends", rid, story, now.time, slices)

    def hear(self, rid: str, step: int, now: Moment) -> Breach | None:
        """It hears a token; a breach if that comes behind its end."""
        if rid in self.fresh or not self.is_over(rid, now.time):
            return None
        reason, before = self.ends[rid][-1]
        story = f"{rid} heard a token of step {step} {now}, although it had ended ({reason})"
        return Breach("ends", rid, f"{story} {before}", now.time, (*before.slices, *now.slices))


def find_ends(trace: Trace) -> list[Breach]:
    """Requests that ended twice, and tokens that came behind an end, in order of time."""
    found: list[Breach | None] = []
    for side in sides(trace):
        lives = Lives(trace, side)
        for mark, now in moments(trace, side):
            if mark.name == "finish":
                found.append(lives.end(str(mark.attrs["rid"]), str(mark.attrs["reason"]), now))
            elif mark.name == "refused":
                lives.refused[str(mark.attrs["rid"])] += 1
            elif mark.name == "tokens":
                rids = dict.fromkeys(map(unquote, str(mark.attrs["rids"]).split()))
                found += [lives.hear(rid, int(mark.attrs["step"]), now) for rid in rids]
                lives.fresh.clear()
    return sorted(filter(None, found), key=lambda item: item.time)


def find_misreads(trace: Trace) -> list[Breach]:
    """Steps that read another one's future slot, in order of time, also where nobody saw it."""
    found: list[Breach] = []
    for side in sides(trace):
        ledger = Ledger()
        for mark, now in moments(trace, side):
            ledger.hear(mark, now)
        found += [
            Breach("identity", item.lease.rid if item.lease else "", item.sentence,
                   item.moment.time, item.moment.slices)
            for item in ledger.slots.misread
        ]  # fmt: skip
    return sorted(found, key=lambda item: item.time)
