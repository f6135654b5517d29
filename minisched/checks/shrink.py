"""The smallest case that still shows something: one simplification at a time, greedily."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import TypeVar

from ..core import Request, SamplingParams
from ..scheduler import SchedulerConfig
from .case import Case, Workload
from .judge import Finding, judge

SIZES = ("kv_tokens", "max_running_requests", "max_prefill_tokens", "page_size")
MOST_TRIALS = 300  # cases that a command looks at for a smaller one
C = TypeVar("C")
KEPT = (*SIZES[:2], "context_len", "speculative_algorithm", "speculative_draft_model_path")


def shrink(case: Case, shows: Callable[[Case], bool], most: int | None = None) -> Case:
    """The smallest case that still ``shows`` it, as ``smallest`` finds it."""
    return smallest(case, simpler, shows, most)


def smallest(
    case: C, simpler: Callable[[C], Iterator[C]], shows: Callable[[C], bool], most: int | None
) -> C:
    """The first case from which no single simplification leads to one that still ``shows`` it.

    With ``most`` it stops after so many cases were looked at, with the smallest so far.
    """
    looked_at = 0
    while most is None or looked_at < most:
        found = None
        for small in islice(simpler(case), None if most is None else most - looked_at):
            looked_at += 1
            if shows(small):
                found = small
                break
        if found is None:
            return case
        case = found
    return case


def breaks_the_same(finding: Finding) -> Callable[[Case], bool]:
    """Whether a case breaks the law of a finding; if that is a crash, whether in the same way."""

    def shows(case: Case) -> bool:
        found = judge(case).broke(finding.law)
        if found is None or finding.law != "crash":
            return found is not None
        return kind_of(found.sentence) == kind_of(finding.sentence)

    return shows


def kind_of(sentence: str) -> str:
    """A sentence whatever its numbers."""
    return re.sub(r"\d+", "N", sentence)


def simpler(case: Case) -> Iterator[Case]:
    """Every case that is simpler by one thing: a request, an abort, a turn, a token, a page."""
    for workload in simpler_workloads(case.workload):
        yield replace(case, workload=workload)


def simpler_workloads(workload: Workload) -> Iterator[Workload]:
    """The workload with one thing less; the scheduler may refuse one of them."""
    requests, arrivals = workload.requests, workload.arrivals
    for at in range(len(requests) if len(requests) > 1 else 0):
        rid = requests[at].rid
        yield replace(
            workload,
            requests=requests[:at] + requests[at + 1 :],
            arrivals=arrivals[:at] + arrivals[at + 1 :],
            aborts={turn: who for turn, who in workload.aborts.items() if who != rid},
            failures=tuple(item for item in workload.failures if item.rid != rid),
        )
    for turn in workload.aborts:
        aborts = {at: who for at, who in workload.aborts.items() if at != turn}
        yield replace(workload, aborts=aborts)
        if turn and turn - 1 not in aborts:
            yield replace(workload, aborts={**aborts, turn - 1: workload.aborts[turn]})
    for at, failure in enumerate(workload.failures):
        before, after = workload.failures[:at], workload.failures[at + 1 :]
        yield replace(workload, failures=before + after)
        if failure.position:
            sooner = failure._replace(position=failure.position - 1)
            yield replace(workload, failures=(*before, sooner, *after))
    for turn in workload.flushes:
        yield replace(workload, flushes=workload.flushes - {turn})
    for at, arrival in enumerate(arrivals):
        if arrival:
            yield replace(workload, arrivals=[*arrivals[:at], arrival - 1, *arrivals[at + 1 :]])
    for at, request in enumerate(requests):
        for smaller in simpler_requests(request):
            yield replace(workload, requests=[*requests[:at], smaller, *requests[at + 1 :]])
    if workload.eos_ids:
        yield replace(workload, eos_ids=frozenset())
    for config in simpler_configs(workload.config):
        yield replace(workload, config=config)


def simpler_requests(request: Request) -> Iterator[Request]:
    """The request with a shorter prompt, fewer tokens, or a wish less."""
    params = request.params
    if request.problem():
        return
    if len(request.prompt) > 1:
        yield Request(request.rid, request.prompt[:-1], params, priority=request.priority)
    if request.priority:
        yield Request(request.rid, request.prompt, params)
    if params.max_new_tokens > 1:
        fewer = replace(params, max_new_tokens=params.max_new_tokens - 1)
        yield Request(request.rid, request.prompt, fewer, priority=request.priority)
    plain = SamplingParams(max_new_tokens=params.max_new_tokens, ignore_eos=params.ignore_eos)
    if params != plain:
        yield Request(request.rid, request.prompt, plain, priority=request.priority)


def simpler_configs(config: SchedulerConfig) -> Iterator[SchedulerConfig]:
    """The sizes lowered by one, what is switched on switched off, what is chosen at its default."""
    default = SchedulerConfig()
    changes: list[dict[str, object]] = []
    for name in SIZES:
        if (value := getattr(config, name)) not in (1, getattr(default, name)):
            changes.append({name: value - 1})
    for name in (item.name for item in fields(config) if item.name not in KEPT):
        if getattr(config, name) != getattr(default, name):
            changes.append({name: getattr(default, name)})
    changes.append({"speculative_algorithm": "", "speculative_draft_model_path": ""})
    for change in changes if config.speculative_algorithm else changes[:-1]:
        try:
            yield replace(config, **change)  # type: ignore[arg-type]
        except ValueError:
            continue  # the change does not go with the rest
