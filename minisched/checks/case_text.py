"""A case in words: its requests, what comes when, and the settings that are not the usual ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from ..core import Request, SamplingParams
from ..devices.cost import IDEAL_PACE, SIM_COST
from ..scheduler import SchedulerConfig
from .case import Case


def case_text(case: Case) -> list[str]:
    """A line for each request and for what befalls them; one each for settings, options, costs."""
    workload = case.workload
    lines = [
        f"{request.name} comes at turn {turn}: {', '.join(request_words(request))}"
        for request, turn in zip(workload.requests, workload.arrivals, strict=True)
    ]
    lines += [f"{rid} is given up at turn {turn}" for turn, rid in sorted(workload.aborts.items())]
    lines += [f"the cache is flushed at turn {turn}" for turn in sorted(workload.flushes)]
    lines += [
        f"{failure.kind} in the first step that computes position {failure.position} of "
        f"{failure.rid}"
        for failure in workload.failures
    ]
    if case.built_by_host:
        lines.append("the host builds the ops when it launches them, as on cuda and mlx")
    if case.cost == SIM_COST:
        lines.append("costs: the usual ones of sim")
    if workload.eos_ids:
        lines.append(f"end of text: {', '.join(map(str, sorted(workload.eos_ids)))}")
    for name, values in (
        ("settings", changed(workload.config, SchedulerConfig())),
        ("options", dict(case.options)),
        ("costs (ns)", {} if case.cost == SIM_COST else costs(case)),
    ):
        if values:
            words = (f"{key} {value}" for key, value in values.items())
            lines.append(f"{name}: {', '.join(words)}")
    return lines


def request_words(request: Request) -> Iterator[str]:
    """Its prompt, how much it wants, and its wishes; or why it can't be taken."""
    if problem := request.problem():
        yield problem
        return
    yield f"prompt {list(request.prompt)}"
    wishes = {"max_new_tokens": request.params.max_new_tokens}
    wishes |= changed(request.params, SamplingParams())
    for name, value in wishes.items():
        yield f"{name} {sorted(value) if isinstance(value, frozenset) else value!r}"
    if request.priority:
        yield f"priority {request.priority}"


def changed(item: Any, default: Any) -> dict[str, Any]:
    """The fields that differ from a default."""
    names = (entry.name for entry in fields(item))
    return {
        name: getattr(item, name) for name in names if getattr(item, name) != getattr(default, name)
    }


def costs(case: Case) -> dict[str, Any]:
    """What costs anything, in nanoseconds; of a pace, only what it changes."""
    cost = case.cost
    own = {name: value for name, value in vars(cost).items() if isinstance(value, (int, tuple))}
    every = {**cost.host, **own}
    for name, value in changed(cost.pace, IDEAL_PACE).items():
        each = value.items() if isinstance(value, Mapping) else [("", value)]
        every |= {" ".join(filter(None, ("pace", name, of))): ns for of, ns in each}
    return {name: value for name, value in every.items() if value}
