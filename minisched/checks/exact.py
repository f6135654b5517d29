"""The law *time* on a simulated device: a slice begins at its last cause, and takes its cost.

A virtual clock is exact, so a run that only takes too long breaks a law, too. A slice begins when
its lane is free and its launch and waits are over (``course.py`` follows them in the program). It
takes what the cost model has for its phase or op. A message may arrive at any time, so a slice that
receives messages, or decides after them, may begin later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ..devices.cost import IDEAL_PACE
from ..loops.pd import Link
from ..loops.two_batch import NAMES as HALVES
from ..trace import Slice, Trace
from ..trace.cells import spans_of
from ..trace.events import is_host
from .case import Case
from .course import course_of
from .history import Offence, milliseconds, side_of
from .laws import SENT, STAND_IN

AFTER_MESSAGES = ("receive", "schedule")
OTHER_PHASES = {"prepare": ("advance step",), "launch": ("launch sample",)}
"""Phases of the host with costs of their own, by the name of their slices."""
MAY_BE_FREE = ("fill", "prepare")  # without a token to fill in, or of the same rows again


def find_inexact(
    trace: Trace, case: Case, num_tokens: Mapping[tuple[str, int], int]
) -> Iterator[Offence]:
    """Yield slices that begin after their last cause, or take another time than they cost.

    ``num_tokens`` are those of each step, by side of ``pd`` and step. The halves of a forward pass
    are not judged. The launch that loses a step waits for the device, and is not judged either.
    """
    if case.cost.pace != IDEAL_PACE:
        return
    course, prices = course_of(trace), Prices(case, trace)
    halved = {item.step for item in trace.slices if item.name in HALVES}
    lost = {("launch", item.step) for item in trace.slices if item.name == STAND_IN}
    passes = dict[tuple[str, int], list[Slice]]()  # one slice for each stage of a pipeline
    for number, ran in course.ran.items():
        item = course.slices[number]
        if ran.start > ran.ready and not (is_host(item.lane) and item.name in AFTER_MESSAGES):
            late = milliseconds(ran.start - ran.ready)
            story = f"{item.label} begins {late} after its lane is free and its waits are over"
            yield Offence(story, (number,), "time", "", item.start)
        if item.name == "forward" and item.step not in halved:
            passes.setdefault((side_of(item.lane)[0], item.step), []).append(item)
        elif item.name == "forward" or (item.name, item.step) in lost:
            continue
        elif item.duration not in (costs := prices.of(item)):
            yield other_time([item], costs[0])
    for key, stages in passes.items():
        cost = case.cost.forward(num_tokens.get(key, 0))
        if sum(item.duration for item in stages) != cost:
            yield other_time(stages, cost)


def other_time(items: list[Slice], cost: int) -> Offence:
    """Return the offence of slices that together take another time than they cost."""
    took = milliseconds(sum(item.duration for item in items))
    story = f"{items[0].label} takes {took}, but costs {milliseconds(cost)}"
    return Offence(story, tuple(item.id for item in items), "time", "", items[0].start)


class Prices:
    """The cost of each slice in nanoseconds, by its name; see ``find_inexact`` for passes."""

    def __init__(self, case: Case, trace: Trace) -> None:
        self.cost, self.drafts = case.cost, case.workload.config.num_draft_tokens
        self.graph_rows = case.workload.config.cuda_graph_max_bs  # None: of any number
        self.link = Link(**case.options) if case.loop == "pd" else None
        self.sent = Counter[int]()  # KV slots, by transfer
        for act in trace.program if self.link else ():
            if act.resource == SENT and act.kind == "read":
                self.sent[act.op] += sum(last + 1 - first for first, last in spans_of(act.at))

    def of(self, item: Slice) -> list[int]:
        """Return what a slice may take, the most usual first."""
        cost, name = self.cost, item.name
        if is_host(item.lane):
            of_thread = item.lane.endswith("thread")  # there a sampling has a name of its own
            others = [phase for phase in OTHER_PHASES.get(name, ()) if phase in cost.host]
            is_free = name in MAY_BE_FREE or (name == "launch" and not of_thread)
            if name == "launch" and item.mode == "decode" and self.graph_rows is not None:
                is_eager = len(item.rids) > self.graph_rows
                name = "launch eager" if is_eager and "launch eager" in cost.host else name
            return [cost.host.get(name, 0), *map(cost.host.__getitem__, others), *[0] * is_free]
        if self.link and self.sent[item.id]:
            return [self.link.cost(self.sent[item.id])]
        if name in HALVES or name == "transfer":  # one that fails declares no slots
            return [item.duration]
        if name == "draft":  # a lookup, or a pass of a draft model for each draft
            return [cost.draft, cost.draft * self.drafts]
        if name == "select":  # of beams
            return [cost.verify]
        return [0 if name == STAND_IN else getattr(cost, name, cost.copy)]
