"""The smallest case that still shows something: one simplification at a time, greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..checks.judge import Case
from ..checks.workload import Workload
from ..core import Request, SamplingParams
from ..scheduler import SchedulerConfig

SIZES = ("kv_tokens", "max_running_requests", "max_prefill_tokens", "page_size")


def shrink(case: Case, shows: Callable[[Case], bool]) -> Case:
    """The first case from which no single simplification leads to one that still ``shows`` it."""
    while True:
        found = next((small for small in simpler(case) if shows(small)), None)
        if found is None:
            return case
        case = found


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
        )
    for turn in workload.aborts:
        aborts = {at: who for at, who in workload.aborts.items() if at != turn}
        yield replace(workload, aborts=aborts)
        if turn and turn - 1 not in aborts:
            yield replace(workload, aborts={**aborts, turn - 1: workload.aborts[turn]})
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
    for name in ("chunked_prefill_size", "enable_mixed_chunk", "run_first", "schedule_policy",
                 "schedule_conservativeness", "max_prefill_tokens"):  # fmt: skip
        if getattr(config, name) != getattr(default, name):
            changes.append({name: getattr(default, name)})
    for change in changes:
        try:
            yield replace(config, **change)  # type: ignore[arg-type]
        except ValueError:
            continue  # the change does not go with the rest
