"""Who did it: the slices of a run that a picture shows in red, for each law that it may break."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ..checks.causes import idle_times
from ..checks.history import Offence
from ..checks.identity import Difference, find_bad_ends, first_difference
from ..checks.judge import STOPPED_BY, Finding, Verdict
from ..checks.leaks import find_leaks
from ..checks.oracle import tokens_alone
from ..checks.overlap import forwards
from ..checks.races import Race, WaitsForEver, examine, find_races, race_offence
from ..checks.why import explain
from ..core import FinishReason
from ..trace import Trace
from ..trace.events import is_host
from .exhibit import Exhibit

# -- Points at the ops that did it, by name and step, where a law's sentence alone does not say ----


def at(places: str, says: str) -> Callable[[Verdict], Offence]:
    """For ``Exhibit.points_at``: slices in red, as ``"receive 1, process 2"``, and what to say.

    A slice is written as its name and its step. Of several with both alike it is the first, unless
    a third word counts on: ``"receive 0 2"`` is the third that bears no step's number.

    Raises:
        ValueError: when the run has no such slice.
    """

    def point(verdict: Verdict) -> Offence:
        known: dict[tuple[str, int], list[int]] = {}
        for item in verdict.trace.slices:
            known.setdefault((item.name, item.step), []).append(item.id)
        found = re.findall(r"([a-z][a-z ]*?) (\d+)(?: (\d+))?(?:, |$)", places)
        slices = (slice_at(known, name, int(step), int(nth or 0)) for name, step, nth in found)
        return Offence(tuple(slices), says)

    return point


def slice_at(known: dict[tuple[str, int], list[int]], name: str, step: int, nth: int = 0) -> int:
    """The id of a slice, of all that are known by name and step.

    Raises:
        ValueError: when there is none.
    """
    found = known.get((name, step), [])
    if nth >= len(found):
        raise ValueError(f"the run has no {name!r} of step {step} to point at.")
    return found[nth]


# -- What of a broken law's run did it, so that a picture can show it in red -----------------------

OWNED = ("kv", "page table")  # what is handed out, and may be named by a step in flight
TWICE = ("freed", "given", "used")  # kinds of leaks in which somebody has it who should not
TURNS = 3  # of a loop in which nothing happens any more


def exhibit_offence(exhibit: Exhibit, verdict: Verdict) -> Offence:
    """What the picture of a bug shows, of the verdict with the bug.

    Raises:
        ValueError: the law that should catch it does not.
    """
    finding = verdict.broke(exhibit.law)
    if finding is None:
        raise ValueError(f"{exhibit.name} does not break the law {exhibit.law!r}, which is its.")
    return offence_of(verdict, finding) if exhibit.points_at is None else exhibit.points_at(verdict)


def offence_of(verdict: Verdict, finding: Finding) -> Offence:
    """What a picture of a finding shows in red."""
    offence = BY_LAW.get(finding.law, of_named)(verdict, finding)
    ran = {item.id for item in verdict.trace.slices}
    return replace(offence, slices=tuple(one for one in offence.slices if one in ran))


def plainly(finding: Finding) -> str:
    """What was found, without the name of the exception that said so."""
    kind, _, rest = finding.sentence.partition(": ")
    is_law = kind in {error.__name__ for error in STOPPED_BY}
    return rest if is_law else finding.sentence


def of_race(verdict: Verdict, finding: Finding) -> Offence:
    """The two accesses of the race that was found, or who waits for what never comes."""
    seen = examine(verdict.trace)
    every: list[Race | WaitsForEver] = [*seen.races, *seen.waits]
    named = [item for item in every if str(item) == finding.sentence] or every
    return race_offence(named[0], verdict.trace) if named else of_the_end(verdict, finding)


def of_ends(verdict: Verdict, finding: Finding) -> Offence:
    """The first request that did not end as it should."""
    found = find_bad_ends(verdict.trace)
    return found[0].offence if found else of_the_end(verdict, finding)


def of_identity(verdict: Verdict, finding: Finding) -> Offence:
    """Where the first wrong token comes from; where the trace can't tell, who sampled it."""
    difference = wrong_token(verdict)
    if difference is None:
        return of_named(verdict, finding)
    story = explain(difference, verdict.trace)
    slices = story.culprit.slices or next((it.slices for it in story.chain if it.slices), ())
    return Offence(slices, f"{plainly(finding)}; {story.culprit.sentence}", story.culprit.missing)


