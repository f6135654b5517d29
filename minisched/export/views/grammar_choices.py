"""What each grammar allowed at each step, and what it then got, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...checks.causes import Idle, idle_times, waits
from ...trace import Mark, Trace
from ...trace.events import is_forward
from .future_slots import whole_numbers
from .marks import lacking, named, number, word

REASON = "grammar"  # of the waits that are its own


@dataclass
class Choice:
    """One step's token of a constrained request; with drafts there are several."""

    step: int
    allowed: tuple[int, ...]  # how many tokens the mask allowed, at each place
    masked: int  # when the mask was there
    sampled: int  # when the step had been sampled
    accepted: int  # when the grammar took what was sampled
    tokens: tuple[int, ...] = ()  # what it took; none: nobody wanted it, or the trace ends
    terminated: bool = False  # nothing can follow

    @property
    def phases(self) -> list[tuple[str, int, int]]:
        """With a mask (promised), then sampled (stored), as far as that takes time."""
        moments = (
            ("promised", self.masked, self.sampled),
            ("stored", self.sampled, self.accepted),
        )
        return [(kind, start, end) for kind, start, end in moments if end > start]


@dataclass
class Constrained:
    """One request with a grammar, and its choices in order of time."""

    rid: str
    rule: str
    choices: list[Choice] = field(default_factory=list)


def constrained_of(trace: Trace) -> list[Constrained]:
    """Every request with a grammar, in the order in which they came.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    found: dict[str, Constrained] = {}
    sampled = {
        (side_of(item.lane), item.step): item.end
        for item in trace.slices
        if item.name == "sample" and is_forward(item.lane)
    }
    for mark in named(trace, "grammar"):
        rid = word(mark, "rid")
        found.setdefault(rid, Constrained(rid, printable(word(mark, "rule"))))
    accepts = {key_of(mark): mark for mark in named(trace, "grammar accept")}
    for mark in named(trace, "grammar mask"):
        side, step, rid = key_of(mark)
        if rid not in found:
            raise lacking(mark, f"a grammar of {rid}")
        allowed = tuple(whole_numbers(mark, "allowed"))
        end = max(mark.time, sampled.get((side, step), trace.end))
        choice = Choice(step, allowed, mark.time, end, end)
        if taken := accepts.get((side, step, rid)):
            choice.accepted = max(end, taken.time)
            choice.tokens = tuple(whole_numbers(taken, "tokens"))
            choice.terminated = bool(number(taken, "terminated"))
        found[rid].choices.append(choice)
    return list(found.values())


def printable(rule: str) -> str:
    """A rule in one line, without what neither a picture nor a terminal can show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in rule
    )


def key_of(mark: Mark) -> tuple[str, int, str]:
    """Side, step and request of a mark."""
    return str(mark.attrs.get("side", "")), number(mark, "step"), word(mark, "rid")


def side_of(lane: str) -> str:
    """Whose lane it is, where two engines share a trace."""
    return lane.removesuffix("forward").rstrip() if lane.endswith("forward") else ""


def waits_of(trace: Trace) -> list[Mark]:
    """When a step was told to wait for a grammar."""
    return [mark for mark in waits(trace) if mark.attrs["reason"] == REASON]


def idle_of(trace: Trace) -> list[Idle]:
    """When a device idled because of that."""
    return [item for item in idle_times(trace) if item.reason == REASON]
