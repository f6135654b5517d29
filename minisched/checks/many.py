"""Random workloads, each on several loops: every law held against every one of them.

The workload of a number is that of its seed, so a failure is repeated by its seed and its loop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

from ..core import FinishReason, Request
from ..devices.cost import CostModel
from ..devices.profiles import MeasuredCost
from ..loops.design import LOOPS
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..policy.rules import RULES, RUN_FIRST
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES
from ..scheduler.config import ALGORITHMS
from ..trace import Trace
from .case import Case
from .draw import (
    CHANGES,
    PAGE_SIZES,
    THEMES,
    WISHES,
    Design,
    Drawn,
    all_designs,
    designs_for,
    draw,
    loops_that_refuse,
    read_design,
)
from .fault import STEP_FAULTS
from .judge import Finding, Verdict, judge
from .oracle import tokens_alone

# -- Where on each axis random workloads and their cases lie, and which values never came up -------

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


LAWS = (
    "identity", "ends", "client", "logprobs", "abort", "progress", "order", "budget", "leak",
    "race", "touches", "ownership", "time", "livelock", "deadlock", "crash",
)  # fmt: skip
SEEN_AT_THE_END = ("identity", "ends", "client", "logprobs", "abort")  # not of a run that stopped
ON_SIM_ALONE = ("touches",)  # nowhere else can it be watched what an op does
FEW = 8  # workloads that are not worth another process


@dataclass(frozen=True)
class Tried:
    """One case that was run: what of it does not hold, and how its requests ended."""

    seed: int
    loop: str  # as ``--loop`` takes it
    findings: tuple[Finding, ...]
    finished: bool
    requests: int
    aborted: int
    refused: int
    unjudged: tuple[str, ...] = ()  # laws that had nothing to look at
    failed: int = 0  # requests that ended because a step failed, as the workload wanted it
    happened: tuple[tuple[str, str], ...] = ()  # axis and value; see ``draw/axes.py:OF_A_RUN``

    def holds(self, law: str) -> bool:
        """Whether a law was looked at and not broken."""
        looked_at = self.finished or law not in SEEN_AT_THE_END
        return looked_at and all(item.law != law for item in self.findings)


def laws_on(device: str) -> list[str]:
    """The laws that a run on a device can be judged by."""
    return [law for law in LAWS if device == "sim" or law not in ON_SIM_ALONE]


def case_of(seed: int, loop: str, device: str = "sim") -> Case:
    """The case that a failure names.

    Raises:
        ValueError: there is no such loop.
    """
    return draw(seed).on(read_design(loop), device)


def try_seed(seed: int, loops: Sequence[str] = (), device: str = "sim") -> list[Tried]:
    """One workload on each of the loops; without any, on those that come round with its seed."""
    drawn = draw(seed)
    designs = [read_design(name) for name in loops] or designs_for(drawn, device)
    tried = []
    for design in designs:
        verdict = judge(drawn.on(design, device))
        requests = verdict.workload.requests
        ends = Counter(req.finish_reason for req in requests)
        failed = sum(map(verdict.workload.has_failed, requests))
        tried.append(
            Tried(
                seed, design.name, verdict.findings, verdict.finished, sum(ends.values()),
                ends[FinishReason.ABORT], ends[FinishReason.ERROR] - failed,
                tuple(law for law in LAWS if verdict.lacking(law)), failed,
                tuple(happened(verdict)),
            )
        )  # fmt: skip
    return tried


def try_workloads(
    seeds: Sequence[int], loops: Sequence[str] = (), device: str = "sim", jobs: int = 1
) -> Iterator[list[Tried]]:
    """``try_seed`` for each seed, in their order, in so many processes.

    However many there are, the results are the same. The processes have ended when this has.
    """
    one = partial(try_seed, loops=tuple(loops), device=device)
    if jobs == 1 or len(seeds) < FEW:
        yield from map(one, seeds)
        return
    with processes(min(jobs, len(seeds))) as pool:
        with unheard_interrupt():  # what is started now hears no Ctrl-C: this process sees to it
            results = pool.map(one, seeds)
        yield from results


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes; what has not begun is given up at the end, and what has is waited for."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def unheard_interrupt() -> Iterator[None]:
    """A process that is started meanwhile never hears Ctrl-C; this one hears it afterwards.

    A new process inherits which signals are blocked. Only a program's main thread hears it at all.

    Raises:
        KeyboardInterrupt: it came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    resource_tracker.ensure_running()  # else it comes with the first process, and unblocks signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- What many cases came to: how many there were, and how many of them broke which law ------------

CAUSES = (
    "lifetime", "race", "touches", "ownership", "leak", "deadlock", "crash", "order", "progress",
    "livelock", "budget", "time", "abort", "ends", "client", "identity", "logprobs",
)  # fmt: skip
"""The laws again, a cause before what follows from it: wrong tokens follow from anything. Lifetimes
are judged where somebody watches the memory (``Device.lifetimes``), which is in tests."""


