"""Random workloads, each on several loops: every law held against every one of them.

The workload of a number is that of its seed, so a failure is repeated by its seed and its loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

from ..core import FinishReason, Request, SamplingParams
from ..devices.cost import CostModel
from ..devices.profiles import MeasuredCost
from ..loops.design import LOOPS
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..policy.rules import RULES, RUN_FIRST
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES
from ..scheduler import SchedulerConfig
from ..scheduler.config import ALGORITHMS
from ..spread import HERE, Workers, in_order, spread
from ..trace import Trace
from .case import FAILURES, Case, Workload
from .draw import (
    CHANGES,
    PAGE_SIZES,
    THEMES,
    WISHES,
    Drawn,
    Variant,
    all_designs,
    designs_for,
    draw,
    loops_that_refuse,
    read_design,
)
from .judge import Finding, Verdict, judge
from .oracle import tokens_alone

# -- Random workloads, each on several loops -------------------------------------------------------

LAWS = (
    "identity", "ends", "client", "logprobs", "abort", "progress", "order", "budget", "leak",
    "race", "touches", "ownership", "time", "livelock", "deadlock", "crash",
)  # fmt: skip
CAUSES = (
    "lifetime", "race", "touches", "ownership", "leak", "deadlock", "crash", "order", "progress",
    "livelock", "budget", "time", "abort", "ends", "client", "identity", "logprobs",
)  # fmt: skip
"""The laws again, a cause before what follows from it: wrong tokens follow from anything. Lifetimes
are judged where somebody watches the memory (``Device.lifetimes``), which is in tests."""
SEEN_AT_THE_END = ("identity", "ends", "client", "logprobs", "abort")  # not of a run that stopped
ON_SIM_ALONE = ("touches",)  # nowhere else can it be watched what an op does


def laws_on(device: str) -> list[str]:
    """The laws that a run on a device can be judged by."""
    return [law for law in LAWS if device == "sim" or law not in ON_SIM_ALONE]


@dataclass(frozen=True, slots=True)
class Tried:
    """One case that was run: what of it does not hold, and how its requests ended.

    A million workloads are ten million of these, so names and tuples are shared between them.
    """

    seed: int
    loop: str  # as ``--loop`` takes it
    findings: tuple[Finding, ...]
    finished: bool
    requests: int
    aborted: int
    refused: int
    unjudged: tuple[str, ...] = ()  # laws that had nothing to look at
    failed: int = 0  # requests that ended because a step failed, as the workload wanted it
    happened: tuple[tuple[str, str], ...] = ()  # axis and value; see ``OF_A_RUN``

    def holds(self, law: str) -> bool:
        """Whether a law was looked at and not broken."""
        looked_at = self.finished or law not in SEEN_AT_THE_END
        return looked_at and all(item.law != law for item in self.findings)


def case_of(seed: int, loop: str, device: str = "sim") -> Case:
    """The case that a failure names.

    Raises:
        ValueError: there is no such loop.
    """
    return draw(seed).on(read_design(loop), device)


def try_seed(seed: int, loops: Sequence[str] = (), device: str = "sim") -> list[Tried]:
    """One workload on each of the loops; without any, on those that come round with its seed."""
    drawn, tried = draw(seed), list[Tried]()
    for design in [read_design(name) for name in loops] or designs_for(drawn, device):
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


FEW = 8  # workloads that are not worth another process


def try_workloads(
    seeds: Sequence[int], loops: Sequence[str] = (), device: str = "sim", workers: Workers = HERE
) -> Iterator[list[Tried]]:
    """``try_seed`` for each seed, in their order, in several processes or on a cluster.

    However many there are, the results are the same. The processes have ended when this has.
    """
    one = partial(try_seed, loops=tuple(loops), device=device)
    is_small = workers.backend == "processes" and len(seeds) < FEW
    known: dict[Any, Any] = {}

    def share(case: Tried) -> Tried:
        values = (getattr(case, item.name) for item in fields(case))
        return Tried(
            *(known.setdefault(it, it) if isinstance(it, str | tuple) else it for it in values)
        )

    for tried in in_order(spread(one, seeds, HERE if is_small else workers)):
        yield [share(case) for case in tried]


# -- What many cases came to: how many there were, and how many of them broke which law ------------


class FailedCase(NamedTuple):
    """One law that one case broke; seed and loop repeat it."""

    seed: int
    loop: str
    law: str
    sentence: str


@dataclass(frozen=True)
class CaseTally:
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
    def failures(self) -> list[FailedCase]:
        """Every law that was broken, in the order of the seeds."""
        return [
            FailedCase(case.seed, case.loop, item.law, item.sentence)
            for case in self.cases
            for item in case.findings
        ]

    @property
    def first(self) -> list[FailedCase]:
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

    @property
    def drawn(self) -> Iterator[Drawn]:
        """Its workloads, once more."""
        return (draw(self.seed + at) for at in range(self.workloads))

    @cached_property
    def refusing(self) -> list[int]:
        """Of each workload, how many loops take none of its kind, whatever relay they have."""
        return [len(loops_that_refuse(item, self.device)) for item in self.drawn]

    @cached_property
    def all_axes(self) -> dict[str, AxisCounts]:
        """Where its workloads lie, where what they ran on does, and what came about in the runs."""
        axes, of_designs = AxisCounts(OF_A_WORKLOAD), of_a_design(self.device)
        designs = AxisCounts(dict.fromkeys(of_designs, ()) if self.loops else of_designs)
        runs = AxisCounts(OF_A_RUN)
        for item in self.drawn:
            axes.add(axes_of(item).items())
        for name, cases in Counter(case.loop for case in self.cases).items():
            designs.add(axes_of_design(read_design(name)).items(), cases)
        for case in self.cases:
            runs.add(case.happened)
        return {"workloads": axes, "cases": designs, "runs": runs}

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
        sums = {
            name: sum(getattr(case, name) for case in self.cases)
            for name in ("requests", "aborted", "refused", "failed")
        }
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
            **sums,
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


# -- Where on each axis workloads, designs and runs lie, and which values never came up ------------

YES_OR_NO = ("no", "yes")
SPECULATION = ("none", *ALGORITHMS)


def well_formed(workload: Workload) -> list[Request]:
    """Its requests without the one that no scheduler takes."""
    return [req for req in workload.requests if not req.problem()]


def any_of(workload: Workload, wanted: Callable[[SamplingParams], object]) -> bool:
    """Whether the ``params`` of one of them are so."""
    return any(wanted(req.params) for req in well_formed(workload))


def place_of(workload: Workload) -> str:
    """In what part of its request the first failing step is."""
    for rid, position, _ in workload.failures:
        req = next(req for req in workload.requests if req.name == rid)
        last = len(req.prompt) + len(tokens_alone(workload, req)) - 1
        if position < len(req.prompt):
            return "prompt"
        return "answer" if position < last else "behind the end"
    return "nowhere"


def pool_of(workload: Workload, config: SchedulerConfig) -> str:
    """How many pages there are beyond those of the longest request."""
    longest = max(req.max_device_len for req in well_formed(workload))
    spare = config.num_pages - -(-longest // config.page_size)
    return "too small" if spare < 0 else "just enough" if spare == 0 else "more"


def slower_side(cost: CostModel) -> str:
    """Whether a decode step with one row takes the host longer, or the device."""
    host, device = sum(cost.host.values()), cost.forward(1) + cost.sample
    return "neither" if host == device else "host" if host > device else "device"


AXES: dict[str, tuple[Sequence[str], Callable[[Drawn, Workload, SchedulerConfig], object]]] = {
    "theme": (tuple(dict.fromkeys(THEMES)), lambda d, w, c: d.theme),
    "requests": (tuple("1234567"), lambda d, w, c: len(w.requests)),
    "odd request": (("none", "id", "field"), lambda d, w, c: d.odd),
    "wishes": (tuple(dict.fromkeys(WISHES)), lambda d, w, c: d.wishes),
    "sampling": (
        ("greedy", "temperature"),
        lambda d, w, c: "temperature" if any_of(w, lambda it: not it.is_greedy) else "greedy",
    ),
    "log-probabilities": (YES_OR_NO, lambda d, w, c: any_of(w, lambda it: it.return_logprob)),
    "stop tokens": (YES_OR_NO, lambda d, w, c: any_of(w, lambda it: it.stop_token_ids)),
    "end of text": (
        YES_OR_NO,
        lambda d, w, c: bool(w.eos_ids) and any_of(w, lambda it: not it.ignore_eos),
    ),
    "aborts": (tuple("0123"), lambda d, w, c: len(w.aborts)),
    "failing steps": (tuple("012"), lambda d, w, c: len(w.failures)),
    "what fails": (
        ("nothing", *FAILURES),
        lambda d, w, c: w.failures[0].kind if w.failures else "nothing",
    ),
    "where it fails": (
        ("nowhere", "prompt", "answer", "behind the end"),
        lambda d, w, c: place_of(w),
    ),
    "flushes": (YES_OR_NO, lambda d, w, c: bool(w.flushes)),
    "priorities": (
        tuple("123456"),
        lambda d, w, c: len({req.priority for req in well_formed(w)}),
    ),
    "arrivals": (
        ("at once", "one after the other"),
        lambda d, w, c: "one after the other" if any(w.arrivals) else "at once",
    ),
    "page size": (tuple(map(str, sorted(set(PAGE_SIZES)))), lambda d, w, c: c.page_size),
    "pool": (("too small", "just enough", "more"), lambda d, w, c: pool_of(w, c)),
    "running requests": (tuple("12345"), lambda d, w, c: c.max_running_requests),
    "radix cache": (("on", "off"), lambda d, w, c: "off" if c.disable_radix_cache else "on"),
    "eviction": (tuple(EVICTION_POLICIES), lambda d, w, c: c.radix_eviction_policy),
    "rules": (
        ("the loop's", *(name for name, rules in RULES.items() if rules.reserves != "prompt")),
        lambda d, w, c: c.rules.partition(",")[0] or "the loop's",
    ),
    "changed rule": (("none", *CHANGES), lambda d, w, c: c.rules.rpartition(",")[2] or "none"),
    "run first": (RUN_FIRST, lambda d, w, c: c.in_force.run_first),
    "schedule policy": (tuple(SCHEDULE_POLICIES), lambda d, w, c: c.schedule_policy),
    "chunks": (("none", "yes"), lambda d, w, c: "none" if c.chunked_prefill_size == -1 else "yes"),
    "mixed chunks": (YES_OR_NO, lambda d, w, c: c.enable_mixed_chunk),
    "prefill tokens": (("3", "8", "99"), lambda d, w, c: c.max_prefill_tokens),
    "conservativeness": (("0", "0.4", "2"), lambda d, w, c: f"{c.schedule_conservativeness:g}"),
    "preemption threshold": (
        tuple("012"),
        lambda d, w, c: c.priority_scheduling_preemption_threshold,
    ),
    "late penalties": (YES_OR_NO, lambda d, w, c: c.late_penalties),
    "late stop strings": (YES_OR_NO, lambda d, w, c: c.late_stop_strings),
    "largest graph": (("None", "0", "2"), lambda d, w, c: c.cuda_graph_max_bs),
    "speculation": (SPECULATION, lambda d, w, c: c.speculative_algorithm or "none"),
    "ops built by": (("host", "device"), lambda d, w, c: "host" if d.built_by_host else "device"),
    "costs": (
        ("measured", "by token"),
        lambda d, w, c: "measured" if isinstance(d.cost, MeasuredCost) else "by token",
    ),
    "slower": (("host", "device", "neither"), lambda d, w, c: slower_side(d.cost)),
    "policies x drafts": (
        tuple(
            f"{first}, {policy}, {kind}"
            for first in RUN_FIRST
            for policy in SCHEDULE_POLICIES
            for kind in SPECULATION
        ),
        lambda d, w, c: (
            f"{c.in_force.run_first}, {c.schedule_policy}, {c.speculative_algorithm or 'none'}"
        ),
    ),
}
"""Each axis on which a workload lies, every value that it has there, and how it is read."""
OF_A_WORKLOAD = {axis: values for axis, (values, _) in AXES.items()}


def axes_of(drawn: Drawn) -> dict[str, str]:
    """The value of each axis of one workload."""
    found = {}
    for axis, (_, read) in AXES.items():
        value = read(drawn, drawn.workload, drawn.workload.config)
        found[axis] = YES_OR_NO[value] if isinstance(value, bool) else str(value)
    return found


def axes_of_design(design: Variant) -> dict[str, str]:
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


RETRACTED = {
    "memory": "to decodes",
    "priority": "to urgent ones",
    "unified": "to older ones",
    "failed prefix": "with a failed step's pages",
}
OF_A_RUN: dict[str, Sequence[str]] = {
    "given up": ("waiting", "in chunks", "running", "in flight", "retracted", "over"),
    "lost its memory": tuple(RETRACTED.values()),
    "in a failed step": ("and ended", "wasted"),
    "prefix cached": YES_OR_NO,
    "evictions": YES_OR_NO,
    "duplicate pages": YES_OR_NO,
    "wasted rows": YES_OR_NO,
    "stale outputs": YES_OR_NO,
    "drafts": ("accepted", "rejected"),
}
"""What may come about in a run, by the axis on which it is counted."""


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
        found.append((name, YES_OR_NO[bool(is_so)]))
    if any(at["accepted"] for at in attrs["verified"]):
        found.append(("drafts", "accepted"))
    if any(at["accepted"] < at["drafts"] for at in attrs["verified"]):
        found.append(("drafts", "rejected"))
    return list(dict.fromkeys(found))


def stages(trace: Trace) -> Iterator[str]:
    """In what stage of its life each request was that was given up before its end.

    It is in flight, too, while a step with it runs, or is to run, or nobody has looked at what came
    of it.
    """
    stage: dict[tuple[object, object], str] = {}
    for mark in trace.marks:
        who = mark.attrs.get("side"), mark.attrs.get("rid")
        if mark.name == "admit":
            stage[who] = "in chunks" if mark.attrs["is_chunked"] else "running"
        elif mark.name == "retraction":
            stage[who] = "retracted"
        elif mark.name == "finish":
            now = stage.pop(who, "waiting")
            if mark.attrs["reason"] != "abort":
                continue
            yield now
            if now in ("running", "in chunks"):
                so_far = [it for it in trace.slices if it.start <= mark.time and who[1] in it.rids]
                looked = {item.step for item in so_far if item.name == "process"}
                if any(item.name == "launch" and item.step not in looked for item in so_far):
                    yield "in flight"


@dataclass
class AxisCounts:
    """How many workloads, or cases, have which value of each axis; and which values there are."""

    values: Mapping[str, Sequence[str]]
    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, found: Iterable[tuple[str, str]], times: int = 1) -> None:
        """So many workloads more, or cases, with the values of their axes."""
        for axis, value in found:
            self.counts[axis][value] += times

    def drawn(self, axis: str) -> dict[str, int]:
        """How often each value of an axis came up, in order, also those that never did."""
        counts = self.counts[axis]
        return {value: counts[value] for value in dict.fromkeys([*self.values[axis], *counts])}

    def as_json(self) -> dict[str, dict[str, int]]:
        """By axis, how often each value came up that did at all."""
        return {
            axis: {value: count for value, count in self.drawn(axis).items() if count}
            for axis in self.values
        }

    @property
    def never(self) -> dict[str, list[str]]:
        """The values that exist and never came up, by axis."""
        lacking = {
            axis: [value for value, count in self.drawn(axis).items() if not count]
            for axis in self.values
        }
        return {axis: values for axis, values in lacking.items() if values}
