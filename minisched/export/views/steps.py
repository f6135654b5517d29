"""The work of each step, read from a trace: tokens by request and kind."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Mark, Slice, Trace
from ..scene import LaneItem, LaneRow, Lanes
from .marks import NothingToShow, named, number, numbers, short, word


class StepShare(NamedTuple):
    """One request's share of a step."""

    rid: str
    kind: str  # prompt, again (a recomputed prompt), decode or wasted
    tokens: int  # 0: unknown


@dataclass(frozen=True)
class StepWork:
    """One step on the device."""

    step: int
    mode: str
    start: int
    end: int
    parts: tuple[StepShare, ...]

    def tokens(self, *kinds: str) -> int:
        """Return the tokens of these kinds together."""
        return sum(part.tokens for part in self.parts if part.kind in kinds)


def forwards_of(trace: Trace) -> tuple[Slice, ...]:
    """Return the forward slice of each step.

    Raises:
        NothingToShow: there is none.
    """
    if not (found := forwards(trace)):
        raise NothingToShow("the trace has no forward slice, so there is no step to show.")
    return found


def opening(trace: Trace, most_steps: int) -> tuple[Trace, str]:
    """Return the first ``most_steps`` steps of a trace, and their number in words."""
    steps = forwards_of(trace)
    if len(steps) <= most_steps:
        return trace, many(len(steps), "step")
    end = steps[most_steps].start
    cut = replace(
        trace,
        slices=tuple(item for item in trace.slices if item.start < end),
        edges=(),
        counters=tuple(item for item in trace.counters if item.time < end),
        marks=tuple(item for item in trace.marks if item.time < end),
    )
    return cut, f"the first {most_steps} of {len(steps)} steps"


def led_to(trace: Trace) -> Callable[[Mark], int]:
    """Return a function from a scheduler's mark to the next prepared step; 0: none follows."""
    prepares = sorted((item.start, item.step) for item in trace.slices if item.name == "prepare")

    def step(mark: Mark) -> int:
        """Return the step that was prepared next after a mark."""
        at = bisect_left(prepares, (mark.time, 0))
        return prepares[at][1] if at < len(prepares) else 0

    return step


def steps_of(trace: Trace) -> list[StepWork]:
    """Return every step by time; each request that it admits computes prompt tokens.

    A request that is admitted again recomputes its prompt. One with beams decodes a token for each
    of them. Where a trace has no ``admit`` marks, the mode alone decides, and prompt tokens are
    unknown (0).
    """
    step_of = led_to(trace)
    admitted = {
        (step_of(mark), word(mark, "rid")): number(mark, "extend_len")
        for mark in named(trace, "admit")
    }
    wasted = {(number(m, "step"), word(m, "rid")) for m in named(trace, "wasted row")}
    retracted: dict[str, int] = {}  # time of each request's first retraction
    for mark in named(trace, "retraction"):
        retracted.setdefault(word(mark, "rid"), mark.time)
    chosen = {
        (number(m, "step"), word(m, "rid")): numbers(m, "rows") for m in named(trace, "beams")
    }
    found, beams = [], dict[str, int]()  # how many each request has now
    for item in forwards_of(trace):
        parts = []
        for rid in item.rids:
            key = (item.step, rid)
            tokens = admitted.get(key, 0 if item.mode == "extend" else beams.get(rid, 1))
            if key in chosen:
                beams[rid] = len(chosen[key])
            kind = "prompt" if key in admitted or item.mode == "extend" else "decode"
            if kind == "prompt" and retracted.get(rid, item.start) < item.start:
                kind = "again"
            parts.append(StepShare(rid, "wasted" if key in wasted else kind, tokens))
        found.append(StepWork(item.step, item.mode, item.start, item.end, tuple(parts)))
    return found


def requests_in(steps: list[StepWork]) -> list[str]:
    """Return request ids in order of their first step."""
    return list(dict.fromkeys(part.rid for step in steps for part in step.parts))


# -- Each step's work by request, as lanes: a box for each step ------------------------------------

WORK = {
    "prompt": "a step computes prompt tokens",
    "again": "prompt tokens, computed again",
    "decode": "a step decodes one token",
    "wasted": "a wasted row: its token is dropped",
    "end": "it ends",
}


def work_of(steps: Sequence[StepWork], rid: str) -> list[LaneItem]:
    """Return the work for a request; only a prompt's boxes show the number of tokens."""
    return [
        LaneItem(
            part.kind, step.start, step.end,
            str(part.tokens) if part.kind in ("prompt", "again") and part.tokens else "",
            data={"step": step.step, "rid": rid, "tokens": part.tokens},
        )
        for step in steps
        for part in step.parts
        if part.rid == rid
    ]  # fmt: skip


def work_lanes(trace: Trace, steps: Sequence[StepWork], rids: Sequence[str]) -> Lanes:
    """Return a lane for each of these requests up to its end, with flags of retractions."""
    ends = {
        word(mark, "rid"): LaneItem("end", mark.time, mark.time, about=f"{word(mark, 'rid')} ends")
        for mark in named(trace, "finish")
    }
    rows = [
        LaneRow(short(rid, 12), [*work_of(steps, rid), *([ends[rid]] if rid in ends else [])])
        for rid in rids
    ]
    return Lanes(rows, trace.end, flags=retraction_flags(trace, rids))


def retraction_flags(trace: Trace, rids: Sequence[str] = ()) -> list[LaneItem]:
    """Return flags at the retractions of these requests, by name; without any, of all."""
    return [
        LaneItem(
            "flag-head", mark.time, mark.time, f"{rid} is retracted" if rids else rid,
            data={"rid": rid, "mark": "retraction", "why": word(mark, "reason")},
        )
        for mark in named(trace, "retraction")
        if (rid := word(mark, "rid")) in rids or not rids
    ]  # fmt: skip
