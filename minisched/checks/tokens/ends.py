"""Read from a trace alone: who ended twice, who heard a token behind the end, who read wrongly.

And whose token was delivered although it was none, or was not delivered (``misdeliveries``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from ...trace import Trace
from ...trace.events import is_host
from ..leaks.leaks import moments, sides
from ..leaks.lease import HeldLease
from ..leaks.ledger import Ledger
from ..leaks.moment import Moment
from ..offence import Offence
from .identity import tokens_heard


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


# -- what became of what a step sampled ------------------------------------------------------------


class Misdelivery(NamedTuple):
    """What happened to a step's token of a request, and why it should not have."""

    step: int
    rid: str
    sentence: str


def misdeliveries(trace: Trace, side: str = "") -> list[Misdelivery]:
    """Deliveries that are not what was settled when the step was committed, in order.

    A chunk that is not a prompt's last samples no token. A token counts for whoever still has the
    lease that the step was committed under; where a mark ``stale output`` says so, without.
    """
    ledger, found = Ledger(), list[Misdelivery]()
    stale: set[tuple[str, int]] = set()
    heard = {(rid, item.step) for rid, items in tokens_heard(trace).items() for item in items}
    for mark, now in moments(trace, side):
        of = mark.attrs
        ledger.hear(mark, now)
        if mark.name == "stale output":
            stale.add((str(of["rid"]), int(of["step"])))
        elif mark.name == "tokens" and int(of["step"]) in ledger.commits:
            step = int(of["step"])
            for lease in filter(None, ledger.commits[step]):
                is_open = lease.closed is None or lease.closed.step == step
                says = _judged(
                    step, lease.rid, (lease.rid, step) in heard, lease.row in ledger.chunks[step],
                    is_open or (lease.rid, step) in stale, lease,
                )  # fmt: skip
                found += [Misdelivery(step, lease.rid, says)] if says else []
    return found


def _judged(
    step: int, rid: str, is_heard: bool, is_chunk: bool, counts: bool, lease: HeldLease
) -> str:
    """What is wrong about a delivery, or nothing."""
    if is_heard and is_chunk:
        return (
            f"what step {step} sampled for {rid} was delivered, although that step computed a "
            "chunk that is not the last of its prompt: such a sample is no token"
        )
    if is_heard and not counts and lease.why != "retraction":
        return (
            f"the token of step {step} was delivered to {rid}, although {lease.end}: nothing may "
            "come behind that"
        )
    if is_heard and not counts:
        return (
            f"the token of step {step} was delivered to {rid}, although {rid} had lost the lease "
            f"that the step was committed under ({lease.why}): it is computed once more"
        )
    if not is_heard and not is_chunk and counts and lease.why not in ("error", "abort"):
        return (
            f"step {step} sampled a token for {rid}, which was not delivered, although {rid} "
            "still had its lease and all of its prompt was computed"
        )
    return ""
