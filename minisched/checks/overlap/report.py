"""One entry point for the overlap check: verdict, bubbles, critical path, bound, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...trace import Trace
from ...trace.events import is_forward
from .bound import Bound, bound
from .bubble_words import milliseconds, with_short_names
from .bubbles import Bubble, bubbles, by_cause, by_phase
from .course import course_of
from .critical_path import critical_path, shares
from .idle import HOST_WAIT, host_words, idle_words
from .overlap import device_runs, is_profiled, measure, span
from .removal import Largest, largest_bubble
from .verdict import Verdict, overlap_verdict


@dataclass(frozen=True)
class OverlapFindings:
    """What the overlap check says of one trace; times in nanoseconds.

    ``causes`` and ``phases`` (``host: schedule``) together make up ``bubble_ns`` each, the most
    first. ``critical`` is the critical path by lane and name (``host: process``; empty: nothing
    ran), together the makespan. ``largest`` is None where no device idled. ``lacks`` are
    sentences on what the file does not carry, and ``steps`` is one on what was taken for a step
    where the file has no numbers for them. ``profiled`` are sentences on idle time in a profiler's
    trace. ``sentences`` is all of it to be read, in order. ``bubbles`` and ``names``, those in the
    trace, are left out of ``to_json``: there can be thousands.
    """

    makespan_ns: int
    bubble_ns: int
    idle_percent: float  # of the time from a device's first op to its last, over all devices
    causes: dict[str, int]
    phases: dict[str, int]
    critical: dict[str, int]
    verdict: Verdict
    bound: Bound
    largest: Largest | None
    lacks: tuple[str, ...] = ()
    bubbles: tuple[Bubble, ...] = field(default=(), repr=False)
    devices: int = 1
    steps: str = ""
    profiled: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def unknown_percent(self) -> float:
        """The share of idle time that nothing recorded explains."""
        return 100 * self.causes.get("unknown", 0) / self.bubble_ns if self.bubble_ns else 0.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in sentences, the verdict first; names that are too long for one, last."""
        return tuple(with_short_names(_sentences(self), self.names, self.steps))

    def to_json(self) -> dict[str, Any]:
        """Everything but the single bubbles, as JSON can hold it."""
        data = asdict(replace(self, bubbles=(), names=()))  # copied deeply
        del data["bubbles"], data["names"]
        data["bound"]["percent"] = self.bound.percent
        data["unknown_percent"] = self.unknown_percent
        data["sentences"] = list(self.sentences)
        return data


def report(trace: Trace, lacks: tuple[str, ...] = (), steps: str = "") -> OverlapFindings:
    """The findings on a trace; ``lacks`` and ``steps`` as ``foreign.py`` gives them."""
    course = course_of(trace)
    found, path = bubbles(trace, course), critical_path(trace, course)
    lanes = {item.lane for item in trace.slices if is_forward(item.lane)}
    idle = measure(trace).bubble_ns
    whole = sum(span(device_runs(trace, lane)) for lane in lanes)
    said = overlap_verdict(trace)
    on_idle = idle_words(trace) if is_profiled(trace) else ()
    on_few = host_words(trace) if is_profiled(trace) and said.word == "unknown" else ()
    return OverlapFindings(
        makespan_ns=trace.end,
        bubble_ns=idle,
        idle_percent=100 * idle / whole if whole else 0.0,
        causes=by_cause(found),
        phases={_joined(*name): ns for name, ns in by_phase(found).items()},
        critical={_joined(*name): ns for name, ns in shares(trace, path).items()},
        verdict=said,
        bound=bound(trace, course),
        largest=largest_bubble(trace, found, course, said),
        lacks=lacks,
        bubbles=tuple(found),
        devices=max(1, len(lanes)),
        steps=steps,
        profiled=(*on_idle, *on_few),
        names=tuple(names_in(trace)),
    )


def names_in(trace: Trace) -> Iterator[str]:
    """What phases and operators are called in a trace."""
    found: dict[str, None] = {}
    for item in trace.slices:
        found |= {item.name: None, str(item.attrs.get("within", "")): None}
    yield from found


def _joined(first: str, second: str) -> str:
    return f"{first}: {second}" if first and second else first or second


def _sentences(found: OverlapFindings) -> Iterator[str]:
    yield from found.lacks
    yield found.verdict.sentence
    if found.steps and not found.verdict.steps:
        yield found.steps  # how to mark one
    yield from found.profiled
    if found.steps and found.verdict.steps:
        yield found.steps
    if found.profiled:
        if found.verdict.word == "unknown":
            return  # of a few steps, no more is known than where the time went
    elif found.bubbles:
        yield _idle_sentence(found)
    elif found.verdict.word != "unknown":
        yield f"{_devices(found)} never idled."
    if found.causes.get("unknown"):
        yield f"Nothing recorded explains {found.unknown_percent:.1f} % of the idle time."
    if found.largest is not None and not (found.profiled and found.largest.cause != HOST_WAIT):
        yield found.largest.sentence
    if found.critical:
        top = list(found.critical.items())[:3]
        nothing = "nothing recorded" if found.profiled else "nothing ran"
        named = ", ".join(f"{name or nothing} {milliseconds(ns)}" for name, ns in top)
        yield f"The critical path takes {milliseconds(found.makespan_ns)}; most of it is {named}."
    if found.bound.ns:
        yield _bound_sentence(found.bound, bool(found.profiled))


def _devices(found: OverlapFindings) -> str:
    """Whose time it is, and which part of it."""
    if found.devices == 1:
        return "Between its first op and its last, the device"
    return f"Each between its first op and its last, the {found.devices} devices"


def _idle_sentence(found: OverlapFindings) -> str:
    parts = ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in found.causes.items())
    whose = "of that time" if found.devices == 1 else "of their time, added up"
    share = f"{milliseconds(found.bubble_ns)} ({found.idle_percent:.1f} % {whose})"
    return f"{_devices(found)} idled for {share}: {parts}."


def _bound_sentence(item: Bound, is_profiled_: bool) -> str:
    why = "each token needs the one before it, and the first one its request"
    why = f"that much work is on lane {item.lane}" if item.lane else why
    run = f"reached {item.percent:.0f} % of that speed"
    if is_profiled_:  # no second percentage: the recording begins before the device does
        run = f"took {milliseconds(item.makespan_ns)}"
    return (
        "As long as each piece of work takes what it took, these batches cannot take less than "
        f"{milliseconds(item.ns)}, because {why}; this run {run}."
    )
