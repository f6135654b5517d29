"""A case of one run: a workload, a loop, the costs of steps, a device; in words, and shrunk.

``shrink`` looks for the smallest case that still shows a fault, by one simplification at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from ..core import FinishReason, Request, SamplingParams
from ..core.form import wrong_form
from ..devices.cost import IDEAL_PACE, NO_COST, SIM_COST, CostModel
from ..scheduler import SchedulerConfig

C = TypeVar("C")
T = TypeVar("T")

# -- A workload small enough to read: requests, arrivals, aborts, and the size of memory -----------

VOCAB = 19  # a small vocabulary, so that stop tokens come up by chance


class Failure(NamedTuple):
    """A fault in the first step that computes this position of this request, if there is one.

    A position, not the number of a step, gives the same fault on every loop. It is in a chunk of
    the prompt, at a token of the answer, or after the last token, in a wasted step. With ``when``
    it is in the first step that this describes instead (``step_fault.py:CONDITIONS``).
    """

    rid: str
    position: int
    kind: str  # of ``FAILURES``
    when: str = ""

    @property
    def step(self) -> str:
        """Return which step it is, in words."""
        when = self.when or f"computes position {self.position} of {self.rid}"
        return f"the first step that {when}"


FAILURES = {
    "forward raises": "the device is out of luck",
    "out of device memory": "out of device memory (tried to allocate 2.00 GiB)",
    "sampling raises": "no token could be chosen",
    "NaN logits": "not numbers (NaN)",
    "copy fails": "did not arrive",
    "another op fails": "could not run",
    "inputs find no memory": "out of device memory (tried to allocate 2.00 GiB)",
    "mask finds no memory": "out of device memory (tried to allocate 2.00 GiB)",
    "transfer fails": "transfer failed",
    "post-processing raises": "the answer could not be made",
}
"""The faults of a step (``step_fault.py``), with the error of the requests that it ends.

An error in the post-processing of a loop's own layer ends the run instead."""


@dataclass
class Workload:
    """Requests with their turns of arrival, aborts by turn, and the scheduler's sizes.

    In the turns of ``flushes`` a client asks to empty the cache. In those of ``sent_again`` it
    sends the object of a request once more, if that was sent before. In the turn ``interrupt`` the
    user presses Ctrl-C. With a ``delay`` each request is sent for that much later than its turn.
    A run fills ``struck`` with the requests that its ``failures`` hit, by id, and the device's
    message.
    """

    requests: list[Request]
    arrivals: list[int]  # [num_reqs] turn
    aborts: dict[int, str]  # turn -> request id
    config: SchedulerConfig
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    vocab_size: int = VOCAB
    flushes: frozenset[int] = frozenset()  # turns
    failures: tuple[Failure, ...] = ()
    sent_again: dict[int, str] = field(default_factory=dict)  # turn -> request id
    interrupt: int | None = None  # turn
    delay: int = 0  # nanoseconds
    struck: dict[str, set[str]] = field(default_factory=dict)

    def has_failed(self, req: Request) -> bool:
        """Return whether an injected fault of a step has ended the request.

        On the prefill side of ``pd`` the request is recognized by its room.
        """
        if req.finish_reason is not FinishReason.ERROR:
            return False
        says = {*self.struck.get(req.name, ()), *self.struck.get(req.admission.bootstrap_room, ())}
        return any(part in req.error for part in says)


def fresh(workload: Workload) -> Workload:
    """Return the same workload with requests that have not run."""
    requests = [
        Request(req.rid, req.prompt, req.params, priority=req.priority) for req in workload.requests
    ]
    return replace(workload, requests=requests, struck={})


@dataclass(frozen=True)
class Case:
    """A workload with its loop, costs and device; on ``sim`` a case always gives the same run.

    The model is ``hash``, in the device's own tensors: the oracle knows no other. With
    ``built_by_host``, ``sim`` simulates a device with ops that the host builds. With ``in_depth``
    all laws are judged; without it, all but the law ``record``, those of a recorded run
    (``recorded.py``), exact times, and the objects that an engine keeps (``remains.py``). With
    ``runs_whole`` the set-up is judged (``set_up.py``), and the workload once more in a whole run
    (``whole_run.py``).
    """

    workload: Workload
    loop: str
    relay: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: CostModel = NO_COST
    device: str = "sim"
    built_by_host: bool = False
    runs_whole: bool = False
    in_depth: bool = True


def shallow(case: Case) -> Case:
    """Return the case without the laws that are judged in depth, and without a whole run."""
    return replace(case, in_depth=False, runs_whole=False)


def same_on(case: Case, loop: str, relay: str = "") -> Case:
    """Return the case on another loop, with that loop's own options."""
    return replace(case, loop=loop, relay=relay, options={})


# -- A case in words: its requests, its events, and the settings that differ from the defaults -----


