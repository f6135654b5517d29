"""Where on each axis random workloads and their cases lie, and which values never came up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...core import Request
from ...devices.cost import CostModel, MeasuredCost
from ...loops.design import LOOPS
from ...memory.radix_cache import POLICIES as EVICTION_POLICIES
from ...policy.rules import RULES, RUN_FIRST
from ...policy.waiting import POLICIES as SCHEDULE_POLICIES
from ...scheduler.config import ALGORITHMS
from ...trace import Trace
from ..faults.in_step import STEP_FAULTS
from ..judge import Verdict
from ..tokens.oracle import tokens_alone
from .designs import Design, all_designs
from .draw import CHANGES, PAGE_SIZES, THEMES, Drawn
from .requests import WISHES

YES_OR_NO = ("no", "yes")
SPECULATION = ("none", *ALGORITHMS)
OF_A_WORKLOAD: dict[str, Sequence[str]] = {
    "theme": tuple(dict.fromkeys(THEMES)),
    "requests": tuple("1234567"),
    "odd request": ("none", "id", "field"),
    "wishes": tuple(dict.fromkeys(WISHES)),
    "sampling": ("greedy", "temperature"),
    "log-probabilities": YES_OR_NO,
    "stop tokens": YES_OR_NO,
    "end of text": YES_OR_NO,
    "aborts": tuple("0123"),
    "failing steps": tuple("012"),
    "what fails": ("nothing", *STEP_FAULTS),
    "where it fails": ("nowhere", "prompt", "answer", "behind the end"),
    "flushes": YES_OR_NO,
    "priorities": tuple("123456"),
    "arrivals": ("at once", "one after the other"),
    "page size": tuple(map(str, sorted(set(PAGE_SIZES)))),
    "pool": ("too small", "just enough", "more"),
    "running requests": tuple("12345"),
    "radix cache": ("on", "off"),
    "eviction": tuple(EVICTION_POLICIES),
    "rules": ("the loop's", *(name for name, rules in RULES.items() if rules.reserves != "prompt")),
    "changed rule": ("none", *CHANGES),
    "run first": RUN_FIRST,
    "schedule policy": tuple(SCHEDULE_POLICIES),
    "chunks": ("none", "yes"),
    "mixed chunks": YES_OR_NO,
    "prefill tokens": ("3", "8", "99"),
    "conservativeness": ("0", "0.4", "2"),
    "preemption threshold": tuple("012"),
    "late penalties": YES_OR_NO,
    "late stop strings": YES_OR_NO,
    "largest graph": ("None", "0", "2"),
    "speculation": SPECULATION,
    "ops built by": ("host", "device"),
    "costs": ("measured", "by token"),
    "slower": ("host", "device", "neither"),
    "policies x drafts": tuple(
        f"{first}, {policy}, {kind}"
        for first in RUN_FIRST
        for policy in SCHEDULE_POLICIES
        for kind in SPECULATION
    ),
}
"""Each axis on which a workload lies, and every value that it has there."""


def axes_of(drawn: Drawn) -> dict[str, str]:
    """The value of each axis of one workload."""
    config, workload = drawn.workload.config, drawn.workload
    formed = well_formed(drawn)
    params = [req.params for req in formed]
    stops = any(not item.ignore_eos for item in params) and workload.eos_ids
    speculation = config.speculative_algorithm or "none"
    first = config.in_force.run_first
    return {
        "theme": drawn.theme,
        "requests": str(len(workload.requests)),
        "odd request": drawn.odd,
        "wishes": drawn.wishes,
        "sampling": "temperature" if any(not item.is_greedy for item in params) else "greedy",
        "log-probabilities": yes_or_no(any(item.return_logprob for item in params)),
        "stop tokens": yes_or_no(any(item.stop_token_ids for item in params)),
        "end of text": yes_or_no(stops),
        "aborts": str(len(workload.aborts)),
        "failing steps": str(len(workload.failures)),
        "what fails": workload.failures[0].kind if workload.failures else "nothing",
        "where it fails": place_of(drawn),
        "priorities": str(len({req.priority for req in formed})),
        "flushes": yes_or_no(workload.flushes),
        "arrivals": "at once" if not any(workload.arrivals) else "one after the other",
        "page size": str(config.page_size),
        "pool": pool_of(drawn),
        "running requests": str(config.max_running_requests),
        "radix cache": "off" if config.disable_radix_cache else "on",
        "eviction": config.radix_eviction_policy,
        "rules": config.rules.partition(",")[0] or "the loop's",
        "changed rule": config.rules.rpartition(",")[2] or "none",
        "run first": first,
        "schedule policy": config.schedule_policy,
        "chunks": "none" if config.chunked_prefill_size == -1 else "yes",
        "mixed chunks": yes_or_no(config.enable_mixed_chunk),
        "prefill tokens": str(config.max_prefill_tokens),
        "conservativeness": f"{config.schedule_conservativeness:g}",
        "preemption threshold": str(config.priority_scheduling_preemption_threshold),
        "late penalties": yes_or_no(config.late_penalties),
        "late stop strings": yes_or_no(config.late_stop_strings),
        "largest graph": str(config.cuda_graph_max_bs),
        "speculation": speculation,
        "ops built by": "host" if drawn.built_by_host else "device",
        "costs": "measured" if isinstance(drawn.cost, MeasuredCost) else "by token",
        "slower": slower_side(drawn.cost),
        "policies x drafts": f"{first}, {config.schedule_policy}, {speculation}",
    }


def well_formed(drawn: Drawn) -> list[Request]:
    """Its requests without the one that no scheduler takes."""
    return [req for req in drawn.workload.requests if not req.problem()]


def yes_or_no(value: object) -> str:
    """A condition as a value of an axis."""
    return "yes" if value else "no"


def place_of(drawn: Drawn) -> str:
    """In what part of its request the first failing step is."""
    for rid, position, _ in drawn.workload.failures:
        req = next(req for req in drawn.workload.requests if req.name == rid)
        last = len(req.prompt) + len(tokens_alone(drawn.workload, req)) - 1
        if position < len(req.prompt):
            return "prompt"
        return "answer" if position < last else "behind the end"
    return "nowhere"


def pool_of(drawn: Drawn) -> str:
    """How many pages there are beyond those of the longest request."""
    config = drawn.workload.config
    longest = max(req.max_device_len for req in well_formed(drawn))
    spare = config.num_pages - -(-longest // config.page_size)
    return "too small" if spare < 0 else "just enough" if spare == 0 else "more"


def slower_side(cost: CostModel) -> str:
    """Whether a decode step with one row takes the host longer, or the device."""
    host, device = sum(cost.host.values()), cost.forward(1) + cost.sample
    return "neither" if host == device else "host" if host > device else "device"


# -- what a workload runs on -----------------------------------------------------------------------


def axes_of_design(design: Design) -> dict[str, str]:
    """The value of each axis of a loop with its relay and options."""
    depth = str(design.in_flight)
    return {
        "loop": design.loop,
        "relay": design.relay,
        "steps in flight": depth,
        "relay x depth": f"{design.relay}, {depth}",
    }


@cache
def of_a_design(device: str) -> dict[str, Sequence[str]]:
    """Each axis of what runs on a device, and every value that it has there."""
    every = [axes_of_design(item) for item in all_designs() if device in LOOPS[item.loop].devices]
    return {axis: sorted({item[axis] for item in every}) for axis in every[0]}


# -- what came about in a run ----------------------------------------------------------------------


OF_A_RUN: dict[str, Sequence[str]] = {
    "given up": ("waiting", "in chunks", "running", "in flight", "retracted", "over"),
    "lost its memory": (
        "to decodes",
        "to urgent ones",
        "to older ones",
        "with a failed step's pages",
    ),
    "in a failed step": ("and ended", "wasted"),
    "prefix cached": YES_OR_NO,
    "evictions": YES_OR_NO,
    "duplicate pages": YES_OR_NO,
    "wasted rows": YES_OR_NO,
    "stale outputs": YES_OR_NO,
    "drafts": ("accepted", "rejected"),
}
"""What may come about in a run, by the axis on which it is counted."""

RETRACTED = {
    "memory": "to decodes",
    "priority": "to urgent ones",
    "unified": "to older ones",
    "failed prefix": "with a failed step's pages",
}


def happened(verdict: Verdict) -> list[tuple[str, str]]:
    """What came about in a case, each value of an axis once, as its trace has it."""
    trace, workload = verdict.trace, verdict.workload
    attrs: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for mark in trace.marks:
        attrs[mark.name].append(mark.attrs)
    found = [("given up", stage) for stage in stages(trace)]
    heard = [at["rid"] for at in attrs["finish"] if at["reason"] == "abort"]
    if any(rid not in heard for rid in workload.aborts.values()):
        found.append(("given up", "over"))
    found += [("lost its memory", RETRACTED[at["reason"]]) for at in attrs["retraction"]]
    for req in workload.requests:
        if req.name in workload.struck:
            ended = workload.has_failed(req)
            found.append(("in a failed step", "and ended" if ended else "wasted"))
    for name, is_so in (
        ("prefix cached", any(at["hit_len"] for at in attrs["match"])),
        ("evictions", attrs["radix evict"] or attrs["block evict"]),
        ("duplicate pages", any(at["duplicates"] for at in attrs["insert"])),
        ("wasted rows", attrs["wasted row"]),
        ("stale outputs", attrs["stale output"]),
    ):
        found.append((name, yes_or_no(is_so)))
    if any(at["accepted"] for at in attrs["verified"]):
        found.append(("drafts", "accepted"))
    if any(at["accepted"] < at["drafts"] for at in attrs["verified"]):
        found.append(("drafts", "rejected"))
    return list(dict.fromkeys(found))


def stages(trace: Trace) -> Iterator[str]:
    """In what stage of its life each request was that was given up before its end."""
    stage: dict[tuple[object, object], str] = {}
    for mark in trace.marks:
        who = mark.attrs.get("side"), mark.attrs.get("rid")
        if mark.name == "admit":
            stage[who] = "in chunks" if mark.attrs["is_chunked"] else "running"
        elif mark.name == "retraction":
            stage[who] = "retracted"
        elif mark.name == "finish":
            now = stage.pop(who, "waiting")
            if mark.attrs["reason"] == "abort":
                yield now
                if now in ("running", "in chunks") and is_in_flight(trace, str(who[1]), mark.time):
                    yield "in flight"


def is_in_flight(trace: Trace, rid: str, time: int) -> bool:
    """Whether a step with a request runs, or is to run, or nobody has looked at what came of it."""
    mine = [item for item in trace.slices if rid in item.rids]
    looked = {item.step for item in mine if item.name == "process" and item.start <= time}
    return any(item.name == "launch" and item.start <= time and item.step not in looked
               for item in mine)  # fmt: skip


# -- what was drawn, and what never was ------------------------------------------------------------


@dataclass
class Table:
    """How many workloads, or cases, have which value of each axis; and which values there are."""

    values: Mapping[str, Sequence[str]]
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, found: Iterable[tuple[str, str]], times: int = 1) -> None:
        """So many workloads more, or cases, with the values of their axes."""
        for axis, value in found:
            self.counts.setdefault(axis, Counter())[value] += times

    def drawn(self, axis: str) -> dict[str, int]:
        """How often each value of an axis came up, in order, also those that never did."""
        counts = self.counts.get(axis, Counter())
        return {value: counts[value] for value in dict.fromkeys([*self.values[axis], *counts])}

    def as_json(self) -> dict[str, dict[str, int]]:
        """By axis, how often each value came up that did at all."""
        found = {axis: self.drawn(axis) for axis in self.values}
        return {axis: {v: n for v, n in counts.items() if n} for axis, counts in found.items()}

    @property
    def never(self) -> dict[str, list[str]]:
        """The values that exist and never came up, by axis."""
        lacking = {
            axis: [value for value, count in self.drawn(axis).items() if not count]
            for axis in self.values
        }
        return {axis: values for axis, values in lacking.items() if values}


def table_of(drawn: Iterable[Drawn]) -> Table:
    """Where the workloads of some seeds lie."""
    table = Table(OF_A_WORKLOAD)
    for item in drawn:
        table.add(axes_of(item).items())
    return table