class Failure(NamedTuple):
    """One law that one case broke; seed and loop repeat it."""

    seed: int
    loop: str
    law: str
    sentence: str


@dataclass(frozen=True)
class Tally:
    """The cases of the workloads from ``seed`` on, in their order.

    A case is one workload on one loop, with one relay and its options. ``loops`` are those that it
    was to be on; without any, all.
    """

    seed: int
    workloads: int
    device: str
    cases: Sequence[Tried]
    loops: Sequence[str] = ()

    @cached_property
    def failures(self) -> list[Failure]:
        """Every law that was broken, in the order of the seeds."""
        return [
            Failure(case.seed, case.loop, item.law, item.sentence)
            for case in self.cases
            for item in case.findings
        ]

    @property
    def first(self) -> list[Failure]:
        """The first failure of each law, causes first; what is shown and made small is the first.

        Of an early free, tokens that are wrong are the last thing to look at.
        """
        by_law = {failure.law: failure for failure in reversed(self.failures)}
        return [by_law[law] for law in CAUSES if law in by_law]

    def holding(self, law: str, loop: str | None = None) -> int:
        """Cases that were looked at for a law and did not break it; all, or those of one loop."""
        return sum(case.holds(law) for case in self.cases if loop in (None, base_of(case.loop)))

    def unjudged(self, law: str) -> int:
        """Cases in which nothing happened that a law looks at."""
        return sum(law in case.unjudged for case in self.cases)

    @property
    def by_loop(self) -> Counter[str]:
        """Cases of each loop, whatever its relay and options."""
        return Counter(base_of(case.loop) for case in self.cases)

    @cached_property
    def refusing(self) -> list[int]:
        """Of each workload, how many loops take none of its kind, whatever relay they have."""
        drawn = (draw(self.seed + at) for at in range(self.workloads))
        return [len(loops_that_refuse(item, self.device)) for item in drawn]

    @cached_property
    def axes(self) -> Table:
        """Where its workloads lie on each axis."""
        return table_of(draw(self.seed + at) for at in range(self.workloads))

    @cached_property
    def design_axes(self) -> Table:
        """Where what they ran on does, case by case."""
        every = of_a_design(self.device)
        table = Table(dict.fromkeys(every, ()) if self.loops else every)
        for name, cases in Counter(case.loop for case in self.cases).items():
            table.add(axes_of_design(read_design(name)).items(), cases)
        return table

    @cached_property
    def run_axes(self) -> Table:
        """What came about in how many cases."""
        table = Table(OF_A_RUN)
        for case in self.cases:
            table.add(case.happened)
        return table

    @property
    def all_axes(self) -> dict[str, Table]:
        """All of these, by what is counted."""
        return {"workloads": self.axes, "cases": self.design_axes, "runs": self.run_axes}

    def as_json(self) -> dict[str, Any]:
        """What ``minisched check --workloads --json`` prints; all the numbers are counts.

        ``cases``: workload and loop; ``identical``: of these, how many ended with the oracle's
        tokens for every request; ``races`` and ``leaks``: how many had one; ``failures``: every law
        that was broken, with what repeats it. An aborted request counts as identical if its tokens
        are the first of the oracle's, as does one whose step was to fail, and a refused one if it
        had to be refused and got none.
        ``holding``: cases that kept a law, by law; ``unjudged``: those of them that had nothing to
        break it with. ``loops`` and ``designs``: cases by loop, and by
        loop with its relay and options. ``axes``: workloads, or cases, by the value of each axis;
        ``never``: the values that there are and that none of them has.
        """
        return {
            "cases": len(self.cases),
            "identical": self.holding("identity"),
            "races": len(self.cases) - self.holding("race"),
            "leaks": len(self.cases) - self.holding("leak"),
            "failures": [failure._asdict() for failure in self.failures],
            "workloads": self.workloads,
            "seed": self.seed,
            "device": self.device,
            "model": "hash",
            "requests": sum(case.requests for case in self.cases),
            "aborted": sum(case.aborted for case in self.cases),
            "refused": sum(case.refused for case in self.cases),
            "failed": sum(case.failed for case in self.cases),
            "holding": {law: self.holding(law) for law in LAWS},
            "unjudged": {law: self.unjudged(law) for law in LAWS},
            "loops": dict(self.by_loop),
            "designs": dict(Counter(case.loop for case in self.cases)),
            "axes": {k: v for axes in self.all_axes.values() for k, v in axes.as_json().items()},
            "never": {k: v for axes in self.all_axes.values() for k, v in axes.never.items()},
        }


def base_of(loop: str) -> str:
    """A loop's name without relay and options."""
    return loop.partition(":")[0]