def case_text(case: Case) -> list[str]:
    """Return one line per request and event, and one each for settings, options and costs."""
    workload = case.workload
    lines = [
        f"{request.name} comes at turn {turn}: {request_words(request)}"
        for request, turn in zip(workload.requests, workload.arrivals, strict=True)
    ]
    lines += [f"{rid} is given up at turn {turn}" for turn, rid in sorted(workload.aborts.items())]
    lines += [f"the cache is flushed at turn {turn}" for turn in sorted(workload.flushes)]
    lines += [
        f"{rid} is sent again at turn {turn}" for turn, rid in sorted(workload.sent_again.items())
    ]
    if workload.interrupt is not None:
        lines.append(f"Ctrl-C at turn {workload.interrupt}")
    if workload.delay:
        lines.append(f"each request is sent for {workload.delay} ns later")
    lines += [f"{failure.kind} in {failure.step}" for failure in workload.failures]
    if case.built_by_host:
        lines.append("the host builds the ops when it launches them, as on cuda and mlx")
    if case.runs_whole:
        lines.append("it runs once more as a whole, without a trace")
    if case.cost == SIM_COST:
        lines.append("costs: the usual ones of sim")
    if workload.eos_ids:
        lines.append(f"end of text: {', '.join(map(str, sorted(workload.eos_ids)))}")
    for name, values in (
        ("settings", changed(workload.config, SchedulerConfig())),
        ("options", case.options),
        ("costs (ns)", {} if case.cost == SIM_COST else costs(case.cost)),
    ):
        if values:
            lines.append(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")
    return lines


def request_words(request: Request) -> str:
    """Return its prompt, its lengths and its parameters, or why it is invalid."""
    if problem := wrong_form(request):
        return problem
    words = [f"prompt {list(request.prompt)}"]
    wishes = {"max_new_tokens": request.params.max_new_tokens}
    wishes |= changed(request.params, SamplingParams())
    for name, value in wishes.items():
        words.append(f"{name} {sorted(value) if isinstance(value, frozenset) else value!r}")
    return ", ".join([*words, f"priority {request.priority}"] if request.priority else words)


def changed(item: Any, default: Any) -> dict[str, Any]:
    """Return the fields that differ from a default."""
    values = {entry.name: getattr(item, entry.name) for entry in fields(item)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


def costs(cost: CostModel) -> dict[str, Any]:
    """Return the nonzero costs, in nanoseconds; of a pace, only what it changes."""
    every: dict[str, Any] = dict(cost.host)
    every |= {name: value for name, value in vars(cost).items() if isinstance(value, (int, tuple))}
    for name, value in changed(cost.pace, IDEAL_PACE).items():
        each = value.items() if isinstance(value, Mapping) else [("", value)]
        every |= {" ".join(filter(None, ("pace", name, of))): ns for of, ns in each}
    return {name: value for name, value in every.items() if value}


# -- The smallest case that still shows the fault --------------------------------------------------

MOST_TRIALS = 300  # cases that a command tries for a smaller one
SIZES = ("kv_tokens", "max_running_requests", "max_prefill_tokens", "page_size")
SPECULATION = ("speculative_algorithm", "speculative_draft_model_path")


def shrink(case: Case, shows: Callable[[Case], bool], most: int | None = None) -> Case:
    """Return the smallest case with ``shows(case)``, as ``smallest`` finds it."""
    return smallest(case, simpler, shows, most)


def smallest(
    case: C, simpler: Callable[[C], Iterator[C]], shows: Callable[[C], bool], most: int | None
) -> C:
    """Return the first case of which no single simplification ``shows`` the fault.

    After a success the search goes on at the same simplification, because it often succeeds again.
    It ends with a whole round without a success. With ``most`` it stops after that many cases, with
    the smallest so far.
    """
    looked_at = start = 0
    while True:
        for at, small in enumerate(simpler(case)):
            if at < start:
                continue
            if looked_at == most:
                return case
            looked_at += 1
            if shows(small):
                case, start = small, at
                break
        else:
            if not start:
                return case
            start = 0


def simpler(case: Case) -> Iterator[Case]:
    """Yield every case with less in it, from large simplifications to small ones.

    All settings are reset together before they are reset one by one, and a number is halved before
    it is lowered by one. A cost never becomes 0, because a picture needs it: it becomes the one
    that ``sim`` usually has.
    """
    workload = case.workload
    if case.runs_whole:
        yield replace(case, runs_whole=False)
    for change in (*events_gone(workload), *fewer_requests(workload)):
        yield replace(case, workload=replace(workload, **change))
    for config in simpler_configs(workload.config):
        yield replace(case, workload=replace(workload, config=config))
    if case.device == "sim" and case.cost != SIM_COST:
        yield replace(case, cost=SIM_COST)
    for change in (*smaller_requests(workload), *sooner_events(workload)):
        yield replace(case, workload=replace(workload, **change))


def put(items: Sequence[T], at: int, *instead: T) -> list[T]:
    """Return the items with one of them replaced by others, or removed."""
    return [*items[:at], *instead, *items[at + 1 :]]


def without(events: Mapping[int, str], turn: int) -> dict[int, str]:
    """Return the events of all other turns."""
    return {at: rid for at, rid in events.items() if at != turn}


def lower(number: int, least: int = 0) -> list[int]:
    """Return the number halved and lowered by one, down to ``least``."""
    half = max(least, number // 2)
    return [*dict.fromkeys((half, number - 1))] if number > least else []


def events_gone(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the fields of a workload without any, or without one, of its events."""
    if workload.aborts:
        yield {"aborts": {}}
    if workload.failures:
        yield {"failures": ()}
    if workload.flushes:
        yield {"flushes": frozenset()}
    if workload.sent_again:
        yield {"sent_again": {}}
    if workload.interrupt is not None:
        yield {"interrupt": None}
    if workload.delay:
        yield {"delay": 0}
    if workload.eos_ids:
        yield {"eos_ids": frozenset()}
    if len(workload.aborts) > 1:
        for turn in workload.aborts:
            yield {"aborts": without(workload.aborts, turn)}
    if len(workload.failures) > 1:
        for at in range(len(workload.failures)):
            yield {"failures": tuple(put(workload.failures, at))}
    if len(workload.flushes) > 1:
        for turn in workload.flushes:
            yield {"flushes": workload.flushes - {turn}}
    if len(workload.sent_again) > 1:
        for turn in workload.sent_again:
            yield {"sent_again": without(workload.sent_again, turn)}


def fewer_requests(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the fields of a workload with half of its requests, or with one less."""
    count = len(workload.requests)
    middle = count // 2
    kept = [range(middle), range(middle, count)] if count > 2 else []
    for places in [*kept, *(put(range(count), at) for at in range(count if count > 1 else 0))]:
        requests = [workload.requests[at] for at in places]
        rids = {req.name for req in requests}
        yield {
            "requests": requests,
            "arrivals": [workload.arrivals[at] for at in places],
            "aborts": {turn: rid for turn, rid in workload.aborts.items() if rid in rids},
            "sent_again": {turn: rid for turn, rid in workload.sent_again.items() if rid in rids},
            "failures": tuple(it for it in workload.failures if it.when or it.rid in rids),
        }


def smaller_requests(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the fields of a workload in which one request has less to compute, or a wish less."""
    for at, req in enumerate(workload.requests):
        if wrong_form(req):
            continue
        changes: list[dict[str, Any]] = [{"priority": 0}] if req.priority else []
        params, count = req.params, req.params.max_new_tokens
        plain = SamplingParams(max_new_tokens=count)
        if params != plain:
            changes += [{"params": plain}, {"params": replace(plain, ignore_eos=True)}]
            changes += [
                {"params": replace(params, **{name: getattr(plain, name)})}
                for name in changed(params, plain)
            ]
        changes += [{"prompt": req.prompt[:length]} for length in lower(len(req.prompt), 1)]
        changes += [{"params": replace(params, max_new_tokens=fewer)} for fewer in lower(count, 1)]
        for change in changes:
            whole = {"prompt": req.prompt, "params": params, "priority": req.priority, **change}
            yield {"requests": put(workload.requests, at, Request(req.rid, **whole))}


def sooner_events(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the fields of a workload in which something comes sooner."""
    for at, arrival in enumerate(workload.arrivals):
        for turn in lower(arrival):
            yield {"arrivals": put(workload.arrivals, at, turn)}
    for at, failure in enumerate(workload.failures):
        for position in lower(failure.position) if not failure.when else ():
            sooner = failure._replace(position=position)
            yield {"failures": tuple(put(workload.failures, at, sooner))}
    for turn, rid in workload.aborts.items():
        others = without(workload.aborts, turn)
        for sooner_turn in lower(turn):
            if sooner_turn not in others:
                yield {"aborts": {**others, sooner_turn: rid}}
    for turn in lower(workload.interrupt or 0):
        yield {"interrupt": turn}


def simpler_configs(config: SchedulerConfig) -> Iterator[SchedulerConfig]:
    """Yield the settings with all, all but the sizes, or one at the default, or a size lowered."""
    default, unusual = SchedulerConfig(), changed(config, SchedulerConfig())
    changes: list[dict[str, Any]] = [
        {name: getattr(default, name) for name in unusual if name not in kept}
        for kept in ((), SPECULATION, SIZES, (*SIZES, *SPECULATION))
    ]
    changes += [{name: getattr(default, name)} for name in unusual if name not in SPECULATION]
    if config.speculative_algorithm:
        changes.append(dict.fromkeys(SPECULATION, ""))
    sizes = [name for name in SIZES if name in unusual]
    changes += [{name: value} for name in sizes for value in lower(unusual[name], 1)]
    seen = [config]
    for change in changes:
        try:
            found = replace(config, **change)
        except ValueError:
            continue  # the change conflicts with other settings
        if found not in seen:
            seen.append(found)
            yield found
