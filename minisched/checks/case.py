"""What one run is of: a workload, a loop with its relay and options, what steps cost, a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ..core import FinishReason, Request, SamplingParams
from ..devices.cost import IDEAL_PACE, NO_COST, SIM_COST, CostModel
from ..scheduler import SchedulerConfig

# -- A workload small enough to look at: requests, when each comes, who gives up, how much room ----

VOCAB = 19  # few tokens, so that stop tokens come up by chance


class Failure(NamedTuple):
    """The first step that computes this position of this request goes wrong, if any does.

    Position and not number of the step, so that it is the same misfortune on every loop: in a chunk
    of the prompt, for a token of the answer, or behind the last one, where the step is wasted.
    """

    rid: str
    position: int
    kind: str  # the name of a fault, as in ``faults/in_step.py:STEP_FAULTS``


@dataclass
class Workload:
    """Requests with the turn each arrives in, aborts by turn, and the scheduler's sizes.

    In the turns of ``flushes`` somebody asks for the cache to be forgotten. A run fills in whom its
    ``failures`` have ``struck``, by request id, and what the device said.
    """

    requests: list[Request]
    arrivals: list[int]  # [num_reqs] turn
    aborts: dict[int, str]  # turn -> request id
    config: SchedulerConfig
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    vocab_size: int = VOCAB
    flushes: frozenset[int] = frozenset()  # turns
    failures: tuple[Failure, ...] = ()
    struck: dict[str, set[str]] = field(default_factory=dict)

    def has_failed(self, req: Request) -> bool:
        """Whether a request has ended because of a step that was to fail.

        The prefill side of ``pd`` knows it by its room.
        """
        says = {
            part for name in (req.name, req.bootstrap_room) for part in self.struck.get(name, ())
        }
        return req.finish_reason is FinishReason.ERROR and any(part in req.error for part in says)


def fresh(workload: Workload) -> Workload:
    """The same workload with requests that have not run."""
    requests = [
        Request(req.rid, req.prompt, req.params, priority=req.priority) for req in workload.requests
    ]
    return replace(workload, requests=requests, struck={})


@dataclass(frozen=True)
class Case:
    """A workload, and what it runs on; on ``sim`` the same case gives the same run.

    The model is ``hash``, in the device's own tensors: the oracle knows no other. With
    ``built_by_host``, ``sim`` stands in for a device whose ops the host builds.
    """

    workload: Workload
    loop: str
    relay: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: CostModel = NO_COST
    device: str = "sim"
    built_by_host: bool = False


def same_on(case: Case, loop: str, relay: str = "") -> Case:
    """The case on another loop, with that loop's own options."""
    return replace(case, loop=loop, relay=relay, options={})


# -- A case in words: its requests, what comes when, and the settings that are not the usual ones


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
