"""What of a broken law's run did it, so that a picture can show it in red."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ..checks.judge import STOPPED_BY, Finding, Verdict
from ..checks.leaks.leaks import find_leaks
from ..checks.offence import Offence
from ..checks.overlap.overlap import forwards
from ..checks.overlap.waits import idle_times
from ..checks.races import find_races
from ..checks.races import race_offence as races_offence
from ..checks.tokens.identity import first_difference
from ..checks.tokens.oracle import tokens_alone
from ..checks.tokens.wrong_token import explain
from ..core import FinishReason
from ..trace import Trace
from ..trace.events import is_host
from .exhibit import Exhibit

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
    if exhibit.points_at is not None:
        return exhibit.points_at(verdict)
    offence = BY_LAW.get(exhibit.law, of_named)(verdict, finding)
    ran = {item.id for item in verdict.trace.slices}
    return replace(offence, slices=tuple(one for one in offence.slices if one in ran))


def plainly(finding: Finding) -> str:
    """What was found, without the name of the exception that said so."""
    kind, _, rest = finding.sentence.partition(": ")
    is_law = kind in {error.__name__ for error in STOPPED_BY}
    return rest if is_law else finding.sentence


def of_race(verdict: Verdict, finding: Finding) -> Offence:
    """The two accesses of the race that was found."""
    races = find_races(verdict.trace)
    race = next((race for race in races if str(race) == finding.sentence), races[0])
    return races_offence(race, verdict.trace)


def of_identity(verdict: Verdict, finding: Finding) -> Offence:
    """Where the first wrong token comes from; where the trace can't tell, who sampled it."""
    workload = verdict.workload
    said = {req.rid: req.output_ids for req in workload.requests}
    alone = {req.rid: tokens_alone(workload, req) for req in workload.requests}
    for req in workload.requests:
        if req.finish_reason is FinishReason.ABORT:
            alone[req.rid] = alone[req.rid][: len(req.output_ids)]
    difference = first_difference(verdict.trace.loop, alone, said)
    if difference is None:
        return of_named(verdict, finding)
    story = explain(difference, verdict.trace)
    slices = story.culprit.slices or next((it.slices for it in story.chain if it.slices), ())
    return Offence(slices, f"{plainly(finding)}; {story.culprit.sentence}", story.missing)


def of_ownership(verdict: Verdict, finding: Finding) -> Offence:
    """The host's last slice handed it out; before it, who freed it too early or once too often."""
    races = [race for race in find_races(verdict.trace) if race.resource in OWNED]
    leaks = [leak.slices for leak in find_leaks(verdict.trace) if leak.kind in TWICE]
    before = races_offence(races[0], verdict.trace).slices if races else ()
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
    "identity": of_identity,
    "ownership": of_ownership,
    "leak": of_leak,
    "livelock": of_livelock,
    "overlap": of_overlap,
    "crash": of_the_end,
}