def wrong_token(verdict: Verdict) -> Difference | None:
    """The first token that a request would not get alone, up to where it was given up."""
    said, alone = dict[str, list[int]](), dict[str, list[int]]()
    for req in verdict.workload.requests:
        is_refused = req.name in verdict.refused
        said[req.rid] = req.output_ids
        alone[req.rid] = [] if is_refused else tokens_alone(verdict.workload, req)
        if req.finish_reason is FinishReason.ABORT:
            alone[req.rid] = alone[req.rid][: len(req.output_ids)]
    return first_difference(verdict.trace.loop, alone, said)


def of_ownership(verdict: Verdict, finding: Finding) -> Offence:
    """The host's last slice handed it out; before it, who freed it too early or once too often."""
    races = [race for race in find_races(verdict.trace) if race.resource in OWNED]
    leaks = [leak.slices for leak in find_leaks(verdict.trace) if leak.kind in TWICE]
    before = race_offence(races[0], verdict.trace).slices if races else ()
    slices = dict.fromkeys((*before, *(leaks[0] if leaks else ()), *last_of_host(verdict.trace)))
    return Offence(tuple(slices), plainly(finding))


def of_leak(verdict: Verdict, finding: Finding) -> Offence:
    """Where it was taken, and where it should have been given back."""
    stories = [leak.offence for leak in find_leaks(verdict.trace) if leak.slices]
    return stories[0] if stories else of_the_end(verdict, finding)


def of_livelock(verdict: Verdict, finding: Finding) -> Offence:
    """The first turns after the last thing that a device did; where it never stops, the last."""
    trace = verdict.trace
    last = max((item.end for item in trace.slices if not is_host(item.lane)), default=0)
    idle = [item.id for item in trace.on("host") if item.start >= last]
    return Offence(tuple(idle[:TURNS]), plainly(finding)) if idle else of_the_end(verdict, finding)


def of_overlap(verdict: Verdict, finding: Finding) -> Offence:
    """What the host did while the device idled between two steps."""
    work = [item for item in verdict.trace.on("host") if item.name != "wait"]
    slices = dict.fromkeys(
        item.id
        for gap in idle_times(verdict.trace)
        for item in work
        if item.start < gap.end and gap.start < item.end
    )
    return Offence(tuple(slices), plainly(finding))


def of_named(verdict: Verdict, finding: Finding) -> Offence:
    """The forward pass of the step that the sentence names; or the first one of its request."""
    steps = {item.step: item.id for item in reversed(forwards(verdict.trace))}
    firsts = {rid: item.id for item in reversed(forwards(verdict.trace)) for rid in item.rids}
    named = re.search(r"\bstep (\d+)", plainly(finding))
    found = steps.get(int(named[1])) if named else firsts.get(finding.sentence.split()[0])
    return Offence((found,), plainly(finding)) if found else of_the_end(verdict, finding)


def of_the_end(verdict: Verdict, finding: Finding) -> Offence:
    """The host's last slice: there the run stopped, or was found wrong."""
    return Offence(last_of_host(verdict.trace), plainly(finding))


def last_of_host(trace: Trace) -> tuple[int, ...]:
    """The host's last slice, if there is one."""
    return tuple(item.id for item in trace.on("host")[-1:])


BY_LAW: dict[str, Callable[[Verdict, Finding], Offence]] = {
    "race": of_race,
    "deadlock": of_race,
    "ends": of_ends,
    "identity": of_identity,
    "ownership": of_ownership,
    "leak": of_leak,
    "livelock": of_livelock,
    "overlap": of_overlap,
    "crash": of_the_end,
}
